"""Data sets: corpora, tasks, vocabularies, and batches in an order that is a pure function
of (seed, index).

A training loop takes any object with these five members, the protocol `Data`:

    data.vocabulary                                   .size, .encode(text), .decode(ids), .eos_id
    data.features(batch_size)                         {name: ArraySpec}; reads no examples
    data.batches(batch_size, start=0, worker=(0, 1))  endless tf.data.Dataset of dicts
    data.held_out(batch_size, num_examples=None)      finite, in a fixed order; also has `counts`
    str(data)                                         one line that describes the data

`start` is the count of examples consumed so far: a checkpoint needs no other state of the
data. `worker=(w, n)` reads the w-th of n slices of each batch. There are two such classes:

    ByteText(python_library, length=128)              bytes of text files: tokens, targets
    TaskData("span_corruption_stdlib")                a registered task or mixture, by its name

In gin:

    train.data = @ByteText()                          train.data = @TaskData()
    ByteText.corpus = @data.python_library            TaskData.task = "span_corruption_stdlib"
    ByteText.length = 128                             span_corruption.inputs = 512

A task has five components: a source of documents or examples; a packing, which makes
training examples from documents once; preprocessors, pure functions of (example, seed),
applied at each use of an example; a vocabulary; and features, which convert an example to
arrays. `transformer.tokenize` packs the documents of a task ahead of time, and
`transformer.train_vocabulary` trains a vocabulary. In files of this package:

    sources/                       text lines, JSON lines, TSV, TFRecord, documents
    batching/packing.py            chunks, packed texts, packed pairs
    preprocessors/                 span corruption, masking, next-sentence pairs, prefixes
    batching/features.py           the arrays of language models, encoder-decoders, BERT, ...
    batching/shuffling.py          shuffled orders as functions of an index
    datasets/tasks.py              tasks and mixtures by name
    datasets/builtin_tasks.py      the built-in tasks
    datasets/tfrecord_examples.py  tokenized examples on disk

The bytes of a corpus, without tasks:

    corpus = python_library()                     # or text_files("books/**/*.txt")
    steps = batches(corpus.train, batch_size=8, length=256, seed=0, first_step=restored)
    fixed = windows(corpus.held_out, length=256)  # [windows, length + 1]
"""

from transformer.data import preprocessors
from transformer.data.array_spec import ArraySpec
from transformer.data.batching.batches import (
    batches,
    evaluation_batches,
    starts,
    windows,
)
from transformer.data.batching.features import (
    BertFeatures,
    ClassifierFeatures,
    EncoderDecoderFeatures,
    Features,
    LanguageModelFeatures,
    PrefixFeatures,
    RegressorFeatures,
)
from transformer.data.batching.packing import Chunks, Packed, PackedPairs, pack
from transformer.data.batching.task_batches import TaskData
from transformer.data.datasets.builtin_tasks import (
    bert_pretraining,
    language_model,
    prefix_language_model,
    sequence_to_sequence,
    span_corruption,
)
from transformer.data.datasets.byte_text import ByteText
from transformer.data.datasets.corpus import (
    END,
    Corpus,
    CorpusError,
    python_library,
    text_files,
)
from transformer.data.datasets.shapes_only import ShapesOnly
from transformer.data.datasets.tasks import Mixture, Task, find, register, task_names
from transformer.data.datasets.tfrecord_examples import stored_examples, write_examples
from transformer.data.errors import DataError
from transformer.data.protocol import Data
from transformer.data.sources import documents, json_lines, text_lines, tfrecords, tsv
from transformer.data.vocabularies import (
    ByteVocabulary,
    RawBytes,
    SentencePieceVocabulary,
    Vocabulary,
    VocabularyError,
    WordPieceVocabulary,
)

__all__ = [
    "ArraySpec",
    "BertFeatures",
    "ByteText",
    "ByteVocabulary",
    "Chunks",
    "ClassifierFeatures",
    "Corpus",
    "CorpusError",
    "Data",
    "DataError",
    "END",
    "EncoderDecoderFeatures",
    "Features",
    "LanguageModelFeatures",
    "Mixture",
    "Packed",
    "PackedPairs",
    "PrefixFeatures",
    "RawBytes",
    "RegressorFeatures",
    "SentencePieceVocabulary",
    "ShapesOnly",
    "Task",
    "TaskData",
    "Vocabulary",
    "VocabularyError",
    "WordPieceVocabulary",
    "batches",
    "bert_pretraining",
    "documents",
    "evaluation_batches",
    "find",
    "json_lines",
    "language_model",
    "pack",
    "prefix_language_model",
    "preprocessors",
    "python_library",
    "register",
    "sequence_to_sequence",
    "span_corruption",
    "starts",
    "stored_examples",
    "task_names",
    "text_files",
    "text_lines",
    "tfrecords",
    "tsv",
    "windows",
    "write_examples",
]
