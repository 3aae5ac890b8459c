"""What forecasts of the time of a step are worth, and how good the layouts are that they choose.

Contents:

    measured          layouts of small models, run on this machine
    published_steps/  against steps that others measured on GPUs
"""
