"""Examples to batches, in an order that is a function of (seed, index)."""
