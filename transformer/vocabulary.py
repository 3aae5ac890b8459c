"""Trains a vocabulary on text files, or on the source of Python's standard library.

    python -m transformer.vocabulary --output=vocab.txt                # 8000 word pieces
    python -m transformer.vocabulary --kind=sentencepiece --size=4000 --input='books/*.txt' \\
        --output=books.model

The file is there whole or not at all. `WordPieceVocabulary.path` or `SentencePieceVocabulary.path`
names it in gin.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import app, flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")     # before TensorFlow is imported
from transformer import command, data
from transformer.data.vocabularies import train_sentence_pieces, train_word_pieces
from transformer.data.writing import whole_file

_KIND = flags.DEFINE_enum("kind", "wordpiece", ["wordpiece", "sentencepiece"], "What to train.")
_SIZE = flags.DEFINE_integer("size", 8000, "How many pieces there are.", lower_bound=1)
_INPUT = flags.DEFINE_string("input", None, "A glob of text files; without one, the source of "
                             "Python's standard library.")
_OUTPUT = flags.DEFINE_string("output", None, "The file to write.", required=True)
_LOWER_CASE = flags.DEFINE_bool("lower_case", True, "Word pieces: small letters, no accents.")


def main(argv: Sequence[str]) -> None:
  """Trains a vocabulary and writes it."""
  del argv
  with command.leaving_plainly():
    corpus = data.text_files(_INPUT.value) if _INPUT.value else data.python_library()
    texts = [example["text"] for example in data.documents(lambda: corpus).train()]
    print(f"learning from {corpus}", flush=True)
    if _KIND.value == "wordpiece":
      pieces = train_word_pieces(texts, _SIZE.value, _LOWER_CASE.value)
      model, number = "".join(f"{piece}\n" for piece in pieces).encode(), len(pieces)
    else:
      model, number = train_sentence_pieces(texts, _SIZE.value), _SIZE.value
    with whole_file(_OUTPUT.value) as path:
      path.write_bytes(model)
    print(f"{number:,} pieces are in {_OUTPUT.value}")


if __name__ == "__main__":
  app.run(main)
