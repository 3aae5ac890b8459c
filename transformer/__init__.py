"""Transformers, and what trains, measures and decodes them, on `import meshtf as mtf`
alone.

    models/      language models, encoder-decoders, BERT, and their parts
    experts/     mixtures of experts
    data/        what is learned from: texts, tasks, vocabularies, batches
    runs/        training, evaluation, and what is told of them
    writing/     decoding and scoring
    convert/     Hugging Face's folders to ours, and back

Commands: python -m transformer.train, .evaluate, .score, .decode, .export_model,
.convert, .tokenize, .vocabulary; explain and export belong to `python -m meshtf`.

    command, config_files, configurables     the flags they share, and gin
    bindings, value_types                    what gin was given, where, and what cannot be meant
"""
