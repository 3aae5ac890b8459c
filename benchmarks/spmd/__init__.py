"""Exported programs."""
