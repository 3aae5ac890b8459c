"""Families of models: the conversion rules and settings of each, in one file per family."""
