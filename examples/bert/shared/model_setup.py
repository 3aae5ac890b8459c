"""The vocabulary, the sizes, the mesh and the model that the flags describe.

vocabulary = model_setup.vocabulary()                # --vocab_file, --do_lower_case
config = model_setup.config(vocabulary)              # --bert_config_file
model = model_setup.build(Bert, config)              # --mesh, --layout, --devices
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gin

import meshtf as mtf
from examples.bert.shared import gin_configuration
from examples.bert.shared.program_flags import (
    CONFIG,
    DEFAULT_LAYOUT,
    DEVICES,
    LAYOUT,
    LENGTH,
    LOWER,
    MESH,
    SEED,
    VOCAB,
)
from transformer import data
from transformer.convert.config_settings import Settings
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.models.bert import bert_architecture

# A regular expression for the names of variables that are not initialized randomly, and
# have no weight decay.
BIASES_AND_NORMS = "bias$|scale$"


def devices() -> str | Sequence[str] | None:
    """Returns the argument `devices` of `mtf.Mesh`: names of devices such as "/cpu:0", a
    description such as "logical:8", or None for the default.
    """
    names = DEVICES.value
    if isinstance(names, str) and names.startswith("/"):
        return names.split(",")
    return names


def mesh() -> mtf.Mesh:
    """Returns the mesh of the flags, with further parameters that gin binds."""
    if LAYOUT.value is None:
        layout = DEFAULT_LAYOUT
        optional_axes = "data;model"  # axes that this layout names but a mesh may lack
    else:
        layout = LAYOUT.value
        optional_axes = ""
    result: mtf.Mesh = gin_configuration.configured(mtf.Mesh)(
        MESH.value,
        layout,
        devices=devices(),
        seed=SEED.value,
        optional_axes=optional_axes,
    )
    return result


def vocabulary() -> data.WordPieceVocabulary:
    """Returns the vocabulary of the flags."""
    return data.WordPieceVocabulary(VOCAB.value, lower_case=LOWER.value)


class Config(NamedTuple):
    """The sizes of a model.

    Attributes:
      architecture: the sizes.
      initializer_range: the standard deviation of the initial values of variables.
    """

    architecture: Architecture
    initializer_range: float


def build(model_class: Callable[..., Model], config: Config, **arguments: Any) -> Any:
    """Returns a model on the mesh of the flags.

    As in BERT, all variables except biases and norms are drawn from a normal distribution
    that is truncated at two standard deviations.

    Args:
      model_class: the class of the model.
      config: the sizes of the model.
      **arguments: further arguments of the class.
    """
    model = model_class(mesh(), config.architecture, **arguments)
    initializer = mtf.layers.initializers.truncated(config.initializer_range)
    is_drawn = mtf.optimizers.exclude_names(BIASES_AND_NORMS)
    for variable in model.variables:
        if is_drawn(variable):
            variable.assign(initializer(model.mesh, variable.shape, variable.name))
    return model


def config(word_pieces: data.WordPieceVocabulary) -> Config:
    """Returns the sizes of the model: those in --bert_config_file, or of gin.

    Args:
      word_pieces: the vocabulary of the texts; the model's must be at least as large.

    Raises:
      DataError: the file cannot be read, or the vocabulary or --max_seq_length is too
        large for the model.
    """
    if CONFIG.value is None and not gin.get_bindings("bert_architecture"):
        raise data.DataError(
            "the sizes of the model are not given.\n  Name a file with them by "
            "--bert_config_file, or bind bert_architecture by --gin_file or "
            "--gin_param."
        )
    if CONFIG.value:
        result = read_config(CONFIG.value)
    else:
        result = Config(bert_architecture(), initializer_range=0.02)
    architecture = result.architecture
    source = CONFIG.value or "bert_architecture of gin"
    if word_pieces.size > architecture.vocab:
        raise data.DataError(
            f"{word_pieces.path} has {word_pieces.size:,} pieces, but {source} has room "
            f"for {architecture.vocab:,}.\n  Use the vocabulary of the model, or raise "
            "vocab_size."
        )
    if LENGTH.value > architecture.max_length:
        raise data.DataError(
            f"--max_seq_length={LENGTH.value}, but {source} has "
            f"{architecture.max_length} positions.\n  Use a smaller --max_seq_length, or "
            "raise max_position_embeddings."
        )
    return result


def read_config(path: str) -> Config:
    """Returns the contents of a bert_config.json.

    Raises:
      DataError: the file cannot be read, or describes a model that is not supported.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            contents = json.load(file)
        if not isinstance(contents, dict):
            raise data.DataError(f"{path} has no JSON object, but {contents!r:.40}.")
        return _config(Settings(contents))
    except json.JSONDecodeError as error:
        raise data.DataError(
            f"{path}:{error.lineno}: is no JSON: {error.msg}, at column {error.colno}."
        ) from error
    except OSError as error:
        raise data.DataError(f"--bert_config_file cannot be read: {error}.") from error
    except mtf.CheckpointError as error:
        raise data.DataError(f"{path}: {error}") from error


def _config(config: Settings) -> Config:
    """Returns the sizes of a bert_config.json; sizes that gin binds override them."""
    dropout = config.get("hidden_dropout_prob", 0.1)
    # Models have one dropout rate.
    config.require(attention_probs_dropout_prob=dropout)
    sizes = {
        "vocab": config["vocab_size"],
        "d_model": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "d_ff": config["intermediate_size"],
        "blocks": config["num_hidden_layers"],
        "activation": config.activation("hidden_act"),
        "dropout": dropout,
        "max_length": config["max_position_embeddings"],
        "token_types": config.get("type_vocab_size", 2),
    }
    overrides = gin.get_bindings("bert_architecture")
    width = overrides.get("d_model", sizes["d_model"])
    heads = overrides.get("heads", sizes["heads"])
    if width % heads and "d_kv" not in overrides:
        raise data.DataError(f"{heads} heads do not divide hidden_size {width}.")
    sizes["d_kv"] = width // heads
    for name in sizes.keys() & overrides.keys():
        if sizes[name] != overrides[name]:
            gin_configuration.note(
                f"bert_architecture.{name} = {overrides[name]!r} wins over "
                f"{sizes[name]!r} of {CONFIG.value}"
            )
    # Gin passes the sizes that it binds, so they are left out here.
    architecture = bert_architecture(
        **{name: size for name, size in sizes.items() if name not in overrides}
    )
    return Config(architecture, config.get("initializer_range", 0.02))


def files(patterns: str) -> list[Path]:
    """Returns the files of paths or globs that are separated by commas, without indices of
    records (*.idx).

    Raises:
      DataError: a pattern matches no file.
    """
    results = []
    for pattern in patterns.split(","):
        paths = sorted(glob.glob(pattern, recursive=True))
        if not paths:
            raise data.DataError(f"there is no file {pattern!r}.")
        results += [Path(path) for path in paths if not path.endswith(".idx")]
    return results
