"""Reads and writes of a program's variables: their phases, functions and packed handles."""
