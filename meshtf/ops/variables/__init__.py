"""Reads and writes of variables, optimizer updates, constants, prints and summaries."""
