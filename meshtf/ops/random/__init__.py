"""Random numbers, which no layout changes."""
