"""The runtime: carries out programs with TensorFlow.

Contents:

    devices      mesh positions to TensorFlow devices
    at           what `local` sees of its place
    segments     local work, traced once for all devices
    collectives  moves between devices: alias (shared memory) and ring
    placed       one program drives all devices
    eager        each op at once
    compiled     a whole program as one TensorFlow function
    variables    slices that stay
    quiet        TensorFlow's start without its chatter
"""
