"""Converts a model between a folder of Hugging Face transformers and a training run.

    python -m transformer.convert --from=hf --model_dir=bert-base-uncased --output=runs/bert
    python -m transformer.convert --to=hf --model_dir=runs/bert --output=bert-again
    python -m transformer.convert --from=google_bert --model_dir=uncased_L-12 --output=runs/bert

A folder of Hugging Face has config.json and safetensors files; a training run has
checkpoints and config.gin; Google's BERT is a checkpoint of TensorFlow 1. Converting a model
and converting it back changes no bit. What the folder has besides, such as the tokenizer and
special ids, goes along. Nothing is downloaded or overwritten. Exit code: 0, or 1 if there is an
error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main

_FROM = flags.DEFINE_enum(
    "from",
    None,
    ["hf", "google_bert"],
    "The format of --model_dir, if it is not a training run.",
)
_TO = flags.DEFINE_enum(
    "to", None, ["hf"], "The format of --output, if it is not a training run."
)
_MODEL_DIR = flags.DEFINE_string(
    "model_dir", None, "The folder to read.", required=True
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "The folder to write; it must not exist.", required=True
)
_SCANNED = flags.DEFINE_bool(
    "scanned",
    False,
    "With --from: blocks are traced once, with their variables stacked along `layers`.",
)
_VOCAB_MULTIPLE = flags.DEFINE_integer(
    "vocab_multiple",
    1,
    "With --from: the vocabulary is padded to a multiple of this, to be sharded.",
    lower_bound=1,
)


def main(argv: Sequence[str]) -> None:
    """Reads the model in a folder, and writes it to another one in the other format."""
    if (_FROM.value is None) == (_TO.value is None):
        command_line.exit_with_message(
            "Give one of --from=hf, --from=google_bert and --to=hf."
        )
    # Imports of TensorFlow are in functions, so that --help is fast.
    import meshtf as mtf
    from transformer.convert import (
        google_bert,
        hugging_face,
        training_runs,
        vocabulary_files,
    )
    from transformer.data.atomic_files import check_writable
    from transformer.training.weights import source_files

    mesh = mtf.Mesh("")  # one device
    with command_line.exit_on_user_errors():
        command_line.refuse_gin(argv)
        check_writable(_OUTPUT.value, name="--output", folder=True)
        if _FROM.value:
            readers = {
                "hf": hugging_face.read_model,
                "google_bert": google_bert.read_google_bert,
            }
            model = readers[_FROM.value](
                _MODEL_DIR.value,
                mesh,
                scanned=_SCANNED.value,
                vocab_multiple=_VOCAB_MULTIPLE.value,
            )
            vocabulary = vocabulary_files.read_vocabulary(_MODEL_DIR.value)
            training_runs.write_run(model, _OUTPUT.value, vocabulary)
            written_dtype = "float32"
        else:
            model = training_runs.read_run(_MODEL_DIR.value, mesh)
            written_dtype = hugging_face.write_model(model, _OUTPUT.value)
    num_parameters = sum(variable.shape.size for variable in model.variables)
    print(
        f"{_OUTPUT.value}: {type(model).__name__}, {num_parameters:,} parameters in "
        f"{len(model.variables)} variables\n{model.architecture}"
    )
    source = source_files.source_config(model.source_files)
    print(_dtypes_line(source.get("dtype", "float32"), written_dtype))
    if _FROM.value:
        description = str(vocabulary)
        if vocabulary is None:
            description = "not known, so it is not compared when the model is used"
        print(f"vocabulary: {description}")


def _dtypes_line(source_dtype: str, written_dtype: str) -> str:
    """Returns a line about data types.

    Args:
      source_dtype: the data type of the files that the model was converted from first.
      written_dtype: the data type of the tensors that were written.
    """
    if written_dtype == source_dtype:
        return f"dtype: {written_dtype}"
    if _FROM.value:
        return (
            f"dtype: float32, which has every value of the {source_dtype} files; converted "
            f"back, they are {source_dtype} again unless values have changed"
        )
    return (
        f"dtype: float32; {source_dtype}, of the files that the model was converted from, "
        "would round the values"
    )


if __name__ == "__main__":
    run_main(main)
