"""Ahead-of-time compilation: programs for devices that this machine does not have."""
