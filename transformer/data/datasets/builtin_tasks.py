"""The built-in tasks, and functions that return tasks of each kind. A task is a source of
texts with their conversion to the arrays that a model takes.

    language_model_stdlib      prefix_language_model_stdlib
    span_corruption_stdlib     bert_stdlib

The built-in tasks train on the source of Python's standard library, so nothing is
downloaded. Each is made by a function of this file, whose arguments gin can bind:

    TaskData.task = "span_corruption_stdlib"
    span_corruption.inputs = 256
    span_corruption.vocabulary = @SentencePieceVocabulary()

    TaskData.task = @span_corruption()                 # the same task on other text
    span_corruption.name = "books"
    span_corruption.source = @data.text_lines()

`bert_stdlib` needs word pieces: `python -m transformer.train_vocabulary --output=vocab.txt`
trains one, and `WordPieceVocabulary.path = "vocab.txt"` names it.
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
    """Returns a task for a decoder: each token is predicted from the tokens before it.

    Args:
      name: the name of the task.
      source: the documents, which have a field "text".
      vocabulary: the vocabulary of the tokens; None: bytes.
      length: the count of tokens of an example.
      packed: whether examples consist of complete texts, with segments; if not, all texts
        are concatenated and split into examples.
    """
    vocabulary = vocabulary or ByteVocabulary()
    packing = Packed(vocabulary, length) if packed else Chunks(vocabulary, length)
    return Task(
        name,
        source,
        vocabulary,
        features=LanguageModelFeatures(length, packed=packed),
        packing=packing,
    )


@gin.configurable
def prefix_language_model(
    name: str = gin.REQUIRED,
    source: Source = gin.REQUIRED,
    vocabulary: Vocabulary | None = None,
    length: int = 512,
) -> Task:
    """Returns a task for a decoder with full attention on a prefix of each example, which
    predicts the rest. The length of the prefix is random in each epoch.

    Args:
      name: the name of the task.
      source: the documents, which have a field "text".
      vocabulary: the vocabulary of the tokens; None: bytes.
      length: the count of tokens of an example.
    """
    vocabulary = vocabulary or ByteVocabulary()
    return Task(
        name,
        source,
        vocabulary,
        features=PrefixFeatures(length),
        packing=Chunks(vocabulary, length),
        preprocessors=[split_prefix],
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
    """Returns T5's task: the targets are random spans that are removed from the inputs.

    Args:
      name: the name of the task.
      source: the documents, which have a field "text".
      vocabulary: the vocabulary of the tokens; None: bytes and 100 sentinels.
      inputs: the maximum count of tokens of the inputs; the count of tokens of the targets
        follows from it.
      noise_density: the fraction of tokens that is corrupted.
      mean_span: the mean count of tokens in a span.
    """
    vocabulary = vocabulary or ByteVocabulary()
    # A text of `text_length` tokens becomes at most `inputs` and `target_length` tokens.
    text_length, target_length = span_lengths(
        inputs, noise_density=noise_density, mean_span=mean_span
    )
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
        features=EncoderDecoderFeatures(inputs=inputs, targets=target_length),
        packing=Chunks(vocabulary, text_length),
        preprocessors=[corrupt],
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
    """Returns BERT's task: the prediction of masked tokens, and of whether the second text
    of an example follows the first.

    Args:
      name: the name of the task.
      source: the documents, which have a field "text"; the lines of a text are the
        sentences of BERT.
      vocabulary: the vocabulary of word pieces; None: `WordPieceVocabulary()`, whose
        `path` gin binds.
      length: the count of tokens of an example.
      predictions: the maximum count of masked tokens in an example.
      rate: the fraction of tokens that is masked.
      whole_words: whether all tokens of a word are masked, or none.
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
        features=BertFeatures(length=length, predictions=predictions),
        packing=SentencePairs(vocabulary, length),
        preprocessors=[mask],
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
    """Returns a task of pairs of texts, as in translation; long texts are truncated.

    Args:
      name: the name of the task.
      source: the examples, which have two texts.
      vocabulary: the vocabulary of the tokens; None: bytes.
      fields: the fields of the inputs and of the targets.
      inputs: the count of tokens of the inputs.
      targets: the count of tokens of the targets.
      packed: whether an example has several pairs.
    """
    vocabulary = vocabulary or ByteVocabulary()
    inputs_field, targets_field = fields
    features = EncoderDecoderFeatures(inputs=inputs, targets=targets, packed=packed)
    if packed:
        packing = PackedPairs(vocabulary, inputs=inputs, targets=targets, fields=fields)
        return Task(name, source, vocabulary, features=features, packing=packing)
    tokenize_fields = functools.partial(
        tokenize,
        vocabulary=vocabulary,
        fields={inputs_field: "inputs", targets_field: "targets"},
    )
    truncate = functools.partial(trim, lengths={"inputs": inputs, "targets": targets})
    return Task(
        name,
        source,
        vocabulary,
        features=features,
        preprocessors=[tokenize_fields, truncate],
    )


def _register_on_library(name: str, make_task: Callable[..., Task]) -> None:
    """Registers a task that trains on the files of Python's standard library. The task is
    made at each use, since gin may bind the arguments of `make_task` later.
    """
    register(lambda: make_task(name=name, source=documents()), name=name)


_register_on_library("language_model_stdlib", language_model)
_register_on_library("prefix_language_model_stdlib", prefix_language_model)
_register_on_library("span_corruption_stdlib", span_corruption)
_register_on_library("bert_stdlib", bert_pretraining)
