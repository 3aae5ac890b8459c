"""An exported program: a StableHLO module, and a description of its inputs and results. A
replica is the device at one position of the mesh; all replicas run the module.

exported = mtf.export(train_step, x)
shards = exported.inputs[0].shard(array, exported.mesh)      # one for each replica
exported.save("step")                                        # a folder
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshtf.errors import PlanError
from meshtf.graph import Spec
from meshtf.mesh import Mesh, Placement
from meshtf.partition.cost import local_shape
from meshtf.runtime.storage.atomic_folder import atomic_folder
from meshtf.runtime.storage.sharding import (
    region,
    shard_keys,
    with_padding,
    without_padding,
)

# The files of a folder that `Export.save` writes.
_MANIFEST = "manifest.json"
_MODULE = "module.mlirbc"
_VALUES = "values.npz"


@dataclasses.dataclass(frozen=True)
class Port:
    """One input or result of a module.

    Attributes:
      name: the name of the variable, argument or result.
      kind: "parameter", "state" (a variable that is not trained), "argument" or
        "result".
      spec: the global shape and data type of the port.
      placement: the placement of the port on the mesh.
      output: for a variable that the program writes, the index of the module's output that
        is its new value; None for other ports.
    """

    name: str
    kind: str
    spec: Spec
    placement: Placement
    output: int | None = None

    def shard(self, array: Any, mesh: Mesh) -> list[Any]:
        """Returns each replica's shard of a global array. Equal shards are one object.

        Raises:
          PlanError: the port takes partial sums, which the global array does not
            determine.
        """
        if self.placement.partial:
            raise PlanError(
                f"input {self.name!r} is a partial result on each replica: "
                f"{self.placement}. Give each replica its term instead of a global array."
            )
        array = np.asarray(array)
        # One key for each replica; replicas with equal shards have equal keys.
        keys = shard_keys(self.placement, mesh)
        sizes = local_shape(self.spec.shape, self.placement, mesh).sizes
        shards = {
            key: np.require(
                with_padding(array[self._region(key, mesh)], sizes), requirements="C"
            )
            for key in dict.fromkeys(keys)
        }
        return [shards[key] for key in keys]

    def gather(self, shards: Sequence[Any], mesh: Mesh) -> Any:
        """Returns the global array of the replicas' shards, the inverse of `shard`."""
        array = np.empty(self.spec.shape.sizes, shards[0].dtype)
        shards_by_key = dict(zip(shard_keys(self.placement, mesh), shards))
        for key, shard in shards_by_key.items():
            region_of_shard = self._region(key, mesh)
            array[region_of_shard] = without_padding(shard, region_of_shard)
        return array

    def _region(
        self,
        key: tuple[int, ...],
        mesh: Mesh,
    ) -> tuple[slice, ...]:
        """Returns the slices of the global array that are the shard with this key."""
        return region(self.spec.shape, self.placement, key, mesh)


@dataclasses.dataclass(frozen=True, repr=False)
class Export:
    """A program as a StableHLO module of one replica.

    Attributes:
      module: the module, as StableHLO's portable bytecode.
      mesh: the mesh; replica i is the device at mesh position i.
      inputs: the inputs of the module, variables first.
      results: the results of the program, the first outputs of the module; the new values
        of variables come after them, see `Port.output`.
      values: the initial global value of each input that is no argument of a call, by
        name; {} for an abstract mesh.
      platform: the devices that the module is for: "cpu", "cuda", "tpu"; "": any.
    """

    module: bytes
    mesh: Mesh
    inputs: tuple[Port, ...]
    results: tuple[Port, ...]
    values: dict[str, Any]
    platform: str = ""

    def __repr__(self) -> str:
        return (
            f"<mtf.Export on {self.mesh}: {len(self.module):,} bytes, "
            f"{len(self.inputs)} inputs, {len(self.results)} results>"
        )

    def save(self, folder: str) -> None:
        """Writes a folder with `module.mlirbc`, `values.npz` and `manifest.json`. The folder
        appears only when it is complete.

        Raises:
          FileExistsError: the folder exists, and is not an earlier export.
        """
        with atomic_folder(folder, _MANIFEST, {_MODULE, _VALUES}) as unfinished_folder:
            with open(os.path.join(unfinished_folder, _MODULE), "wb") as module_file:
                module_file.write(self.module)
            np.savez(os.path.join(unfinished_folder, _VALUES), **self.values)
            with open(os.path.join(unfinished_folder, _MANIFEST), "w") as manifest_file:
                json.dump(self.manifest(), manifest_file, indent=1)

    def manifest(self) -> dict[str, Any]:
        """Returns the contents of `manifest.json`: mesh, inputs and results."""
        return {
            "axes": self.mesh.axes,
            "replicas": self.mesh.size,
            "platform": self.platform,
            "inputs": [_port_json(port, self.mesh) for port in self.inputs],
            "results": [_port_json(port, self.mesh) for port in self.results],
        }


def _port_json(port: Port, mesh: Mesh) -> dict[str, Any]:
    """Returns the entry of a port in the manifest, with lists of an item for each axis."""
    states = [port.placement[axis] for axis in mesh.axes]
    entry: dict[str, Any] = {
        "name": port.name,
        "kind": port.kind,
        "dtype": port.spec.dtype,
        "shape": [[d.name, d.size] for d in port.spec.shape],
        "sharding": [getattr(state, "dim", None) for state in states],
    }
    orders = port.placement.orders(mesh.axes)
    if orders:
        entry["order"] = orders
    if port.placement.partial:
        entry["partial"] = tuple(getattr(state, "kind", None) for state in states)
    if port.output is not None:
        entry["output"] = port.output
    return entry
