"""Transformer models and their building blocks.

Contents:

    architecture         sizes, and the kind of norm, positions, attention ...
    base                 the interface of all models
    language_model, encoder_decoder, bert
    embeddings, stack, block                          their building blocks
    attention_mask       which tokens attend to which
    key_value_cache      the state of decoding
"""
