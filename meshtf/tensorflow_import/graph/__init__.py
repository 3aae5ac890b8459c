"""Reads the graph of a TensorFlow function: `read.read_function` returns a `program.Program`."""
