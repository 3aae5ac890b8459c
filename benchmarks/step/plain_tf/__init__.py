"""The models in plain TensorFlow."""
