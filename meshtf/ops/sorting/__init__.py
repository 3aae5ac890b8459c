"""Sorting along a dimension: sort and argsort."""
