"""Exports a trained model as a SavedModel, which runs in TensorFlow without meshtf.

    python -m transformer.export_saved_model --model_dir=runs/lm_stdlib --saved_model=served

    model = tf.saved_model.load("served")
    model.signatures["logits"](tokens=ids)["logits"]        # [batch, length, vocab]
    model.signatures["generate"](tokens=ids)["ids"]         # [batch, length]

`generate` fills the negative elements of `tokens`. An example starts with the ids of its
prompt; for an encoder-decoder, with the id 0. Both signatures of an encoder-decoder also
take `inputs` [batch, inputs_length]. Decoding is greedy, or by beam search with
--num_beams. Batches may have any size, and --batch_size examples are computed at once; where
examples of a batch depend on each other, as they do through the capacity of experts, batches
have this size.

The configuration is config.gin of the run's folder, unless --gin_file is given. Exit
code: 0, or 1 if there is an error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags, logging

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli import command_line
from transformer.cli.program import run_main

if TYPE_CHECKING:
    import meshtf as mtf
    from transformer.training.load_trained import Trained

# The dimensions of the arguments of both signatures.
_DIMS = {"tokens": "batch; length", "inputs": "batch; inputs_length"}


def define_flags() -> None:
    """Defines the flags of the command.

    They are not defined at import: absl raises an error if a flag is defined twice, and
    other commands have flags of the same names.
    """
    flags.DEFINE_string("model_dir", None, "The folder of the run.", required=True)
    flags.DEFINE_string("saved_model", None, "The folder to write.", required=True)
    flags.DEFINE_integer(
        "batch_size", 1, "Examples that are computed at once.", lower_bound=1
    )
    flags.DEFINE_integer(
        "length", None, "The length of examples; default: that of training."
    )
    flags.DEFINE_integer(
        "num_beams", 0, "The count of beams of a beam search; 0: greedy.", lower_bound=0
    )
    flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and writes a SavedModel."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    from transformer.data.atomic_files import check_writable
    from transformer.training.load_trained import Trained

    args = flags.FLAGS
    with command_line.exit_on_user_errors():
        command_line.configure_by_flags(argv, model_dir=args.model_dir)
        check_writable(args.saved_model, name="--saved_model", folder=True)
        trained = Trained.of(args.model_dir)
        saved_model = export(
            trained,
            batch_size=args.batch_size,
            length=args.length,
            num_beams=args.num_beams,
        )
        try:
            saved_model.save(args.saved_model)
        except OSError as error:
            raise command_line.ConfigError(
                f"cannot write {args.saved_model}: {error}."
            ) from None
    print(f"the model of step {trained.step:,} is in {args.saved_model}")


def export(
    trained: Trained,
    batch_size: int = 1,
    length: int | None = None,
    num_beams: int = 0,
) -> mtf.SavedModel:
    """Returns a SavedModel with the signatures "logits" and "generate".

    Args:
      trained: a trained language model or encoder-decoder.
      batch_size: the count of examples that are computed at once. Batches may have any
        size, or this one if examples of a batch depend on each other.
      length: the length of examples; None: that of training.
      num_beams: the count of beams of a beam search; 0: greedy decoding.

    Raises:
      DataError: the model does not generate.
      ShapeError: there are more positions than learned positions.
    """
    import tensorflow as tf

    import meshtf as mtf
    from transformer.inference.text_generation import make_decoder
    from transformer.models.encoder_decoder import EncoderDecoder

    model = trained.model
    decoder = make_decoder(trained, num_beams=num_beams, temperature=0.0)
    features = trained.data.features(batch_size)
    length = length or features["tokens"].shape[1]
    specs = {"tokens": tf.TensorSpec([batch_size, length], tf.int32)}
    if isinstance(model, EncoderDecoder):
        specs["inputs"] = features["inputs"]

    def logits(
        tokens: mtf.Tensor, inputs: mtf.Tensor | None = None
    ) -> dict[str, mtf.Tensor]:
        """Returns the logits of the next token after each token, [batch, length, vocab]."""
        if inputs is None:
            return {"logits": model(tokens)}
        return {"logits": model(inputs, tokens)}

    def generate(
        tokens: mtf.Tensor, inputs: mtf.Tensor | None = None
    ) -> dict[str, mtf.Tensor]:
        """Returns completed ids [batch, length], and the score of each example [batch]."""
        ids, scores = decoder.generate(tokens, inputs)
        return {"ids": ids, "scores": scores}

    saved_model = mtf.SavedModel()
    dims: dict[str, Any] = _DIMS
    # The name of a function becomes the name of its signature.
    for signature in (logits, generate):
        function = mtf.function(signature, mesh=model.mesh, **dims)
        name = signature.__name__
        try:
            saved_model.add(name, function, any_size="batch", **specs)
        except mtf.PlanError as error:
            saved_model.add(name, function, **specs)
            headline = str(error).splitlines()[0]
            logging.warning("%s takes batches of %d: %s", name, batch_size, headline)
    return saved_model


if __name__ == "__main__":
    define_flags()
    run_main(main)
