"""Runs of training, and what they leave.

Contents:

    training_run    a run, as gin configures it
    trainer         a step; loop: the steps of a run
    evaluation      how good a model is on held-out examples
    reporting/      metrics, baselines (bigrams and gzip), reports, alarms
    interrupts      Ctrl-C between two steps
    input_batches   batches, by the hosts that learn from them
    run_record      what shaped a run, saved with its checkpoints
    load_trained    a model as a run left it, without its optimizer
"""
