"""The ops, each once: what sharding each name does, the local TensorFlow ops, the
gradient.

Contents:

    common/         what several families share: broadcasting, checks, sums
    shapes/         reshape, slice, stack
    variables/      reads and writes, fills, updates of optimizers, prints
    elementwise/    functions of each element
    reductions/     sums, maxima, moments, and broadcasting
    control/        loops, branches, recomputation, regions, microbatches, seeds
    indexing/       gather, scatter, dynamic slices, top_k
    linear/         einsum, Fourier transforms
    windows/        convolution, pooling, shifts
    scans/          running sums and recurrences
    sorting/        sort, argsort
    nn/             activations, softmax, cross entropy, normalization
    random/         random numbers that no layout changes
"""
