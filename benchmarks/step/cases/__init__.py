"""One training step in different libraries: hand-written TensorFlow, JAX, DTensor, meshtf.

Contents:

    cases                 the cases and their groups
    worker                runs one case in a separate process
    sizes                 sizes, and the shapes of all variables
    feeds                 batches and fixed values of the variables
    meshtf_model          the models in meshtf
    jax_language_model    the language model in JAX
    dtensor               the models in DTensor
    data_parallel_tf      hand-written data parallelism in TensorFlow
"""
