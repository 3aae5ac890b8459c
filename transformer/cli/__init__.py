"""Flags, configuration files and gin settings of the commands."""
