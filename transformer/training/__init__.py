"""Training runs and the files they write.

Contents:

    training_run    a training run, as gin configures it
    trainer         a model and its optimizer, with the compiled training step
    loop            the steps of a run, with reports and checkpoints
    evaluation      loss and accuracy on held-out examples
    reporting/      metrics, baselines (bigrams and gzip), reports, monitor
    interrupts      Ctrl-C and SIGTERM, handled between two steps
    input_batches   input batches, read by the hosts that train on them
    host_layout     which axes of the mesh stay within a host
    run_record      vocabulary and settings of a run, saved with its checkpoints
    weights/        weights of a model from a checkpoint, also to begin a run with
    load_trained    a trained model from a checkpoint, without its optimizer
"""
