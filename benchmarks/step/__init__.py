"""A training step in different libraries and layouts."""
