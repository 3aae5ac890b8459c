"""Matmuls, einsum and Fourier transforms."""
