"""A function of named tensors as a Keras layer."""
