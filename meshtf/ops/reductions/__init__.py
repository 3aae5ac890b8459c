"""Sums, maxima and moments over dimensions, and broadcasting."""
