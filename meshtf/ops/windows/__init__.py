"""Elements and their neighbours: convolutions, pooling, shifts."""
