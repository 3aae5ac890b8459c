"""Reads and writes of variables, optimizer updates, and ops with side effects."""
