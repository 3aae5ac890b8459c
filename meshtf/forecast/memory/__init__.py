"""The peak of a device's memory.

Contents:

    peak_memory     the peak of live bytes
    xla_buffers     which tensors take memory if XLA compiles the program
    xla_order       which steps run later then
    live_tensors    the tensors that are live at the peak
"""
