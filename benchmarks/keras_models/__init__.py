"""Keras models on a mesh: equal to Keras, and how much of their work is sharded."""
