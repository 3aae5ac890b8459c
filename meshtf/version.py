"""The version of this library. `setup.py` reads it from here."""

__version__ = "0.2.0"
