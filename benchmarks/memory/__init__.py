"""Memory of steps, and checkpoints."""
