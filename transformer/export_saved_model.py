"""Writes a trained model as a SavedModel, which TensorFlow alone runs, without meshtf.

    python -m transformer.export_saved_model --model_dir=runs/lm_stdlib --saved_model=served

    served = tf.saved_model.load("served")
    served.signatures["logits"](tokens=ids)["logits"]       # [batch length] -> [... vocab]
    served.signatures["write"](texts=ids)["ids"]            # negative where ids are wanted

`texts` begin with what is given (after an encoder: with the id 0) and are negative from
there on. Of an encoder-decoder both take `inputs` [batch inputs_length] besides. The
likeliest ids are written, or with --beams those that a beam search finds. Exit code: 0,
or 1 if there is an error.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
import tensorflow as tf

import meshtf as mtf
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.data.atomic_files import check_writable
from transformer.inference.text_generation import decoder_of
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.training.load_trained import Trained

_NAMES = {
    "tokens": "batch; length",
    "texts": "batch; length",
    "inputs": "batch; inputs_length",
}


def define_flags() -> None:
    """Defines the flags of the command; other modules have some of the same names."""
    flags.DEFINE_string("model_dir", None, "The folder of the run.", required=True)
    flags.DEFINE_string("saved_model", None, "The folder to write.", required=True)
    flags.DEFINE_integer("batch_size", 1, "Texts at a time.", lower_bound=1)
    flags.DEFINE_integer(
        "length", None, "The positions of texts; by default those of training."
    )
    flags.DEFINE_integer("beams", 0, "Search with so many beams.", lower_bound=0)
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and writes a model."""
    asked = flags.FLAGS
    with command_line.leaving_plainly():
        command_line.configure_by_flags(argv, model_dir=asked.model_dir)
        check_writable(asked.saved_model, "--saved_model", folder=True)
        trained = Trained.of(asked.model_dir)
        saved = export(trained, asked.batch_size, asked.length, asked.beams)
        try:
            saved.save(asked.saved_model)
        except OSError as error:
            raise command_line.ConfigError(
                f"cannot write {asked.saved_model}: {error}."
            ) from None
    print(f"the model of step {trained.step:,} is in {asked.saved_model}")


def export(
    trained: Trained, batch_size: int = 1, length: int | None = None, beams: int = 0
) -> mtf.SavedModel:
    """Returns a model with the signatures "logits" and "write".

    Args:
      trained: a language model or an encoder-decoder.
      batch_size: texts at a time.
      length: the positions of texts; None: those of training.
      beams: how many beginnings a beam search follows; 0: the likeliest id is taken
        each time.

    Raises:
      DataError: the model writes no texts.
      ShapeError: there are more positions than learned ones.
    """
    model, decoder = trained.model, decoder_of(trained, beams=beams, temperature=0.0)
    known = trained.data.features(batch_size)
    ids = tf.TensorSpec([batch_size, length or known["tokens"].shape[1]], tf.int32)
    more = {"inputs": known["inputs"]} if isinstance(model, EncoderDecoder) else {}

    def logits(
        tokens: mtf.Tensor, inputs: mtf.Tensor | None = None
    ) -> dict[str, mtf.Tensor]:
        return {"logits": model(tokens) if inputs is None else model(inputs, tokens)}

    def write(
        texts: mtf.Tensor, inputs: mtf.Tensor | None = None
    ) -> dict[str, mtf.Tensor]:
        return dict(zip(("ids", "scores"), decoder.write(texts, inputs)))

    saved = mtf.SavedModel()
    for name, fn in {"logits": logits, "write": write}.items():
        names: Any = {
            x: dims
            for x, dims in _NAMES.items()
            if x in inspect.signature(fn).parameters
        }
        saved.add(name, mtf.function(fn, mesh=model.mesh, **names), ids, **more)
    return saved


if __name__ == "__main__":
    define_flags()
    run_main(main)
