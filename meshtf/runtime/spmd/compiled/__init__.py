"""Programs compiled for devices that are not there."""
