"""One TensorFlow program that drives all devices."""
