"""Memory of training steps, and checkpoints."""
