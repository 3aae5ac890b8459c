"""The ops, each once: what cutting each name does, the local TensorFlow ops, the gradient.

    state        reading and writing, constants
    einsum       contractions
"""
