"""One training step many ways: by hand in TensorFlow, in JAX, in meshtf.
`benchmarks.step` runs it.

Contents:

    sizes       a model's sizes, and the shapes of its variables
    feeds       what all ways see alike: batches, and initial values
    cases       what is compared: a case is one way, in a process of its own
    worker      that process
    data_parallel_tf      by hand in TensorFlow on eight devices, a graph for each
    dtensor               the same in DTensor
    jax_language_model    the language model in JAX
    meshtf_model          meshtf; `exported`: its module for PJRT

`benchmarks.step.plain_tf` has the models by hand in TensorFlow on one device.
"""
