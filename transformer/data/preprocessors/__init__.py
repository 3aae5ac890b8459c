"""Preprocessors of examples, applied at training time: pure functions of (example, seed).

    tokenize        texts to token ids                  trim       truncates token ids
    corrupt_spans   T5's inputs and targets             split_prefix    inputs, targets
    mask_tokens     BERT's masked language model        pair       [CLS] a [SEP] b [SEP]
    label           the name of a class to its index

The seed is made of the seed of the data, the epoch and the index of the example:
preprocessing differs between epochs, and is reproducible. Settings are bound with
functools.partial. `SentencePairs` is not a preprocessor, but a packing: it makes examples
from documents, once before training.
"""

from transformer.data.preprocessors.masking import mask_tokens
from transformer.data.preprocessors.pairs import SentencePairs
from transformer.data.preprocessors.spans import corrupt_spans, noise_mask, span_lengths
from transformer.data.preprocessors.texts import (
    join,
    label,
    pair,
    split_prefix,
    tokenize,
    trim,
)

__all__ = [
    "SentencePairs",
    "corrupt_spans",
    "join",
    "label",
    "mask_tokens",
    "noise_mask",
    "pair",
    "span_lengths",
    "split_prefix",
    "tokenize",
    "trim",
]
