"""Runs a StableHLO module over many CPU devices, with XLA's collectives: no TPU, no
GPU, no jax.

TensorFlow compiles XLA's collectives on a CPU but does not run them there. The PJRT
client of jaxlib does: every replica is a device of its own, and arrays stay on the
devices between runs.

    runner = Runner(module, replicas=4)            # StableHLO, as bytes or as text
    w = runner.put([w0, w1, w2, w3])               # one slice for each replica
    for batch in batches:
      loss, w = runner.run([w, runner.put(batch)])
    runner.get(w)                                  # a NumPy array for each replica

An input that the module may overwrite (`tf.aliasing_output`) is used up by a run, as
`w` is above. jaxlib is in the extras "pjrt" and "test". Nothing else in meshtf imports
it; this does when used.
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

# Kernels of many small modules are run once or twice: what LLVM and the newer emitters
# do to make them fast costs more than it brings.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
_COLLECTIVE = re.compile(
    r" (all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)"
    r"(?:-start)?\(([^)]*)\)"
)
_ALIAS = re.compile(r"\((\d+), \{[\d, ]*\}(?:, (?:may|must)-alias)?\)")


class Kind(NamedTuple):
    """What one replica's slice of an input or a result looks like."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


class Buffer:
    """One array for each replica, on the replicas' devices."""

    def __init__(self, array: Any, kind: Kind, replicas: int):
        self.array = array
        self.kind = kind
        self.replicas = replicas

    @property
    def donated(self) -> bool:
        """Whether a run has used this up: its memory holds a result now."""
        return bool(self.array.is_deleted())

    def __repr__(self) -> str:
        return f"Buffer({self.replicas} x {self.kind}{', donated' if self.donated else ''})"


class Runner:
    """A compiled module of one replica, run by `replicas` CPU devices at once.

    `quick` compiles three times as fast or better, for modules run only once or twice:
    slower code, and sums that may round differently.

    Raises:
      ImportError: jaxlib is not installed.
      MeshError: `replicas` is not positive.
      PlanError: XLA cannot compile the module.
    """

    def __init__(self, module: bytes | str, replicas: int, *, quick: bool = False):
        if replicas < 1:
            raise MeshError(
                explain_error(
                    f"a module is run by one replica or more, not {replicas}."
                )
            )
        xla = _xla_client()
        self.replicas, self._devices = (
            replicas,
            tuple(_client(replicas).local_devices()),
        )
        devices = xla.DeviceList(self._devices)
        # "Manual": each device's array is a slice, of which the runtime must not think
        # anything. It would copy slice 0 to all devices if it were told that the slices
        # are equal.
        self._sharding = xla.GSPMDSharding(devices, xla.HloSharding.manual())
        try:
            self._program = _client(replicas).compile_and_load(
                module, devices, _options(replicas, quick)
            )
        except (
            RuntimeError,
            ValueError,
        ) as error:  # of XLA; the second, of the text's parser
            raise PlanError(
                explain_error(
                    "XLA cannot compile this module.",
                    replicas=replicas,
                    XLA=short_name(error),
                )
            ) from error
        hlo = self._program.hlo_modules()[0]
        self.hlo: str = hlo.to_string()
        proto = hlo.as_serialized_hlo_module_proto()
        shape = xla.XlaComputation(proto).program_shape()
        self.inputs = tuple(map(_kind, shape.parameter_shapes()))
        result = shape.result_shape()
        self.results = tuple(
            map(_kind, result.tuple_shapes() if result.is_tuple() else [result])
        )
        self.donates = donated_inputs(self.hlo)

    def put(self, slices: Sequence[Any]) -> Buffer:
        """Returns arrays, one for each replica, on the devices.

        Raises:
          MeshError: not one slice for each replica.
          ShapeError, DTypeError: slices that differ.
        """
        if len(slices) != self.replicas:
            raise MeshError(
                explain_error(
                    "every replica has one slice.",
                    replicas=self.replicas,
                    slices=len(slices),
                )
            )
        # Copies, since jaxlib fails on one memory that is given twice.
        arrays = [np.array(np.asarray(x), order="C") for x in slices]
        kinds = [Kind(x.shape, x.dtype) for x in arrays]
        for replica, kind in enumerate(kinds):
            if kind != kinds[0]:
                wrong = ShapeError if kind.shape != kinds[0].shape else DTypeError
                raise wrong(
                    explain_error(
                        "the slices of all replicas are alike.",
                        replica_0=kinds[0],
                        **{f"replica_{replica}": kind},
                    )
                )
        native = _xla_client()._xla
        copied = (
            native.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
        )  # the caller may write again
        array = native.batched_device_put(
            _aval(kinds[0]),
            self._sharding,
            arrays,
            self._devices,
            True,
            True,
            copied,
            True,
        )
        return Buffer(array, kinds[0], self.replicas)

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Runs the module once and returns its results, which stay on the devices.

        Raises:
          ShapeError, DTypeError: inputs that are not those of the module.
          MeshError: inputs of another number of replicas.
          PlanError: an input that an earlier run has used up.
        """
        self._check(inputs)
        results = self._program.execute_sharded([x.array for x in inputs])
        make = _xla_client().ArrayImpl
        return [
            Buffer(
                make(_aval(kind), self._sharding, arrays, True, True),
                kind,
                self.replicas,
            )
            for kind, arrays in zip(
                self.results, results.disassemble_into_single_device_arrays()
            )
        ]

    def get(self, buffer: Buffer) -> list[np.ndarray]:
        """Returns copies of the replicas' arrays.

        Raises:
          PlanError: a run has used the buffer up.
        """
        if buffer.donated:
            raise _used_up("this buffer", buffer)
        return [
            np.array(x._single_device_array_to_np_array_did_copy()[0])
            for x in buffer.array._arrays
        ]

    def __call__(self, *inputs: Sequence[Any]) -> list[list[np.ndarray]]:
        """Runs the module once from arrays to arrays: for each input and result, every
        replica's.
        """
        return [self.get(x) for x in self.run([self.put(x) for x in inputs])]

    def _check(self, inputs: Sequence[Buffer]) -> None:
        if len(inputs) != len(self.inputs):
            raise ShapeError(
                explain_error(
                    f"this module takes {len(self.inputs)} inputs, and {len(inputs)} "
                    "came.",
                    takes=", ".join(map(str, self.inputs)),
                    came=", ".join(str(x.kind) for x in inputs),
                )
            )
        for number, (x, wanted) in enumerate(zip(inputs, self.inputs)):
            facts = {"wanted": wanted, "came": x.kind}
            if x.kind.shape != wanted.shape:
                raise ShapeError(
                    explain_error(f"input {number} has another shape.", **facts)
                )
            if x.kind.dtype != wanted.dtype:
                raise DTypeError(
                    explain_error(f"input {number} has another data type.", **facts)
                )
            if x.replicas != self.replicas:
                raise MeshError(
                    explain_error(
                        f"input {number} lies on other devices.",
                        replicas=self.replicas,
                        input=x,
                    )
                )
            if x.donated:
                raise _used_up(f"input {number}", x)
            if (
                number in self.donates
                and sum(x.array is other.array for other in inputs) > 1
            ):
                raise PlanError(
                    explain_error(
                        f"input {number} is given twice, and this run overwrites it.",
                        input=x,
                        way_out="Put a second copy on the devices.",
                    )
                )


def collectives(hlo: str) -> Counter[tuple[str, int]]:
    """Returns how often each collective, with how many operands, stands in optimised
    HLO.

    XLA merges small all-reduces into one with many operands, so operands count as much
    as ops. An all-to-all has one for each member of a group, and what a loop holds is
    counted once.

        >>> collectives("%r = (f32[2], f32[]) all-reduce(%a, %b), replica_groups={{0,1}}")
        Counter({('all-reduce', 2): 1})
    """
    return Counter(
        (kind, operands.count("%")) for kind, operands in _COLLECTIVE.findall(hlo)
    )


def donated_inputs(hlo: str) -> frozenset[int]:
    """Returns which inputs a run of optimised HLO may overwrite with results.

    Example:

        >>> donated_inputs("HloModule m, input_output_alias={ {}: (2, {}, may-alias) }, x={}")
        frozenset({2})
    """
    head = hlo.split("\n", 1)[0].partition("input_output_alias={")[2]
    return frozenset(
        int(number) for number in _ALIAS.findall(head.partition("entry_computation")[0])
    )


def _xla_client() -> Any:
    try:
        from jaxlib import xla_client
    except ImportError as error:
        raise ImportError(
            explain_error(
                "modules are run by the PJRT client of jaxlib, which is not installed "
                "here.",
                way_out="pip install -e '.[test]', or jaxlib alone by the extra "
                '"pjrt": from Python 3.11 '
                "on.",
            )
        ) from error
    return xla_client


@functools.cache
def _client(devices: int) -> Any:
    """One for each number of devices: it holds threads, and buffers belong to their
    client.
    """
    return _xla_client().make_cpu_client(num_devices=devices)


def _options(replicas: int, quick: bool) -> Any:
    options = _xla_client().CompileOptions()
    options.num_replicas = replicas
    options.env_option_overrides = list(QUICK.items()) if quick else []
    return options


def _kind(shape: Any) -> Kind:
    return Kind(tuple(shape.dimensions()), np.dtype(shape.numpy_dtype()))


def _aval(kind: Kind) -> Any:
    """What jaxlib asks of a jax type."""
    return SimpleNamespace(shape=kind.shape, dtype=kind.dtype, weak_type=False)


def _used_up(what: str, buffer: Buffer) -> PlanError:
    return PlanError(
        explain_error(
            f"{what} is used up: an earlier run wrote a result into its memory.",
            buffer=buffer,
            way_out="Go on with that run's result, or put the array on the devices "
            "again.",
        )
    )


def short_name(error: Exception) -> str:
    return "\n".join(line[:200] for line in str(error).splitlines()[:6])
