"""Inspection of checkpoints: reports, verification, `python -m meshtf checkpoint`."""
