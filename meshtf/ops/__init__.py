"""The ops, each once: what cutting each name does, the local TensorFlow ops, the
gradient.

    elements      elementwise, unary, scalar, binary, arithmetic, activations, pointwise, complex
    sums          reduce, moments, adding, einsum, softmax, loss, normalize
    rows          indexing, scatter, dynamic, select, sorting, ordering, merging, shifting, halo
    scans         scanning, running
    windows       convolution, pooling, and what they share: sliding, conv_*, pool_kernels
    shapes        reshape, slicing, stacking, fourier
    state         state, update, effects
    control       loops, deciding, control, custom, laying, microbatch
    random        random, bits, seeds

The rest is shared: broadcasting, choosing, constants, contract, kernels.
"""
