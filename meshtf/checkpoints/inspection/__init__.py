"""Checkpoints looked at: reports, verification, `python -m meshtf checkpoint`."""
