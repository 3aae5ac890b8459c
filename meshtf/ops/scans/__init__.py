"""Running results along a dimension."""
