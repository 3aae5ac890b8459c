"""Options of function calls: private attributes of functions and calls, and calls with a
configuration that applies to one call only.

    outputs = call_with(plain_config(), concrete_function, tensors)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.private_module import PrivateModule
from meshtf.runtime.tf_internals.register_function import RegisteredFunction
from meshtf.runtime.tf_internals.switches import private

context = PrivateModule("tensorflow.python.eager.context")
execute = PrivateModule("tensorflow.python.eager.execute")

# An attribute of functions: TensorFlow does not inline the function.
NOT_INLINED = {"_noinline": True}
# An attribute of functions: TensorFlow adds no automatic control dependencies, so that ops
# may run in any order.
IN_ANY_ORDER = {"_disable_acd": True}
# The name of an attribute of functions and of calls: XLA compiles the function.
COMPILED = "_XlaMustCompile"
# The name of an attribute of calls: TensorFlow infers no shapes, since they are set already.
SHAPES_KNOWN = "_disable_call_shape_inference"


@functools.cache
def plain_config(cpus: bool = False) -> bytes:
    """Returns a serialized ConfigProto that disables the graph optimizer for one call.

    The optimizer delays the first step and improves nothing in segments. The user's other
    functions are still optimized.

    Args:
      cpus: whether all devices of the program are CPUs. Then TensorFlow neither searches
        all called functions for TPU ops, nor folds constants again for each device.
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


_OPTIMIZER_OFF = "disable_meta_optimizer"  # an option of tf.config.optimizer


@contextlib.contextmanager
def _without_graph_optimizer() -> Iterator[None]:
    """Turns the graph optimizer of the process off in a `with` block.

    Besides delaying the first step, the optimizer returned empty results for a loop
    within a loop whose backward pass recomputes it (TensorFlow 2.21).
    """
    options = tf.config.optimizer
    was_off = options.get_experimental_options().get(_OPTIMIZER_OFF, False)
    options.set_experimental_options({_OPTIMIZER_OFF: True})
    try:
        yield
    finally:
        options.set_experimental_options({_OPTIMIZER_OFF: was_off})


def call_with(config: bytes, function: Any, args: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a concrete function, each on the device that computed it.

    If it were called by the op `PartitionedCall`, all outputs would be copied to the
    first CPU.

    Args:
      config: a serialized ConfigProto.
      function: the concrete function.
      args: a list of tensors.
    """
    # `private`: whether the call may use private symbols of TensorFlow.
    if not private("call_options"):
        with _without_graph_optimizer():
            return list(function(*args))
    return _execute(
        name=function.name.decode(),
        args=[*args, *function.captured_inputs],
        num_outputs=len(function.outputs),
        config=config,
    )


def _execute(
    name: str,
    args: list[Any],
    num_outputs: int,
    config: bytes,
) -> list[Any]:
    """Calls a registered function by its name, and returns its outputs."""
    # Names and values of attributes in turn, as TensorFlow expects them.
    attributes = "executor_type", "", "config_proto", config
    outputs = execute.execute(name, num_outputs, args, attributes, context.context())
    return list(outputs)


class ProgramFunction:
    """A callable program, made from its protocol buffer, a FunctionDef.

    Args:
      definition: the FunctionDef of the program.
      captured: the tensors that the program captures, which are its last arguments.
      devices: the device of each result.
      config: the serialized ConfigProto with which the program is called.
      functions: the concrete functions that nodes of the program call; they must exist as
        long as the program.
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
        # The public way to call the program, traced at the first call.
        self.concrete_function: Any = None

    @property
    def definition(self) -> Any:
        """The FunctionDef of the program."""
        return self.registered.definition

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Returns the results, each on the device that computed it."""
        if not private("call_options"):
            if self.concrete_function is None:
                self.concrete_function = self._trace_call(args)
            with _without_graph_optimizer():
                return list(self.concrete_function(*args))
        return _execute(
            name=self.registered.name,
            args=[*args, *self.captured],
            num_outputs=len(self.devices),
            config=self.config,
        )

    def _trace_call(self, args: Sequence[Any]) -> Any:
        """Returns a concrete function that calls the program and sends each result to its
        device, since `StatefulPartitionedCall` copies all results to the first CPU.
        """
        output_args = self.definition.signature.output_arg

        def call(*args: Any) -> list[Any]:
            results = tf.raw_ops.StatefulPartitionedCall(
                args=[*args, *self.captured],
                Tout=[tf.as_dtype(x.type) for x in output_args],
                f=tf.compat.v1.NameAttrList(name=self.registered.name),
            )
            # Without outputs, the op returns a tf.Operation instead of an empty list.
            if not output_args:
                return []
            return [_copy_on(y, device) for y, device in zip(results, self.devices)]

        specs = [tf.TensorSpec(x.shape, x.dtype) for x in args]
        return tf.function(call, autograph=False).get_concrete_function(*specs)


def _copy_on(x: Any, device: str) -> Any:
    """Returns a tensor on a device, copied if necessary."""
    with tf.device(device):
        return tf.identity(x)
