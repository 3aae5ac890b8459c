"""Hand-written models in plain TensorFlow, on one device."""
