"""Devices, arrays, modules and variables of live meshes: meshes whose devices belong to jax.

Contents:

    jax_module       jax, imported when it is needed
    join_processes   several processes with one live mesh
    jax_host         the devices of jax that a mesh consists of
    device_arrays    the shards of a value as one jax.Array
    host_copy        copies of shards on the host, also of shards of other processes
    module_call      a module, compiled for the devices of a mesh
    jax_slot         the storage of variables: a slot for each shard
    run_checks       errors of indices out of range, raised after the run
    stacked_layout   shards of devices that all have an array of their own
"""
