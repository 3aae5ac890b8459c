"""Benchmarks against plain TensorFlow and other libraries, with equal models and equal losses."""
