"""An exported program: a StableHLO module with what hosts must know to run it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshtf.errors import PlanError
from meshtf.graph import Spec
from meshtf.mesh import Mesh, Partial, Placement
from meshtf.runtime.storage.atomic_folder import written_whole
from meshtf.runtime.storage.sharding import region, shard_keys

_MARK, _OTHERS = (
    "manifest.json",
    {"module.mlirbc", "values.npz"},
)  # the files of a folder


@dataclasses.dataclass(frozen=True)
class Port:
    """One input or result of a module.

    Attributes:
      name: of the variable or argument.
      kind: "parameter", "state" (a variable that is not trained), "argument" or
        "result".
      spec: shape and data type of the whole.
      placement: how it is cut.
      output: of a variable that is written: which output is its new value.
    """

    name: str
    kind: str
    spec: Spec
    placement: Placement
    output: int | None = None

    @property
    def partial(self) -> tuple[str | None, ...]:
        """For each axis: how replicas' slices along it make up the whole, if as "sum",
        "max", "min".
        """
        return tuple(s.kind if isinstance(s, Partial) else None for s in self.placement)

    def cut(self, whole: Any, mesh: Mesh) -> list[Any]:
        """Returns each replica's slice of a whole array; one object for equal slices.

        Raises:
          PlanError: slices are partial results, which no whole tells.
        """
        if any(self.partial):
            raise PlanError(
                f"input {self.name!r} is a partial result on each replica: "
                f"{self.partial}. Give each replica its own part instead of cutting a "
                "whole."
            )
        keys = shard_keys(self.placement, mesh)
        done = {
            key: np.require(
                np.asarray(whole)[self._region(key, mesh)], requirements="C"
            )
            for key in dict.fromkeys(keys)
        }
        return [done[key] for key in keys]

    def join(self, slices: Sequence[Any], mesh: Mesh) -> Any:
        """Returns the whole array that the replicas' slices make up."""
        whole = np.empty(self.spec.shape.sizes, slices[0].dtype)
        for key, x in dict(zip(shard_keys(self.placement, mesh), slices)).items():
            whole[self._region(key, mesh)] = x
        return whole

    def _region(self, key: tuple[int, ...], mesh: Mesh) -> tuple[slice, ...]:
        return region(self.spec.shape, self.placement, key, mesh)


@dataclasses.dataclass(frozen=True, repr=False)
class Export:
    """A program as a StableHLO module of one replica.

    Attributes:
      module: the module, as StableHLO's portable bytecode.
      mesh: whose positions the replicas are, in order.
      inputs: what the module takes, variables first.
      results: what it gives first; after them come new values of variables, see
        `Port.output`.
      values: the whole first value of each input that is no argument of a call; none of
        an abstract mesh.
    """

    module: bytes
    mesh: Mesh
    inputs: tuple[Port, ...]
    results: tuple[Port, ...]
    values: dict[str, Any]

    def __repr__(self) -> str:
        return (
            f"<mtf.Export on {self.mesh}: {len(self.module):,} bytes, "
            f"{len(self.inputs)} inputs, {len(self.results)} results>"
        )

    def save(self, folder: str) -> None:
        """Writes a folder: the module, `values.npz` and `manifest.json`; there as a
        whole or not.

        Raises:
          FileExistsError: the folder is there, and holds other things than an earlier
            export.
        """
        with written_whole(folder, _MARK, _OTHERS) as unfinished:
            with open(os.path.join(unfinished, "module.mlirbc"), "wb") as file:
                file.write(self.module)
            np.savez(os.path.join(unfinished, "values.npz"), **self.values)
            with open(os.path.join(unfinished, _MARK), "w") as text:
                json.dump(self.manifest(), text, indent=1)

    def manifest(self) -> dict[str, Any]:
        """Returns what a host must know, as plain data."""
        return {
            "axes": self.mesh.axes,
            "replicas": self.mesh.size,
            "inputs": [_plain(port) for port in self.inputs],
            "results": [_plain(port) for port in self.results],
        }


def _plain(port: Port) -> dict[str, Any]:
    return (
        {
            "name": port.name,
            "kind": port.kind,
            "dtype": port.spec.dtype,
            "shape": [[d.name, d.size] for d in port.spec.shape],
            "cut": [getattr(state, "dim", None) for state in port.placement],
        }
        | ({"partial": port.partial} if any(port.partial) else {})
        | ({} if port.output is None else {"output": port.output})
    )
