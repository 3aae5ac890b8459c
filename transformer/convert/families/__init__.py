"""Families of models of other libraries, a file each."""
