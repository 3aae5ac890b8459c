"""Inspection of checkpoints: reports and verification, for `python -m meshtf checkpoint`."""
