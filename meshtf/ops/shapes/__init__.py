"""Ops that arrange elements: reshapes, transposes, slices, concatenations and stacks."""
