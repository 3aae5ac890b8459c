"""Models, and what they are made of.

Contents:

    architecture        sizes, and which kind of each part
    language_model, encoder_decoder, bert, gpipe      the models; base: what they share
    embeddings, stack, block                          their parts
    sight               which tokens see which
"""
