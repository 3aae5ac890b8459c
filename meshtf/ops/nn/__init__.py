"""Fused ops of neural networks."""
