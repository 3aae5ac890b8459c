"""How functions are called: attributes by name, and configurations of one call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute

from meshtf.runtime.tf_internals.switches import private

NOT_INLINED = {"_noinline": True}
IN_ANY_ORDER = {"_disable_acd": True}  # but that of inputs and control dependencies
SHAPES_KNOWN = "_disable_call_shape_inference"  # an attribute of calls


def _config(cpus: bool) -> bytes:
    """Returns a session configuration without the graph optimizer: it costs start-up
    and gains nothing on segments, and turning it off here leaves the user's other
    functions alone.

    Args:
      cpus: for programs of CPUs alone, of which TensorFlow then does not search all
        that they call for work of TPUs, nor each device's share for constants to be
        folded, which segments have.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    if cpus:
        config.experimental.mlir_bridge_rollout = (
            config.experimental.MLIR_BRIDGE_ROLLOUT_DISABLED
        )
        config.graph_options.optimizer_options.opt_level = (
            tf.compat.v1.OptimizerOptions.L0
        )
    return config.SerializeToString()


_OPTIMIZER_OFF = "disable_meta_optimizer"
PLAIN_CONFIG, CPU_CONFIG = _config(False), _config(True)


@contextlib.contextmanager
def _without_graph_optimizer() -> Iterator[None]:
    """Has functions that are called in the block run as they are.

    The graph optimizer would not only cost start-up: of a loop within a loop whose
    backward pass computes it again, it left results empty (TensorFlow 2.21).
    """
    options = tf.config.optimizer
    before = options.get_experimental_options().get(_OPTIMIZER_OFF, False)
    options.set_experimental_options({_OPTIMIZER_OFF: True})
    try:
        yield
    finally:
        options.set_experimental_options({_OPTIMIZER_OFF: before})


def call_with(
    config: bytes, function: Any, args: Sequence[Any], name: str | None = None
) -> list[Any]:
    """Returns the outputs of a concrete function, each on the device that made it.

    Called by the raw op, a function brings all of them home to the first CPU.

    Args:
      config: a serialized ConfigProto.
      function: the concrete function.
      args: a list of tensors.
      name: of a registered function with the same inputs and outputs, to be run in
        its place.
    """
    if not private("call_options"):
        with _without_graph_optimizer():
            return list(function(*args))
    return execute.execute(
        name or function.name.decode(),
        len(function.outputs),
        [*args, *function.captured_inputs],
        ("executor_type", "", "config_proto", config),
        context.context(),
    )
