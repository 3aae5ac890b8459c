"""The runtime: executes programs with TensorFlow.

A *mesh position* is one element of the grid of a `Mesh`; each runs on a device. A *slot* is
the storage of one shard on one device.

Contents:

    tf_internals/         private symbols of TensorFlow
    devices/              the devices, hosts, processes and threads of mesh positions
    storage/              shards of variables and arguments, files
    lowering/             runs a step of a program as TensorFlow ops on one device
    placed/               one TensorFlow program drives all devices
    spmd/                 each replica runs the same program, with XLA's collectives
    runtimes              runtimes by name, and their common protocols
    eager                 runs each op as soon as it is called
    variable              variables
    initial_values        initializers of variables, and the shards of initial values
    module_paths          names of modules and variables that come from attributes
    host_batches          batches whose examples each host reads itself
    dataset_options       datasets without TensorFlow's autotuner
    process               settings that make programs faster (`mtf.configure_process`)
    heartbeat             signs of life, for a process that monitors this one
    tensorflow_tracking   errors for savers of TensorFlow, which miss our variables
"""
