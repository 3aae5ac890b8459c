"""Models, and what they are made of.

Contents:

    architecture         sizes, and which kind of each part
    base                 what all models share
    language_model, encoder_decoder, bert, pipelined_language_model
    embeddings, stack, block                          their parts
    attention_mask       which tokens see which
"""
