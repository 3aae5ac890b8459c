"""Other shapes of the same elements."""
