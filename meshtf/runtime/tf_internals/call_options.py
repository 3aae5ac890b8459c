"""Options of function calls: attributes by name, and the configuration of one call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute

from meshtf.runtime.tf_internals.register_function import RegisteredFunction
from meshtf.runtime.tf_internals.switches import private

NOT_INLINED = {"_noinline": True}
IN_ANY_ORDER = {"_disable_acd": True}  # no automatic control dependencies
COMPILED = "_XlaMustCompile"  # an attribute of functions and of calls
SHAPES_KNOWN = "_disable_call_shape_inference"  # an attribute of calls


def _config(cpus: bool) -> bytes:
    """Returns a serialized session configuration that disables the graph optimizer.

    The optimizer delays the first step and improves nothing in segments. Disabled here,
    it still optimizes the user's other functions.

    Args:
      cpus: whether all devices of the program are CPUs. Then TensorFlow also does not
        search all called functions for TPU ops, and does not fold constants again for
        each device.
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
    """Within the context, functions run without the graph optimizer.

    Besides delaying the first step, the optimizer returned empty results for a loop
    within a loop whose backward pass recomputes it (TensorFlow 2.21).
    """
    options = tf.config.optimizer
    before = options.get_experimental_options().get(_OPTIMIZER_OFF, False)
    options.set_experimental_options({_OPTIMIZER_OFF: True})
    try:
        yield
    finally:
        options.set_experimental_options({_OPTIMIZER_OFF: before})


def call_with(config: bytes, function: Any, args: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a concrete function, each on the device that computed it.

    If it were called by the op `PartitionedCall`, all outputs would be copied to the
    first CPU.

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


def _execute(
    name: str,
    args: list[Any],
    outputs: int,
    config: bytes,
) -> list[Any]:
    attributes = "executor_type", "", "config_proto", config
    return list(execute.execute(name, outputs, args, attributes, context.context()))


class ProgramFunction:
    """A callable program, given its FunctionDef.

    Args:
      definition: the FunctionDef.
      captured: the tensors that it captures, its last arguments.
      devices: the device of each result.
      config: the serialized ConfigProto of its calls.
      functions: the concrete functions that its nodes call; they must exist as long as
        the program.
    """

    def __init__(
        self,
        definition: Any,
        captured: Sequence[Any],
        devices: Sequence[str],
        config: bytes,
        functions: Sequence[Any] = (),
    ) -> None:
        self.captured = captured
        self.devices = devices
        self.config = config
        self.functions = functions
        self.registered = RegisteredFunction(definition)
        self.traced: Any = None

    @property
    def definition(self) -> Any:
        """Its FunctionDef."""
        return self.registered.definition

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Returns the results, each on the device that computed it."""
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
        """Returns a concrete function that calls the program and sends each result to its
        device; `StatefulPartitionedCall` copies them to the first CPU.
        """
        outputs = self.definition.signature.output_arg

        def call(*args: Any) -> list[Any]:
            results = tf.raw_ops.StatefulPartitionedCall(
                args=[*args, *self.captured],
                Tout=[tf.as_dtype(x.type) for x in outputs],
                f=tf.compat.v1.NameAttrList(name=self.registered.name),
            )
            if not outputs:
                return []  # the op gives the tf.Operation, not an empty list
            return [_on(y, device) for y, device in zip(results, self.devices)]

        specs = [tf.TensorSpec(x.shape, x.dtype) for x in args]
        return tf.function(call, autograph=False).get_concrete_function(*specs)


def _on(x: Any, device: str) -> Any:
    with tf.device(device):
        return tf.identity(x)
