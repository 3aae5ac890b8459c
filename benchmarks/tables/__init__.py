"""The time of a training step with an embedding table."""
