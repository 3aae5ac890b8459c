"""Transformer models on meshtf: training, evaluation, generation and conversion.

    models/      language models, encoder-decoders, BERT, and their layers
    experts/     mixtures of experts
    data/        data sets: corpora, tasks, vocabularies, batches
    training/    the training loop, evaluation, reports, checkpoints of runs
    inference/   generation and scoring of texts
    convert/     models of Hugging Face to checkpoints of meshtf, and back
    cli/         the flags that commands share, and gin configuration

Commands, each with --help: python -m transformer.train, .evaluate, .score, .decode,
.convert, .export_saved_model, .tokenize, .train_vocabulary. `python -m meshtf explain`
and `python -m meshtf export` read the same configurations.
"""
