"""Running sums, products and recurrences along a dimension."""
