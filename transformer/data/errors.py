"""Errors of data: what is wrong, in which file, and the way out."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be read, or that is not what was asked for."""
