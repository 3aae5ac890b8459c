"""The runtime: executes programs with TensorFlow.

Contents:

    tf_internals/    private symbols of TensorFlow
    devices/         mesh positions to devices, hosts, threads
    storage/         shards of variables and arguments, files
    lowering/        a step of a program to TensorFlow ops of one device
    placed/          one TensorFlow program drives all devices
    spmd/            each replica runs the same program, with XLA's collectives
    runtimes         runtimes by name, and their common protocols
    eager            each op runs as soon as it is called
    variable         variables, and their initial_values
    host_batches     batches whose examples each host reads itself
"""
