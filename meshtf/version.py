"""The version of this library, which setup.py reads as well."""

__version__ = "0.2.0"
