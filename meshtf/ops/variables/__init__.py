"""Reads and writes of variables, and effects outside of programs."""
