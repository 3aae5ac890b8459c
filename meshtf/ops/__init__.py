"""The ops. Each defines its output's shape, how it may be sharded along each name, its local
TensorFlow ops, and its gradient.

Contents:

    common/         helpers of several families: broadcasting, checks, sums
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
    random/         random numbers, equal under all layouts
"""
