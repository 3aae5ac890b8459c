"""Training steps on an accelerator that is there for minutes only, and has no TensorFlow."""
