"""What forecasts of the time of a step are worth, and how good the layouts are that they choose.

Contents:

    published_steps/  against steps that others measured on GPUs
"""
