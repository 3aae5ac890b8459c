"""What all four programs share: flags, the mesh, and the sizes that a bert_config.json
says.

    vocabulary = settings.vocabulary()                     # --vocab_file, --do_lower_case
    config = settings.config(vocabulary)                   # --bert_config_file, checked against it
    model = settings.build(Bert, config)                   # --mesh, --layout, --devices

Most flags are called as in the programs that came with BERT (Devlin et al., 2018).
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gin
from absl import flags

import meshtf as mtf
from examples.bert.shared import gin_configuration
from transformer import data
from transformer.convert.config_settings import Settings
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.models.bert import bert_architecture

SMALL = "bias$|scale$"  # variables that are not drawn, and do not decay
LAYOUT = "batch:data; heads:model; d_ff:model; vocab:model"

CONFIG = flags.DEFINE_string(
    "bert_config_file", None, "JSON with the sizes of the model."
)
VOCAB = flags.DEFINE_string("vocab_file", None, "The word pieces, one a line.")
INPUT = flags.DEFINE_string(
    "input_file", None, "Files to read, or globs, with commas between."
)
LOWER = flags.DEFINE_bool("do_lower_case", True, "Small letters, no accents.")
LENGTH = flags.DEFINE_integer(
    "max_seq_length", 128, "Tokens of a row, with [CLS] and [SEP].", lower_bound=8
)
PREDICTIONS = flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "The most tokens of a row that are hidden.",
    lower_bound=1,
)
SEED = flags.DEFINE_integer("random_seed", 12345, "Of all that is random.")
MESH = flags.DEFINE_string(
    "mesh", "", 'Axes of the mesh, such as "data:4;model:2"; "": one position.'
)
LAYOUTS = flags.DEFINE_string(
    "layout",
    None,
    f'Which dimension is cut along which axis; by default "{LAYOUT}", as far as the '
    "mesh has these axes.",
)
DEVICES = flags.DEFINE_string(
    "devices",
    None,
    'As of mtf.Mesh: "logical:8", or names with commas between; by default the GPUs, '
    "or one CPU for all positions.",
)
OVERLAPS: dict[
    str, flags.FlagHolder[Any]
] = {  # settings of gin that say the same as a flag
    "Mesh.axes": MESH,
    "Mesh.layout": LAYOUTS,
    "Mesh.devices": DEVICES,
    "Mesh.seed": SEED,
    "train.seed": SEED,
    "WordPieceVocabulary.path": VOCAB,
    "WordPieceVocabulary.lower_case": LOWER,
}


def devices() -> str | Sequence[str] | None:
    """Returns what `mtf.Mesh` calls devices."""
    names = DEVICES.value
    return (
        names.split(",") if isinstance(names, str) and names.startswith("/") else names
    )


def mesh() -> mtf.Mesh:
    """Returns the mesh of the flags, with what gin binds besides."""
    layout, optional = (
        (LAYOUT, "data;model") if LAYOUTS.value is None else (LAYOUTS.value, "")
    )
    found: mtf.Mesh = gin_configuration.configured(mtf.Mesh)(
        MESH.value, layout, devices=devices(), seed=SEED.value, optional_axes=optional
    )
    return found


def vocabulary() -> data.WordPieceVocabulary:
    """Returns the word pieces of the flags."""
    return data.WordPieceVocabulary(VOCAB.value, LOWER.value)


class Config(NamedTuple):
    """What a bert_config.json says."""

    architecture: Architecture
    initializer_range: float


def build(kind: Callable[..., Model], config: Config, **more: Any) -> Any:
    """Returns a model on the mesh of the flags; all but biases and norms is drawn as
    BERT's is, from a normal distribution that is cut off at two deviations."""
    model = kind(mesh(), config.architecture, **more)
    first = mtf.layers.initializers.truncated(config.initializer_range)
    for variable in filter(mtf.optimizers.exclude_names(SMALL), model.variables):
        variable.assign(first(model.mesh, variable.shape, variable.name))
    return model


def config(words: data.WordPieceVocabulary) -> Config:
    """Returns the sizes of the flags.

    Raises:
      DataError: the file cannot be read, or the vocabulary or the length of rows does
        not fit.
    """
    if CONFIG.value is None and not gin.get_bindings("bert_architecture"):
        raise data.DataError(
            "nothing says how large the model is.\n  Name a file with its sizes by "
            "--bert_config_file, or bind bert_architecture by --gin_file or "
            "--gin_param."
        )
    whole = (
        read_config(CONFIG.value) if CONFIG.value else Config(bert_architecture(), 0.02)
    )
    found = whole.architecture
    source = CONFIG.value or "bert_architecture of gin"
    if words.size > found.vocab:
        raise data.DataError(
            f"{words.path} has {words.size:,} pieces, and {source} has room for "
            f"{found.vocab:,}.\n  Take the vocabulary that the model is for, or raise "
            "vocab_size."
        )
    if LENGTH.value > found.max_length:
        raise data.DataError(
            f"--max_seq_length={LENGTH.value}, and {source} has "
            f"{found.max_length} positions.\n  Take shorter rows, or raise "
            "max_position_embeddings."
        )
    return whole


def read_config(path: str) -> Config:
    """Returns the sizes that a bert_config.json says.

    Raises:
      DataError: it cannot be read, or says what no model here can be.
    """
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
        if not isinstance(values, dict):
            raise data.DataError(f"{path} holds no object, but {values!r:.40}.")
        return _config(Settings(values))
    except json.JSONDecodeError as error:
        raise data.DataError(
            f"{path}:{error.lineno}: is no JSON: {error.msg}, at column {error.colno}."
        ) from error
    except OSError as error:
        raise data.DataError(f"--bert_config_file cannot be read: {error}.") from error
    except mtf.CheckpointError as error:
        raise data.DataError(f"{path}: {error}") from error


def _config(config: Settings) -> Config:
    dropout = config.get("hidden_dropout_prob", 0.1)
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
    of_gin = gin.get_bindings("bert_architecture")
    width, heads = (of_gin.get(name, sizes[name]) for name in ("d_model", "heads"))
    if width % heads and "d_kv" not in of_gin:
        raise data.DataError(
            f"hidden_size {width} cannot be dealt out to {heads} heads alike."
        )
    sizes["d_kv"] = width // heads
    for name in sizes.keys() & of_gin.keys():
        if sizes[name] != of_gin[name]:
            gin_configuration.note(
                f"bert_architecture.{name} = {of_gin[name]!r} wins over "
                f"{sizes[name]!r} of {CONFIG.value}"
            )
    architecture = bert_architecture(
        **{k: v for k, v in sizes.items() if k not in of_gin}
    )
    return Config(architecture, config.get("initializer_range", 0.02))


def files(patterns: str) -> list[Path]:
    """Returns the files that are named, or match, in order. Raises DataError: one is
    not there.
    """
    found = []
    for pattern in patterns.split(","):
        paths = sorted(glob.glob(pattern, recursive=True))
        if not paths:
            raise data.DataError(f"there is no file {pattern!r}.")
        found += [Path(path) for path in paths if not path.endswith(".idx")]
    return found
