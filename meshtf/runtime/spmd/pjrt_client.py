"""Runs a StableHLO module with XLA's collectives on many CPU devices, without TPU, GPU
or jax.

TensorFlow compiles XLA's collectives on a CPU but does not run them there. The PJRT
client of jaxlib does: each replica is one of its CPU devices, and arrays stay on the
devices between runs.

    runner = Runner(module, replicas=4)            # StableHLO, as bytes or as text
    w = runner.put([w0, w1, w2, w3])               # one shard for each replica
    for batch in batches:
      loss, w = runner.run([w, runner.put(batch)])
    runner.get(w)                                  # a NumPy array for each replica

A run donates the inputs that the module may overwrite (`tf.aliasing_output`), such as `w`
above: they cannot be used again. jaxlib is in the extras "pjrt" and "test". Only this module
of meshtf imports it, when a `Runner` is created.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from meshtf.errors import DTypeError, MeshError, PlanError, ShapeError, explain_error

# Options for modules that run only once or twice: optimizing their kernels with LLVM and
# the fusion emitters takes longer than it saves.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
# A collective in HLO: its kind and its operands.
_COLLECTIVE = re.compile(
    r" (all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)"
    r"(?:-start)?\(([^)]*)\)"
)
# An input that shares its memory with an output, in the header of an HLO module: its index.
_ALIAS = re.compile(r"\((\d+), \{[\d, ]*\}(?:, (?:may|must)-alias)?\)")


class Kind(NamedTuple):
    """Shape and data type of one replica's shard of an input or a result."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


class Buffer:
    """One array for each replica, on the replicas' devices.

    Attributes:
      array: the arrays, as one array of jaxlib.
      kind: the shape and data type of one replica's array.
      replicas: the number of replicas.
    """

    def __init__(self, array: Any, kind: Kind, replicas: int):
        self.array = array
        self.kind = kind
        self.replicas = replicas

    @property
    def donated(self) -> bool:
        """Whether a run has overwritten this buffer's memory with a result."""
        return bool(self.array.is_deleted())

    def __repr__(self) -> str:
        return f"Buffer({self.replicas} x {self.kind}{', donated' if self.donated else ''})"


class Runner:
    """A compiled module of one replica, which `replicas` CPU devices run in parallel.

    Args:
      module: the StableHLO module, as bytecode or as text.
      replicas: the number of replicas.
      quick: whether to compile at least three times as fast, to slower code whose sums may
        round differently; for modules that run only once or twice.

    Attributes:
      replicas: the number of replicas.
      hlo: the optimized module, as HLO text.
      inputs: the kind of each input.
      results: the kind of each result.
      donates: the indices of the inputs that a run may overwrite.

    Raises:
      ImportError: jaxlib is not installed.
      MeshError: `replicas` is not positive.
      PlanError: XLA cannot compile the module.
    """

    def __init__(
        self,
        module: bytes | str,
        replicas: int,
        *,
        quick: bool = False,
    ):
        if replicas < 1:
            raise MeshError(
                explain_error(
                    f"a module is run by at least one replica, not {replicas}."
                )
            )
        xla = _xla_client()
        self.replicas = replicas
        self._devices = tuple(_client(replicas).local_devices())
        devices = xla.DeviceList(self._devices)
        # "Manual": the runtime assumes nothing about the arrays of the devices. If it
        # assumed that they are equal, it would copy array 0 to all devices.
        self._sharding = xla.GSPMDSharding(devices, xla.HloSharding.manual())
        try:
            self._program = _client(replicas).compile_and_load(
                module, devices, _options(replicas, quick)
            )
        except (RuntimeError, ValueError) as error:
            # The parser of text raises ValueError, the compiler RuntimeError.
            raise PlanError(
                explain_error(
                    "XLA cannot compile this module.",
                    replicas=replicas,
                    XLA=_first_lines(error),
                )
            ) from error
        hlo = self._program.hlo_modules()[0]
        self.hlo: str = hlo.to_string()
        proto = hlo.as_serialized_hlo_module_proto()
        program_shape = xla.XlaComputation(proto).program_shape()
        self.inputs = tuple(map(_kind_of, program_shape.parameter_shapes()))
        result = program_shape.result_shape()
        results = result.tuple_shapes() if result.is_tuple() else [result]
        self.results = tuple(map(_kind_of, results))
        self.donates = donated_inputs(self.hlo)

    def put(self, shards: Sequence[Any]) -> Buffer:
        """Copies one array for each replica to its device, and returns them.

        Args:
          shards: the array of each replica, in order.

        Raises:
          MeshError: there is not one shard for each replica.
          ShapeError: the shards have different shapes.
          DTypeError: the shards have different data types.
        """
        if len(shards) != self.replicas:
            raise MeshError(
                explain_error(
                    "every replica has one shard.",
                    replicas=self.replicas,
                    shards=len(shards),
                )
            )
        # Copies, since jaxlib fails if two devices get the same memory.
        arrays = [np.array(np.asarray(x), order="C") for x in shards]
        kinds = [Kind(x.shape, x.dtype) for x in arrays]
        for replica, kind in enumerate(kinds):
            if kind != kinds[0]:
                error = ShapeError if kind.shape != kinds[0].shape else DTypeError
                raise error(
                    explain_error(
                        "the shards of all replicas have one shape and data type.",
                        replica_0=kinds[0],
                        **{f"replica_{replica}": kind},
                    )
                )
        native = _xla_client()._xla
        # jaxlib copies the arrays during the call; the caller may change them afterwards.
        copied = native.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
        array = native.batched_device_put(
            _aval(kinds[0]),
            self._sharding,
            arrays,
            self._devices,
            True,  # committed: the arrays stay on these devices
            True,  # force_copy
            copied,
            True,  # enable_x64
        )
        return Buffer(array, kinds[0], self.replicas)

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Runs the module once and returns its results, which stay on the devices.

        Raises:
          ShapeError: the number or the shapes of inputs are not those of the module.
          DTypeError: their data types are not those of the module.
          MeshError: an input has another number of replicas.
          PlanError: an earlier run has overwritten an input.
        """
        self._check(inputs)
        results = self._program.execute_sharded([x.array for x in inputs])
        # The arrays of all devices for each result.
        arrays_of_results = results.disassemble_into_single_device_arrays()
        make_array = _xla_client().ArrayImpl
        buffers = []
        for kind, arrays in zip(self.results, arrays_of_results):
            array = make_array(
                _aval(kind), self._sharding, arrays, committed=True, _skip_checks=True
            )
            buffers.append(Buffer(array, kind, self.replicas))
        return buffers

    def get(self, buffer: Buffer) -> list[np.ndarray]:
        """Returns copies of the replicas' arrays.

        Raises:
          PlanError: a run has overwritten the buffer.
        """
        if buffer.donated:
            raise _donated_error("this buffer", buffer)
        return [
            np.array(x._single_device_array_to_np_array_did_copy()[0])
            for x in buffer.array._arrays
        ]

    def __call__(self, *inputs: Sequence[Any]) -> list[list[np.ndarray]]:
        """Returns the results of one run for NumPy arrays. Each input and each result is a
        list with the array of each replica.
        """
        buffers = [self.put(x) for x in inputs]
        results = self.run(buffers)
        return [self.get(x) for x in results]

    def _check(self, inputs: Sequence[Buffer]) -> None:
        """Checks the inputs of a run. Raises as `run` does."""
        if len(inputs) != len(self.inputs):
            raise ShapeError(
                explain_error(
                    f"this module takes {len(self.inputs)} inputs, but got "
                    f"{len(inputs)}.",
                    expected=", ".join(map(str, self.inputs)),
                    got=", ".join(str(x.kind) for x in inputs),
                )
            )
        for i, (x, expected) in enumerate(zip(inputs, self.inputs)):
            kinds = {"expected": expected, "got": x.kind}
            if x.kind.shape != expected.shape:
                raise ShapeError(
                    explain_error(f"input {i} has another shape.", **kinds)
                )
            if x.kind.dtype != expected.dtype:
                raise DTypeError(
                    explain_error(f"input {i} has another data type.", **kinds)
                )
            if x.replicas != self.replicas:
                raise MeshError(
                    explain_error(
                        f"input {i} is on other devices.",
                        replicas=self.replicas,
                        input=x,
                    )
                )
            if x.donated:
                raise _donated_error(f"input {i}", x)
            num_uses = sum(x.array is y.array for y in inputs)
            if i in self.donates and num_uses > 1:
                raise PlanError(
                    explain_error(
                        f"input {i} is passed twice, and this run overwrites it.",
                        input=x,
                        way_out="Put a second copy on the devices.",
                    )
                )


def collectives(hlo: str) -> Counter[tuple[str, int]]:
    """Returns the numbers of collectives in optimized HLO, by kind and number of operands.

    XLA merges small all-reduces into one with several operands, so the number of operands
    matters too. An all-to-all has one operand for each member of a group. A collective in
    a loop is counted once.

        >>> collectives("%r = (f32[2], f32[]) all-reduce(%a, %b), replica_groups={{0,1}}")
        Counter({('all-reduce', 2): 1})
    """
    counts: Counter[tuple[str, int]] = Counter()
    for kind, operands in _COLLECTIVE.findall(hlo):
        num_operands = operands.count("%")
        counts[kind, num_operands] += 1
    return counts


def donated_inputs(hlo: str) -> frozenset[int]:
    """Returns the indices of the inputs that a run of optimized HLO may overwrite.

    Example:

        >>> donated_inputs("HloModule m, input_output_alias={ {}: (2, {}, may-alias) }, x={}")
        frozenset({2})
    """
    header, _, _ = hlo.partition("\n")
    _, _, after_key = header.partition("input_output_alias={")
    aliases, _, _ = after_key.partition("entry_computation")
    return frozenset(int(index) for index in _ALIAS.findall(aliases))


def _xla_client() -> Any:
    """Returns the module `jaxlib.xla_client`. Raises ImportError if it is not installed."""
    try:
        from jaxlib import xla_client
    except ImportError as error:
        raise ImportError(
            explain_error(
                "modules are run by the PJRT client of jaxlib, which is not installed "
                "here.",
                way_out="pip install -e '.[test]', or only jaxlib by the extra "
                '"pjrt" (Python 3.11 or later).',
            )
        ) from error
    return xla_client


@functools.cache
def _client(devices: int) -> Any:
    """Returns a client with this number of CPU devices. It is cached, since it owns threads,
    and since a buffer can only be used by the client that created it.
    """
    return _xla_client().make_cpu_client(num_devices=devices)


def _options(replicas: int, quick: bool) -> Any:
    """Returns XLA's compile options for a `Runner`."""
    options = _xla_client().CompileOptions()
    options.num_replicas = replicas
    options.env_option_overrides = list(QUICK.items()) if quick else []
    return options


def _kind_of(shape: Any) -> Kind:
    """Returns the kind of a shape of XLA."""
    return Kind(tuple(shape.dimensions()), np.dtype(shape.numpy_dtype()))


def _aval(kind: Kind) -> Any:
    """Returns a stand-in for jax's abstract value (aval), with the attributes that jaxlib
    reads.
    """
    return SimpleNamespace(shape=kind.shape, dtype=kind.dtype, weak_type=False)


def _donated_error(name: str, buffer: Buffer) -> PlanError:
    """Returns the error for a buffer whose memory was overwritten."""
    return PlanError(
        explain_error(
            f"{name} was donated: an earlier run wrote a result into its memory.",
            buffer=buffer,
            way_out="Use the result of that run, or put the array on the devices again.",
        )
    )


def _first_lines(error: Exception) -> str:
    """Returns the first lines of an error message, each truncated to 200 characters."""
    return "\n".join(line[:200] for line in str(error).splitlines()[:6])
