"""Which dimensions of a program's tensors are the same, and what they are called."""
