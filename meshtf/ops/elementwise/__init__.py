"""Functions that are applied to each element, such as exp and add."""
