"""Ops against TensorFlow's own."""
