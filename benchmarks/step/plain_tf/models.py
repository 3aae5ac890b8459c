"""The hand-written models by name.

model = plain_model(Config("bert"))
"""

from __future__ import annotations

from benchmarks.step.cases.sizes import Config
from benchmarks.step.plain_tf.bert import PlainBert
from benchmarks.step.plain_tf.language_model import PlainLM
from benchmarks.step.plain_tf.moe import PlainMoE
from benchmarks.step.plain_tf.training_step import PlainModel

PLAIN: dict[str, type[PlainModel]] = {"lm": PlainLM, "moe": PlainMoE, "bert": PlainBert}


def plain_model(config: Config) -> PlainModel:
    """Returns the model of a config."""
    return PLAIN[config.model](config)
