"""What each kind of TensorFlow operation says of dimensions, and what it is in named ones.

A rule has two methods: `dimensions` tells an analysis which axes are the same, `lower` runs the
operation. A kind, or a form of one, without a rule runs replicated (`whole.py`).
"""
