"""Trains a vocabulary on text files, or on the source of Python's standard library.

    python -m transformer.train_vocabulary --output=vocab.txt                # 8000 word pieces
    python -m transformer.train_vocabulary --kind=sentencepiece --size=4000 --input='books/*.txt' \\
        --output=books.model

A run uses the file by the gin setting `WordPieceVocabulary.path` or
`SentencePieceVocabulary.path`. Exit code: 0, or 1 if there is an error; then nothing is
written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main


def define_flags() -> None:
    """Defines the flags of the command.

    They are not defined at import: absl raises an error if a flag is defined twice, and
    other commands have flags of the same names.
    """
    flags.DEFINE_enum(
        "kind", "wordpiece", ["wordpiece", "sentencepiece"], "The kind of vocabulary."
    )
    flags.DEFINE_integer("size", 8000, "The number of pieces.", lower_bound=1)
    flags.DEFINE_string(
        "input",
        None,
        "A glob of text files; default: the source of Python's standard library.",
    )
    flags.DEFINE_string("output", None, "The file to write.", required=True)
    flags.DEFINE_bool(
        "lower_case",
        True,
        "For wordpiece: lower-case texts and strip accents.",
    )


def main(argv: Sequence[str]) -> None:
    """Trains the vocabulary that the flags describe, and writes it."""
    from transformer.data.atomic_files import check_writable

    args = flags.FLAGS
    with command_line.exit_on_user_errors():
        command_line.refuse_gin(argv)
        check_writable(args.output, name="--output")
        train(
            kind=args.kind,
            size=args.size,
            pattern=args.input,
            output=args.output,
            lower_case=args.lower_case,
        )


def train(
    kind: str, size: int, pattern: str | None, output: str, lower_case: bool = True
) -> None:
    """Trains a vocabulary and writes it.

    Args:
      kind: "wordpiece" or "sentencepiece".
      size: the count of pieces: words and sections of words that have an id.
      pattern: a glob of text files; None: the source of Python's standard library.
      output: the file to write.
      lower_case: for wordpiece, whether texts are lower-cased and accents stripped.

    Raises:
      DataError: there is no text, or too little for the size; nothing is written.
    """
    from transformer import data
    from transformer.data.atomic_files import atomic_file
    from transformer.data.vocabularies import train_sentence_pieces, train_word_pieces

    corpus = data.text_files(pattern) if pattern else data.python_library()
    documents = data.documents(lambda: corpus)  # an example for each file of the corpus
    texts = [example["text"] for example in documents.train()]
    print(f"training on {corpus}", flush=True)
    if kind == "wordpiece":
        pieces = train_word_pieces(texts, size, lower_case=lower_case)
        num_pieces = len(pieces)
        # vocab.txt: a piece per line.
        content = "".join(f"{piece}\n" for piece in pieces).encode()
    else:
        num_pieces = size
        content = train_sentence_pieces(texts, size)
    with atomic_file(output) as temporary_path:
        temporary_path.write_bytes(content)
    print(f"{num_pieces:,} pieces are in {output}")


if __name__ == "__main__":
    define_flags()
    run_main(main)
