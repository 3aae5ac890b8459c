"""A Transformer language model and what trains it, written on `import meshtf as mtf` alone.

    data          bytes to learn from: a corpus, batches for training, windows for evaluation
    convert       known models: folders of Hugging Face transformers, and ours
    baselines     what a byte bigram and gzip make of the same bytes
    metrics       a JSON lines file, TensorBoard events, a line of progress
    interrupts    Ctrl-C between two steps
    config_files  finds the gin files, in a checkout and installed
"""
