"""A user's TensorFlow function as an op that runs on each shard, and what it is tried on first."""
