"""Makes batches of examples, in an order that is a pure function of (seed, index)."""
