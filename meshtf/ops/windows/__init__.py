"""Functions of an element and its neighbours: convolutions, pooling, shifts."""
