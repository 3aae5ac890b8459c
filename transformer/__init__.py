"""Transformers, and what trains, measures and decodes them, on `import meshtf as mtf` alone.

Models
    architecture        sizes, and which kind of each part
    model, encoder_decoder, bert, gpipe      the models; base: what they share
    embeddings, stack, block, sight          their parts; sight: who sees whom
    moe, gating, routing, dispatch           mixtures of experts

Runs
    training            a run, as gin configures it; trainer: a step; loop: the steps
    data                what is learned from: texts, tasks, vocabularies, batches
    evaluation, metrics, reports, baselines, interrupts

What was trained
    trained             a model of a run, without its optimizer
    decoding, texts     ids, and texts, that a model writes
    scoring             what it thinks of given ones
    convert             Hugging Face's folders to ours, and back

Commands: python -m transformer.train, .evaluate, .score, .decode, .convert, .tokenize, .vocabulary
    command, config_files, configurables     flags and gin; explain, export: of `python -m meshtf`
"""
