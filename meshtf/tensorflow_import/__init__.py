"""Any TensorFlow function as a program of named operations."""
