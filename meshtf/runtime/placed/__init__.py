"""The placed runtime: one TensorFlow program drives all devices of a mesh."""
