"""Lowering of a program's steps to TensorFlow ops of one device; shared by all runtimes."""
