"""What models learn from. Batches are dicts; their order is a pure function of (seed, position).

A training loop takes any object with these five (`Data`, in protocol.py, has the words):

    data.vocabulary                                   .size, .encode(text), .decode(ids), .end
    data.features(batch)                              {name: tf.TensorSpec}; reads no examples
    data.batches(batch, first=0, worker=(0, 1))       endless tf.data.Dataset of dicts
    data.held_out(batch, number=None)                 finite, fixed order; `counts` [batch] besides
    str(data)                                         a line that says what it is

`first` counts the examples that were learnt from already, and is all that a checkpoint needs to
keep. `worker=(w, n)` reads the w-th of n slices of each batch. There are two such objects:

    ByteText(python_library, length=128)              bytes of text files: tokens, targets
    TaskData("span_corruption_stdlib")                a registered task or mixture, by its name

in gin:

    train.data = @ByteText()                          train.data = @TaskData()
    ByteText.corpus = @data.python_library            TaskData.task = "span_corruption_stdlib"
    ByteText.length = 128                             span_corruption_stdlib.inputs_length = 512

The bytes of a corpus, without that protocol:

    corpus = python_library()                     # or text_files("books/**/*.txt")
    steps = batches(corpus.train, batch=8, length=256, seed=0, first_step=restored)
    fixed = windows(corpus.held_out, length=256)  # [windows, length + 1]
"""

from transformer.data.batches import batches, evaluation_batches, starts, windows
from transformer.data.corpus import END, Corpus, CorpusError, python_library, text_files
from transformer.data.protocol import Data

__all__ = ["Corpus", "CorpusError", "Data", "END", "batches", "evaluation_batches",
           "python_library", "starts", "text_files", "windows"]
