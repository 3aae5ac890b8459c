"""The peak of a device's memory.

Contents:

    allocations     what is live from which step to which, and the peak of such a list
    peak_memory     the allocations of a program
    xla_buffers     which tensors take memory if XLA compiles the program
    xla_order       which steps run later then
    kernels         what computes attention on a device, and why
    live_tensors    what is live at the peak, with modules and source lines
"""
