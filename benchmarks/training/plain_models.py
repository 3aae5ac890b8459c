"""The models by hand, by their names.

Example:

    model = plain_model(Config("bert"))
"""

from __future__ import annotations

from benchmarks.training.plain import PlainModel
from benchmarks.training.plain_bert import PlainBert
from benchmarks.training.plain_lm import PlainLM
from benchmarks.training.plain_moe import PlainMoE
from benchmarks.training.sizes import Config

PLAIN: dict[str, type[PlainModel]] = {"lm": PlainLM, "moe": PlainMoE, "bert": PlainBert}


def plain_model(config: Config) -> PlainModel:
    """Returns the model of a config."""
    return PLAIN[config.model](config)
