"""The error of data sets. Its message has the cause, the file, and the way out."""

from __future__ import annotations


class DataError(ValueError):
    """Raised for data that cannot be read, or that do not fit the settings."""
