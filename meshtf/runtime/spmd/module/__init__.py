"""Programs as StableHLO modules of one replica: the device at one position of the mesh. All
replicas run the same module.

Contents:

    stablehlo_collectives   collectives such as all_reduce, written as StableHLO
    window_exchange         halo exchange with neighbours, as collective permutes
    replica                 runs a program on one replica, while TensorFlow traces it
    replica_function        the traced function, and its compilation to StableHLO
    portable_module         TensorFlow's StableHLO text as a portable artifact
    stablehlo_module        a recorded function as one StableHLO module
    exported_program        the module with what a host needs to run it
    index_checks            checks of indices, whose failures the host reads
    unsupported             errors for what a module cannot do
"""
