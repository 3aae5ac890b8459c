"""The ops. The class of an op defines the shapes of the outputs, how the op may be sharded
along each dimension, the TensorFlow ops of one device, and the gradient: see `graph.Op`.

Contents:

    common/         helpers of several families: broadcasting, checks, sums
    shapes/         reshape, slice, stack
    variables/      reads and writes, constants, updates by optimizers, prints
    elementwise/    functions that are applied to each element, such as exp and add
    reductions/     sums, maxima, means and variances; and broadcasting
    control/        loops, branches, recomputation, layouts of a region of the code,
                    microbatches, seeds
    indexing/       gather, scatter, dynamic slices, top_k
    linear/         einsum, Fourier transforms
    windows/        convolution, pooling, shifts
    scans/          running sums and recurrences
    sorting/        sort, argsort
    nn/             activations, softmax, cross entropy, normalization
    random/         random numbers, equal under all layouts
"""
