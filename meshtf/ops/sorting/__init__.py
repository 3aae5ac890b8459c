"""Order along a dimension."""
