"""Lowering of a program's steps to TensorFlow ops of one device; shared by all runtimes.

A *program* is a list of steps. A *step* is a computation or a communication that takes and
returns *values*: tensors, each with one shard for every mesh position.
"""
