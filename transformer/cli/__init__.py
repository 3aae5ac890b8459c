"""The command line of the commands: flags, configuration files and gin settings.

Contents:

    program              how a command starts
    command_line         the flags that commands share; errors without a traceback
    config_files         finds gin files
    gin_configurables    registers classes of meshtf with gin
    gin_settings         checks gin settings: names, types, files and lines
    gin_statements       reads the statements of gin files before gin runs them
    setting_hints        the gin setting that a user may have meant by an unknown flag
    value_types          checks values against type annotations
"""
