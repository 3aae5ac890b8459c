"""Flags of all programs. Most have the names of the original BERT programs (Devlin et al.,
2018).

`model_setup` makes the vocabulary, the mesh and the model that they describe. This module
does not import TensorFlow, so that --help and errors of usage take a fraction of a second.
"""

from __future__ import annotations

from typing import Any

from absl import flags

# The default of --layout.
DEFAULT_LAYOUT = "batch:data; heads:model; d_ff:model; vocab:model"

CONFIG = flags.DEFINE_string(
    "bert_config_file", None, "JSON with the sizes of the model."
)
VOCAB = flags.DEFINE_string("vocab_file", None, "The word pieces, one on each line.")
INPUT = flags.DEFINE_string(
    "input_file", None, "Files to read, or globs, separated by commas."
)
LOWER = flags.DEFINE_bool(
    "do_lower_case", True, "Whether to lower-case texts and strip accents."
)
LENGTH = flags.DEFINE_integer(
    "max_seq_length",
    128,
    "Maximum number of tokens, with [CLS] and [SEP].",
    lower_bound=8,
)
PREDICTIONS = flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "Maximum number of masked tokens of an example.",
    lower_bound=1,
)
SEED = flags.DEFINE_integer("random_seed", 12345, "Seed of all random numbers.")
MESH = flags.DEFINE_string(
    "mesh", "", 'Axes of the mesh, such as "data:4;model:2"; "": one position.'
)
LAYOUT = flags.DEFINE_string(
    "layout",
    None,
    f'Which dimension is sharded along which axis; by default "{DEFAULT_LAYOUT}", as far as '
    "the mesh has these axes.",
)
DEVICES = flags.DEFINE_string(
    "devices",
    None,
    'As of mtf.Mesh: "logical:8", or names separated by commas; by default the GPUs, or '
    "one CPU for all positions.",
)
# Gin settings with the same meaning as a flag.
OVERLAPS: dict[str, flags.FlagHolder[Any]] = {
    "Mesh.axes": MESH,
    "Mesh.layout": LAYOUT,
    "Mesh.devices": DEVICES,
    "Mesh.seed": SEED,
    "train.seed": SEED,
    "WordPieceVocabulary.path": VOCAB,
    "WordPieceVocabulary.lower_case": LOWER,
}
