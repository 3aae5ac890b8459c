"""One training step many ways: by hand in TensorFlow, in JAX, in meshtf.
`benchmarks.step` runs it.

Contents:

    sizes       a model's sizes, and the shapes of its variables
    feeds       what all ways see alike: batches, and values to begin with
    cases       what is compared: a case is one way, built and run in a process of its own
    worker      that process
    plain       by hand in TensorFlow on one device: plain_lm, plain_moe, plain_bert
    by_hand     the same on eight devices, a graph for each
    dtensor     the same in DTensor
    jax_lm      the language model in JAX
    mesh        meshtf; `exported`: its module for PJRT
"""
