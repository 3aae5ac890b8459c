"""Programs as StableHLO modules of one mesh position.

Contents:

    stablehlo_collectives   the table of reshards as StableHLO
    window_exchange         the exchange of neighbours' elements, as permutes
    replica                 a program on one mesh position
    replica_function        its compilation
    portable_module         TensorFlow's StableHLO as a portable artifact
    stablehlo_module        a program as one StableHLO module
    exported_program        the module with what a host needs to run it
    index_checks            checks of indices, whose failures the host reads
    unsupported             what no module can do
"""
