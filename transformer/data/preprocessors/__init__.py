"""Steps from a row to what a model is given: pure functions of (example, seed).

    tokenize        texts become tokens                 trim       long ones lose their end
    corrupt_spans   T5's inputs and targets             split_prefix    given and told
    mask_tokens     BERT's masked language model        pair       [CLS] a [SEP] b [SEP]
    label           the name of a class becomes its number

The seed is (seed, epoch, index): the same row looks another way in each epoch, and the
same way whenever it is asked for. Settings are bound with functools.partial.
`SentencePairs` is none of them: it makes rows of documents, as those of
`transformer.data.batching.packing` do.
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
