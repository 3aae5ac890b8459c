"""Phases, order and handles of the variables that a program reads and writes."""
