"""Programs and variables on the devices of jax.

Contents:

    jax_host         jax, imported when it is needed, and its devices
    device_arrays    the shards of a value as one jax.Array
    module_call      a module, compiled for the devices of a mesh
    live_program     a recorded function on these devices
    jax_slot         the storage of variables
    initial_values   initial values, computed on the devices
    run_checks       errors of indices out of range, raised after the run
    module_runner    runs exported modules on CPU devices, for tests
"""
