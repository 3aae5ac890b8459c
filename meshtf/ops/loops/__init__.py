"""Loops of a known number of iterations: scans, maps, and pipelines."""
