"""Runs an exported module on CPU devices, one for each replica.

    runner = Runner(exported)
    w = runner.put([w0, w1, w2, w3])               # one shard for each replica
    for batch in batches:
      loss, w = runner.run([w, runner.put(batch)])
    runner.get(w)                                  # a NumPy array for each replica

A run donates the inputs that the module writes, such as `w` above: jax deletes their arrays.
Unlike a live mesh, the runner takes and returns the shards of every replica unchanged: terms
of partial sums are not reduced, and replicas that should be equal may differ.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshtf.runtime.spmd.live.jax_host import cpu_mesh
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.module_call import QUICK, ModuleCall
from meshtf.runtime.spmd.live.stacked_layout import StackedLayout
from meshtf.runtime.spmd.module.exported_program import Export, Port

_AXIS = "replica"
_COLLECTIVE = re.compile(
    r" (all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)"
    r"(?:-start)?\(([^)]*)\)"
)
_ALIAS = re.compile(r"\((\d+), \{[\d, ]*\}(?:, (?:may|must)-alias)?\)")


class Runner:
    """A compiled module, which runs on one CPU device for each replica.

    Args:
      exported: the module, with its inputs and results.
      quick: whether to compile at least three times as fast, to slower code whose sums may
        round differently; for modules that run only once or twice.

    Attributes:
      donates: the indices of the inputs that a run overwrites.
    """

    def __init__(self, exported: Export, *, quick: bool = False) -> None:
        self._mesh = cpu_mesh(exported.mesh.size, _AXIS)
        # (index of the output, index of the input) of each variable that the module writes.
        written = sorted(
            (port.output, k)
            for k, port in enumerate(exported.inputs)
            if port.output is not None
        )
        inputs = [self._layout(port, exported) for port in exported.inputs]
        results = [self._layout(port, exported) for port in exported.results]
        self.donates = frozenset(k for _, k in written)
        self._call = ModuleCall(
            name="exported",
            module=exported.module,
            inputs=inputs,
            outputs=[*results, *(inputs[k] for _, k in written)],
            mesh=self._mesh,
            donated=self.donates,
            options=QUICK if quick else None,
        )
        self._sharding = load_jax().sharding.NamedSharding(
            self._mesh, load_jax().sharding.PartitionSpec(_AXIS)
        )

    @functools.cached_property
    def hlo(self) -> str:
        """The optimized HLO of one replica."""
        return self._call.hlo

    def put(self, shards: Sequence[Any]) -> Any:
        """Copies one array for each replica to its device; returns a `jax.Array`."""
        stacked = np.stack([np.asarray(shard) for shard in shards])
        return load_jax().device_put(stacked, self._sharding)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Runs the module once and returns its results, which stay on the devices."""
        return self._call(inputs)

    def get(self, array: Any) -> list[np.ndarray]:
        """Returns the replicas' arrays."""
        return list(np.array(array))

    def __call__(self, *inputs: Sequence[Any]) -> list[list[np.ndarray]]:
        """Runs the module once; each input and each result is a list with the array of
        every replica.
        """
        results = self.run([self.put(shards) for shards in inputs])
        return [self.get(array) for array in results]

    def _layout(self, port: Port, exported: Export) -> StackedLayout:
        """Returns the layout of an input or result."""
        return StackedLayout.of(port.spec, port.placement, exported.mesh, self._mesh)


def collectives(hlo: str) -> Counter[tuple[str, int]]:
    """Counts the collectives in optimized HLO by kind and number of operands.

    XLA merges small all-reduces into one with several operands, so the number of operands
    matters as well. An all-to-all has one operand for each member of a group. A
    collective in a loop is counted once.

        >>> collectives("%r = (f32[2], f32[]) all-reduce(%a, %b), replica_groups={{0,1}}")
        Counter({('all-reduce', 2): 1})
    """
    return Counter(
        (kind, operands.count("%")) for kind, operands in _COLLECTIVE.findall(hlo)
    )


def donated_inputs(hlo: str) -> frozenset[int]:
    """Returns the indices of the inputs that a run of optimized HLO may overwrite.

    Example:

        >>> donated_inputs("HloModule m, input_output_alias={ {}: (2, {}, may-alias) }, x={}")
        frozenset({2})
    """
    head = hlo.split("\n", 1)[0].partition("input_output_alias={")[2]
    return frozenset(
        int(index) for index in _ALIAS.findall(head.partition("entry_computation")[0])
    )
