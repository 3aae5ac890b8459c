"""Products of matrices, and Fourier transforms."""
