"""A step of a program to TensorFlow ops of one device, for all runtimes."""
