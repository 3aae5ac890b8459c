"""A module of one partition, compiled for all devices of a mesh.

    call = ModuleCall("step", module, inputs, outputs, jax_mesh(mesh), donated=(0, 1))
    outputs = call(arrays)               # jax.Arrays; inputs 0 and 1 are gone

Only public interfaces of jax are used: `jax.export` describes a function of the same
signature, its module is replaced by ours, and `jax.shard_map` runs it on every device, with
the shards of that device.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from absl import logging

from meshtf.runtime.spmd.live.jax_module import load_jax

# Options for modules on CPUs that run only once or twice: optimizing their kernels with LLVM and
# the fusion emitters takes longer than it saves.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


class ModuleLayout(Protocol):
    """How the shards of an input or output of a module are one `jax.Array`.

    Attributes:
      local_sizes: the sizes of a shard in the module.
      shard_sizes: the sizes of a shard of the array, which may have further dimensions of
        size 1 in front.
      global_sizes: the sizes of the array.
      dtype: the data type.
      partition_spec: the `PartitionSpec` of the array.
      sharding: the `NamedSharding` of the array.
    """

    @property
    def local_sizes(self) -> tuple[int, ...]: ...
    @property
    def shard_sizes(self) -> tuple[int, ...]: ...
    @property
    def global_sizes(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def partition_spec(self) -> Any: ...
    @property
    def sharding(self) -> Any: ...


class ModuleCall:
    """A module that all devices of a mesh run.

    Args:
      name: the name of the program, for logs and profiles.
      module: the portable artifact.
      inputs: the layouts of its inputs, in order.
      outputs: the layouts of its outputs, in order.
      mesh: jax's mesh of the devices.
      donated: the indices of the inputs whose memory a call may overwrite.
      options: options of XLA.
    """

    def __init__(
        self,
        name: str,
        module: bytes,
        inputs: Sequence[ModuleLayout],
        outputs: Sequence[ModuleLayout],
        mesh: Any,
        donated: Collection[int] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._is_on_cpu = mesh.devices.flat[0].platform == "cpu"
        self._donated = sorted(donated)
        self._remaining = sorted(set(range(len(inputs))).difference(donated))
        # XLA takes letters, digits and "_"; a lambda has others.
        name = re.sub(r"\W+", "_", name).strip("_") or "program"
        exported = _as_exported(name, module, inputs, outputs, mesh)
        body = _on_all_devices(exported, inputs, outputs, mesh)

        def run_module(donated: Mapping[int, Any], remaining: Mapping[int, Any]) -> Any:
            arrays = {**donated, **remaining}
            return body(*(arrays[k] for k in range(len(inputs))))

        run_module.__name__ = name
        jax = load_jax()
        jitted = jax.jit(run_module, donate_argnums=(0,))
        shapes = [
            jax.ShapeDtypeStruct(x.global_sizes, x.dtype, sharding=x.sharding)
            for x in inputs
        ]
        lowered = jitted.lower(*self._split(shapes))
        start = time.perf_counter()
        self.compiled = lowered.compile(compiler_options=dict(options or {}))
        logging.info(
            "xla: %s compiled for %d devices in %.2f s",
            name,
            mesh.size,
            time.perf_counter() - start,
        )

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Runs the module on arrays with the layouts of its inputs; does not wait."""
        return list(self.compiled(*self._split(arrays)))

    @property
    def hlo(self) -> str:
        """The optimized HLO of one partition."""
        return str(self.compiled.as_text())

    @property
    def peak_memory(self) -> int:
        """The bytes of a device at the peak of a call, by XLA's plan of its buffers."""
        memory = self.compiled.memory_analysis()
        # XLA's peak of a CPU leaves temporary buffers out, and jax before 0.7 has only sums.
        if not self._is_on_cpu and hasattr(memory, "peak_memory_in_bytes"):
            return int(memory.peak_memory_in_bytes)
        outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
        return int(memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes)

    def _split(self, arrays: Sequence[Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        """Returns ({index: donated array}, {index: other array})."""
        return _at(self._donated, arrays), _at(self._remaining, arrays)


def _at(indices: Sequence[int], arrays: Sequence[Any]) -> dict[int, Any]:
    """Returns {index: array}."""
    return {index: arrays[index] for index in indices}


def _as_exported(
    name: str,
    module: bytes,
    inputs: Sequence[ModuleLayout],
    outputs: Sequence[ModuleLayout],
    mesh: Any,
) -> Any:
    """Returns the module as a `jax.export.Exported` of one device."""
    jax = load_jax()

    # The module of this function is replaced, so only its shapes and data types matter.
    def template(*_inputs: Any) -> Any:
        return tuple(jax.numpy.zeros(y.local_sizes, y.dtype) for y in outputs)

    template.__name__ = name
    shapes = [
        jax.ShapeDtypeStruct(x.local_sizes, x.dtype) for x in inputs if _has_elements(x)
    ]
    # By default jax leaves unused arguments out.
    jitted = jax.jit(template, keep_unused=True)
    platform = _export_platform(mesh.devices.flat[0])
    exported = jax.export.export(jitted, platforms=[platform])(*shapes)
    return dataclasses.replace(exported, mlir_module_serialized=module)


def _has_elements(layout: ModuleLayout) -> bool:
    """Returns whether an input is an argument of the module: TensorFlow takes tensors without
    elements, such as those of an empty batch, for constants.
    """
    return 0 not in layout.local_sizes


def _export_platform(device: Any) -> str:
    """Returns jax.export's name of the platform of a device."""
    if device.platform != "gpu":
        return str(device.platform)
    default = str(load_jax().export.default_export_platform())
    return default if default in ("cuda", "rocm") else "cuda"


def _on_all_devices(
    exported: Any,
    inputs: Sequence[ModuleLayout],
    outputs: Sequence[ModuleLayout],
    mesh: Any,
) -> Any:
    """Returns the function of global arrays that runs a module on every shard."""
    jax = load_jax()

    def body(*shards: Any) -> tuple[Any, ...]:
        local = [
            shard.reshape(x.local_sizes)
            for shard, x in zip(shards, inputs, strict=True)
            if _has_elements(x)
        ]
        results = exported.call(*local)
        return tuple(
            result.reshape(y.shard_sizes)
            for result, y in zip(results, outputs, strict=True)
        )

    return jax.shard_map(
        body,
        mesh=mesh,
        in_specs=tuple(x.partition_spec for x in inputs),
        out_specs=tuple(y.partition_spec for y in outputs),
        **_unchecked(),
    )


@functools.cache
def _unchecked() -> dict[str, bool]:
    """Returns the argument that turns off a check of `jax.shard_map`: it cannot prove which
    outputs of our module are replicated. The name of the argument depends on jax's version.
    """
    parameters = inspect.signature(load_jax().shard_map).parameters
    return {"check_vma" if "check_vma" in parameters else "check_rep": False}
