"""Reads the files of tasks as examples, and writes examples to files."""
