"""How functions are called: attributes by name, and configurations of one call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute

from meshtf.runtime.tf_internals.register_function import Registered
from meshtf.runtime.tf_internals.switches import private

NOT_INLINED = {"_noinline": True}
IN_ANY_ORDER = {"_disable_acd": True}  # but that of inputs and control dependencies
COMPILED = "_XlaMustCompile"  # an attribute of functions and of calls
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
PLAIN_CONFIG = _config(False)
CPU_CONFIG = _config(True)


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


def call_with(config: bytes, function: Any, args: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a concrete function, each on the device that made it.

    Called by the raw op, a function brings all of them home to the first CPU.

    Args:
      config: a serialized ConfigProto.
      function: the concrete function.
      args: a list of tensors.
    """
    if not private("call_options"):
        with _without_graph_optimizer():
            return list(function(*args))
    return _execute(
        function.name.decode(),
        [*args, *function.captured_inputs],
        len(function.outputs),
        config,
    )


def _execute(name: str, args: list[Any], outputs: int, config: bytes) -> list[Any]:
    attributes = "executor_type", "", "config_proto", config
    return list(execute.execute(name, outputs, args, attributes, context.context()))


class ProgramFunction:
    """A program that can be called, from its FunctionDef.

    Args:
      definition: the FunctionDef.
      captured: tensors from outside, its last arguments.
      devices: of each result.
      config: a serialized ConfigProto that it runs with.
      kept: what its nodes refer to, and what goes with it.
    """

    def __init__(
        self,
        definition: Any,
        captured: Sequence[Any],
        devices: Sequence[str],
        config: bytes,
        kept: Any = None,
    ) -> None:
        self.captured = captured
        self.devices = devices
        self.config = config
        self.kept = kept
        self.registered = Registered(definition)
        self.traced: Any = None

    @property
    def definition(self) -> Any:
        """Its FunctionDef."""
        return self.registered.definition

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Returns the results, each on the device that made it."""
        if not private("call_options"):
            if self.traced is None:
                self.traced = self._traced(args)
            with _without_graph_optimizer():
                return list(self.traced(*args))
        arguments = [*args, *self.captured]
        name = self.registered.name
        outputs = len(self.devices)
        return _execute(name, arguments, outputs, self.config)

    def _traced(self, args: Sequence[Any]) -> Any:
        """Returns a function of TensorFlow that calls it.

        A function that is called by the op brings its results to the first CPU.
        """
        outputs = self.definition.signature.output_arg

        def call(*args: Any) -> list[Any]:
            results = tf.raw_ops.StatefulPartitionedCall(
                args=[*args, *self.captured],
                Tout=[tf.as_dtype(x.type) for x in outputs],
                f=tf.compat.v1.NameAttrList(name=self.registered.name),
            )
            return [_on(y, device) for y, device in zip(results, self.devices)]

        specs = [tf.TensorSpec(x.shape, x.dtype) for x in args]
        return tf.function(call, autograph=False).get_concrete_function(*specs)


def _on(x: Any, device: str) -> Any:
    with tf.device(device):
        return tf.identity(x)
