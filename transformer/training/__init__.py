"""Runs of training, and what they leave.

Contents:

    training     a run, as gin configures it
    trainer      a step; loop: the steps of a run
    evaluation   how good a model is on held-out examples; baselines: bigrams and gzip
    metrics, reports, watching      what is told on the way, and at the end
    interrupts   Ctrl-C between two steps
    reading      batches, by the hosts that learn from them
    records      what shaped a run, saved with its checkpoints, and compared when it goes on
    trained      a model as a run left it, without its optimizer
"""
