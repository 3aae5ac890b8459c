"""The outer program as one FunctionDef: its nodes, its tensors, and what it calls."""
