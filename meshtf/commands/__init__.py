"""The commands of `python -m meshtf`: a module for each, with its flags and two functions.

    usage_error(argv)    returns what is wrong with the arguments after the flags, or ""
    main(argv)           runs the command, and returns the exit code

argv[0] is the name of the program. The docstring of the module is printed by `--help`. A module
imports TensorFlow, and modules that need it, only inside of functions. So `--help` and errors
of usage take a fraction of a second (`meshtf.command_line`).
"""
