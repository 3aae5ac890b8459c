"""The runtime: carries out programs with TensorFlow.

Contents:

    tf_internals/    private symbols of TensorFlow
    devices/         mesh positions to devices, hosts, threads
    storage/         shards of variables and arguments, files
    lowering/        a step of a program to TensorFlow ops of one device
    placed/          one TensorFlow program drives all devices
    spmd/            one program for each replica, with XLA's collectives
    runtimes         runtimes by name, and the protocols that they have in common
    eager            each op at once
    variable         variables, and their initial_values
    host_batches     batches that each host reads for itself
"""
