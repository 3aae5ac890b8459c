"""Optimizers, schedules of the learning rate, moving averages of variables, and gradient
clipping and accumulation.

Example:

    rate = mtf.optimizers.warmup_cosine(peak=3e-3, warmup_steps=50, total_steps=600)
    optimizer = mtf.optimizers.AdamW(model.trainable_variables, rate, weight_decay=0.1)
    grads, norm = mtf.optimizers.clip_by_global_norm(grads, 1.0)
    optimizer.apply_gradients(grads, model.trainable_variables, step)
"""

from typing import TYPE_CHECKING, Any

from meshtf.optimizers.adafactor import Adafactor, relative_step
from meshtf.optimizers.adam import Adam, AdamW
from meshtf.optimizers.clipping import clip_by_global_norm, global_norm
from meshtf.optimizers.lamb import LAMB
from meshtf.optimizers.microbatches import accumulate_gradients
from meshtf.optimizers.moving_average import ExponentialMovingAverage
from meshtf.optimizers.optimizer import Optimizer
from meshtf.optimizers.parameter_groups import (
    ParameterGroups,
    exclude_names,
    match_names,
)
from meshtf.optimizers.schedules import (
    Schedule,
    cosine_decay,
    delay,
    inverse_sqrt,
    linear_decay,
    linear_warmup,
    product,
    slanted_triangular,
    warmup_cosine,
    warmup_inverse_sqrt,
)
from meshtf.optimizers.sgd import SGD
from meshtf.optimizers.tables.adagrad import Adagrad
from meshtf.optimizers.tables.ftrl import FTRL
from meshtf.unknown_name import unknown_name

__all__ = [
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "ExponentialMovingAverage",
    "FTRL",
    "ParameterGroups",
    "LAMB",
    "Optimizer",
    "SGD",
    "Schedule",
    "accumulate_gradients",
    "clip_by_global_norm",
    "cosine_decay",
    "delay",
    "global_norm",
    "inverse_sqrt",
    "linear_decay",
    "linear_warmup",
    "match_names",
    "product",
    "relative_step",
    "slanted_triangular",
    "exclude_names",
    "warmup_cosine",
    "warmup_inverse_sqrt",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        raise unknown_name(__name__, name, __all__)
