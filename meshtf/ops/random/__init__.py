"""Random numbers that are the same under every layout."""
