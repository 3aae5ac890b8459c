"""A training step, in many ways."""
