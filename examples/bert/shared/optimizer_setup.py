"""The optimizer that the flags and gin describe.

    make = make_optimizer(steps=1000, warmup=100)     # --optimizer, --learning_rate, ...
    optimizer = make(model.trainable_variables)

A flag on the command line wins over gin; gin wins over the default of a flag.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags

import meshtf as mtf
from examples.bert.shared import gin_configuration, model_setup
from examples.bert.shared.training_flags import DECAY, OPTIMIZER, RATE
from transformer.cli import command_line


class _Parameter(NamedTuple):
    """A parameter of an optimizer.

    Attributes:
      name: the name of the parameter.
      value: the value, unless gin binds the parameter.
      flag: the flag of the value, which wins over gin if it is given; None: no flag.
    """

    name: str
    value: Any
    flag: flags.FlagHolder[Any] | None = None


def make_optimizer(steps: int, warmup: int) -> Callable[..., mtf.optimizers.Optimizer]:
    """Returns a function of variables that makes the optimizer of the flags, with the
    parameters that gin binds.

    Args:
      steps: the total number of steps.
      warmup: the number of warmup steps.

    Raises:
      ConfigError: the optimizer has no parameter for a given flag.
    """
    rate = mtf.optimizers.product(
        RATE.value,
        mtf.optimizers.linear_warmup(warmup),
        mtf.optimizers.linear_decay(steps, steps - warmup),
    )
    decay_mask = mtf.optimizers.exclude_names(model_setup.BIASES_AND_NORMS)
    optimizer_class = _optimizer_class()
    name = optimizer_class.__name__
    arguments = {}
    for parameter in (
        _Parameter("learning_rate", value=rate, flag=RATE),
        _Parameter("weight_decay", value=DECAY.value, flag=DECAY),
        _Parameter("epsilon", value=1e-6),
        _Parameter("decay_mask", value=decay_mask),
    ):
        if _is_passed(parameter, name):
            arguments[parameter.name] = parameter.value
    return functools.partial(optimizer_class, **arguments)


def _optimizer_class() -> Callable[..., mtf.optimizers.Optimizer]:
    """Returns the class of the optimizer, configured by gin: that of --optimizer, or of
    gin's train.optimizer if the flag is not given.
    """
    if gin_configuration.is_bound("train.optimizer"):
        if not gin_configuration.is_given(OPTIMIZER):
            return gin_configuration.train_settings(optimizer=None)["optimizer"]
        gin_configuration.record_override("train.optimizer", OPTIMIZER)
    classes = {"adamw": mtf.optimizers.AdamW, "lamb": mtf.optimizers.LAMB}
    return gin_configuration.configured(classes[OPTIMIZER.value])


def _is_passed(parameter: _Parameter, optimizer: str) -> bool:
    """Returns whether the value of a parameter is passed to an optimizer: not if it has no
    such parameter, nor if gin binds it and no flag wins over gin.

    Args:
      parameter: the parameter.
      optimizer: the name of the optimizer in gin.

    Raises:
      ConfigError: the flag is given, but the optimizer has no such parameter.
    """
    given_flag = parameter.flag
    if given_flag is not None and not gin_configuration.is_given(given_flag):
        given_flag = None
    if parameter.name not in gin_configuration.parameter_names(optimizer):
        if given_flag is not None:
            raise command_line.ConfigError(
                f"--{given_flag.name}={given_flag.value}: {optimizer} has no "
                f"{parameter.name}.\n  Leave it out, or choose another optimizer."
            )
        return False
    setting = f"{optimizer}.{parameter.name}"
    if not gin_configuration.is_bound(setting):
        return True
    if given_flag is None:
        return False
    gin_configuration.record_override(setting, given_flag)
    return True
