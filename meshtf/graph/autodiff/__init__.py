"""Gradients: rules of ops, called from the last node to the first."""
