"""Tasks that are there from the beginning, and functions that make more of each kind.

    language_model_stdlib      prefix_language_model_stdlib
    span_corruption_stdlib     bert_stdlib

They learn from the source of Python's standard library, so that nothing is downloaded.
Each is a call of a function here, and gin sets what it is called with:

    TaskData.task = "span_corruption_stdlib"
    span_corruption.inputs = 256
    span_corruption.vocabulary = @SentencePieceVocabulary()

    TaskData.task = @span_corruption()                 # the same of other text
    span_corruption.name = "books"
    span_corruption.source = @data.text_lines()

`bert_stdlib` needs word pieces: `python -m transformer.train_vocabulary --output=vocab.txt`
makes some, and `WordPieceVocabulary.path = "vocab.txt"` names them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import gin

from transformer.data.batching.features import (
    BertFeatures,
    EncoderDecoderFeatures,
    LanguageModelFeatures,
    PrefixFeatures,
)
from transformer.data.batching.packing import Chunks, Packed, PackedPairs
from transformer.data.datasets.tasks import Task, register
from transformer.data.preprocessors import (
    SentencePairs,
    corrupt_spans,
    mask_tokens,
    span_lengths,
    split_prefix,
    tokenize,
    trim,
)
from transformer.data.sources import Source, documents
from transformer.data.vocabularies import (
    ByteVocabulary,
    Vocabulary,
    WordPieceVocabulary,
)


@gin.configurable
def language_model(
    name: str = gin.REQUIRED,
    source: Source = gin.REQUIRED,
    vocabulary: Vocabulary | None = None,
    length: int = 512,
    packed: bool = True,
) -> Task:
    """Returns a task for a decoder: every token is told from those before it.

    Args:
      name: of the task.
      source: documents with a field "text".
      vocabulary: bytes, if none is given.
      length: the tokens of a row.
      packed: whether rows hold whole texts, with segments; else all texts are one, cut
        into rows.
    """
    vocabulary = vocabulary or ByteVocabulary()
    rows = Packed(vocabulary, length) if packed else Chunks(vocabulary, length)
    return Task(name, source, vocabulary, LanguageModelFeatures(length, packed), rows)


@gin.configurable
def prefix_language_model(
    name: str = gin.REQUIRED,
    source: Source = gin.REQUIRED,
    vocabulary: Vocabulary | None = None,
    length: int = 512,
) -> Task:
    """Returns a task for a decoder that sees the beginning of a row as a whole, and
    tells the rest. Where it begins to tell is drawn anew in each epoch. Arguments as
    for `language_model`."""
    vocabulary = vocabulary or ByteVocabulary()
    return Task(
        name,
        source,
        vocabulary,
        PrefixFeatures(length),
        Chunks(vocabulary, length),
        [split_prefix],
    )


@gin.configurable
def span_corruption(
    name: str = gin.REQUIRED,
    source: Source = gin.REQUIRED,
    vocabulary: Vocabulary | None = None,
    inputs: int = 512,
    noise_density: float = 0.15,
    mean_span: float = 3.0,
) -> Task:
    """Returns T5's task: spans are cut out of the inputs, and are the targets.

    Args:
      name: of the task.
      source: documents with a field "text".
      vocabulary: bytes and 100 sentinels, if none is given.
      inputs: the length of inputs, which are full; that of targets follows from it.
      noise_density: the part of all tokens that is cut out.
      mean_span: the mean number of tokens in a span.
    """
    vocabulary = vocabulary or ByteVocabulary()
    length, targets = span_lengths(inputs, noise_density, mean_span)
    corrupt = functools.partial(
        corrupt_spans,
        vocabulary=vocabulary,
        noise_density=noise_density,
        mean_span=mean_span,
    )
    return Task(
        name,
        source,
        vocabulary,
        EncoderDecoderFeatures(inputs, targets),
        Chunks(vocabulary, length),
        [corrupt],
    )


@gin.configurable
def bert_pretraining(
    name: str = gin.REQUIRED,
    source: Source = gin.REQUIRED,
    vocabulary: WordPieceVocabulary | None = None,
    length: int = 128,
    predictions: int = 20,
    rate: float = 0.15,
    whole_words: bool = False,
) -> Task:
    """Returns BERT's task: hidden tokens, and whether one part of a text follows on
    another.

    Args:
      name: of the task.
      source: documents with a field "text"; their lines are what BERT calls sentences.
      vocabulary: word pieces; by default those that gin's `WordPieceVocabulary.path`
        names.
      length: the tokens of a row.
      predictions: the greatest number of tokens that are to be told.
      rate: the part of tokens that is to be told.
      whole_words: hide all pieces of a word or none.
    """
    vocabulary = vocabulary or WordPieceVocabulary()
    mask = functools.partial(
        mask_tokens,
        vocabulary=vocabulary,
        predictions=predictions,
        rate=rate,
        whole_words=whole_words,
    )
    return Task(
        name,
        source,
        vocabulary,
        BertFeatures(length, predictions),
        SentencePairs(vocabulary, length),
        [mask],
    )


@gin.configurable
def sequence_to_sequence(
    name: str = gin.REQUIRED,
    source: Source = gin.REQUIRED,
    vocabulary: Vocabulary | None = None,
    fields: tuple[str, str] = ("inputs", "targets"),
    inputs: int = 128,
    targets: int = 128,
    packed: bool = False,
) -> Task:
    """Returns a task of pairs of texts, as in translation; what is too long loses its
    end.

    Args:
      name: of the task.
      source: examples with two texts.
      vocabulary: bytes, if none is given.
      fields: what is given and what is told.
      inputs: the tokens of what is given.
      targets: the tokens of what is told.
      packed: whether a row holds several pairs.
    """
    vocabulary, (given, told) = vocabulary or ByteVocabulary(), fields
    features = EncoderDecoderFeatures(inputs, targets, packed)
    if packed:
        return Task(
            name,
            source,
            vocabulary,
            features,
            PackedPairs(vocabulary, inputs, targets, (given, told)),
        )
    steps = [
        functools.partial(
            tokenize, vocabulary=vocabulary, fields={given: "inputs", told: "targets"}
        ),
        functools.partial(trim, lengths={"inputs": inputs, "targets": targets}),
    ]
    return Task(name, source, vocabulary, features, preprocessors=steps)


def _of_the_library(name: str, make: Callable[..., Task]) -> None:
    register(lambda: make(name=name, source=documents()), name)


_of_the_library("language_model_stdlib", language_model)
_of_the_library("prefix_language_model_stdlib", prefix_language_model)
_of_the_library("span_corruption_stdlib", span_corruption)
_of_the_library("bert_stdlib", bert_pretraining)
