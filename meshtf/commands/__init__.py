"""The commands of `python -m meshtf`: their flags, help and main functions.

A module of this folder imports TensorFlow, and modules that need it, only inside of
functions. So `--help` and errors of usage take a fraction of a second (`meshtf.command_line`).
"""
