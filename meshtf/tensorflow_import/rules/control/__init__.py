"""Loops, branches and lists."""
