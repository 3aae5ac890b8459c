"""jax's descriptions of devices that this machine does not have, for programs that are
compiled ahead of time and never run here.

    devices = absent_devices("h100:8")           # eight H100s of one host
    devices = absent_devices("v5e:2x4")          # eight TPUs in a grid

The compilers are in the plugins of jax; no device is needed. `targets/` describes each GPU for
the CUDA compiler: the numbers of its data sheet, and those that XLA would ask the device for.
"""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from meshtf.errors import MeshError, explain_error, near_misses
from meshtf.hardware import Hardware, as_hardware
from meshtf.names.arguments import as_text
from meshtf.runtime.spmd.live.jax_module import load_jax

_TARGETS = Path(__file__).parent / "targets"
# {kind of TPU: {number of chips: the grid in which they are connected}}
_TPU_GRIDS = {
    "v5e": {
        1: "1x1",
        4: "2x2",
        8: "2x4",
        16: "4x4",
        32: "4x8",
        64: "8x8",
        256: "16x16",
    },
    "v5p": {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4"},
}
# {jax's name of a platform, which is also that of meshtf's extra: (the modules of its compiler, of
# which one suffices, the package that has it)}
_COMPILERS = {
    "cuda": (("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"), "jax-cuda12-pjrt"),
    "tpu": (("libtpu",), "libtpu"),
}


class _Topology(NamedTuple):
    """A topology in the terms of jax.

    Attributes:
      platform: "cuda" or "tpu".
      jax_name: jax's name of the topology.
      target: the file that describes a GPU; None for TPUs.
    """

    platform: str
    jax_name: str
    target: Path | None


def absent_devices(topology: str) -> list[Any]:
    """Returns jax's devices of a topology.

    Args:
      topology: the kind of device and the number of devices, such as "h100:8" or "v5e:8";
        for TPUs also the kind and the grid, such as "v5e:2x4".

    Raises:
      MeshError: the kind or the number is unknown, or jax has no compiler for it.
    """
    platform, jax_name, target = _read(topology)
    modules, package = _COMPILERS[platform]
    if not any(map(_is_installed, modules)):
        raise _no_compiler(
            topology, platform, f"the package {package} is not installed"
        )
    if platform == "cuda" and not _is_installed("jax_cuda12_plugin"):
        # The compiler alone, without CUDA's libraries, whose versions it would check.
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    load_jax()  # raises an error that says how to install jax, if it is missing
    from jax.experimental import topologies

    options: dict[str, Any] = {"platform": platform}
    if target is not None:
        options["target_config"] = target.read_text(encoding="utf-8")
        options["topology"] = jax_name
    try:
        return list(topologies.get_topology_desc(jax_name, **options).devices)
    except Exception as error:  # of a class that the plugin defines
        reason = str(error).splitlines()[0]
        raise _no_compiler(topology, platform, reason) from None


def hardware_of(topology: str) -> Hardware:
    """Returns the profile of the devices of a topology, such as that of an H100.

    Raises:
      ArgumentError: the kind of device has no profile.
    """
    kind, _, _ = topology.partition(":")
    return as_hardware(f"tpu_{kind}" if kind in _TPU_GRIDS else kind)


def _read(topology: str) -> _Topology:
    """Returns a topology as jax knows it.

    Raises:
      ArgumentError: it is no string.
      MeshError: the kind or the number is unknown.
    """
    as_text("topology", topology, 'a kind and a number of devices, such as "h100:8"')
    kind, _, size = topology.partition(":")
    gpus = sorted(path.stem for path in _TARGETS.glob("*.txtpb"))
    if kind in gpus and size.isdecimal():
        # jax's name of GPUs: slices x hosts of a slice x GPUs of a host.
        return _Topology("cuda", f"1x1x{size}", _TARGETS / f"{kind}.txtpb")
    grid = _tpu_grid(kind, size)
    if grid:
        return _Topology("tpu", f"{kind}:{grid}", None)
    kinds = [*gpus, *_TPU_GRIDS]
    raise MeshError(
        explain_error(
            f"the topology {topology!r} is unknown.",
            kinds=", ".join(kinds),
            close_to=near_misses(kind, kinds) or "none",
            way_out='Write a kind and a number of devices, such as "h100:8" or "v5e:8"; '
            'for TPUs also the grid, "v5e:2x4".',
        )
    )


def _is_installed(module: str) -> bool:
    """Returns whether a module can be found; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False


def _no_compiler(topology: str, platform: str, reason: str) -> MeshError:
    """Returns the error for a topology that nothing compiles for.

    Args:
      topology: the topology as the user wrote it.
      platform: "cuda" or "tpu".
      reason: what is missing.
    """
    _, package = _COMPILERS[platform]
    return MeshError(
        explain_error(
            f"nothing here compiles for {topology!r}.",
            jax=reason,
            way_out=f"Its compiler is the package {package}, which needs neither devices nor "
            f"their libraries: pip install {package}, for the version of jax that is here, or "
            f"all of pip install -e '.[{platform}]' in a checkout.",
        )
    )


def _tpu_grid(kind: str, size: str) -> str:
    """Returns the grid of TPUs, such as "2x4"; "" if the kind or the size is unknown.

    Args:
      kind: the kind of TPU.
      size: the number of chips, or a grid.
    """
    grids = _TPU_GRIDS.get(kind, {})
    if size.isdecimal():
        return grids.get(int(size), "")
    sides = size.split("x")
    is_grid = len(sides) > 1 and all(side.isdecimal() for side in sides)
    if grids and is_grid and math.prod(map(int, sides)) > 0:
        return size
    return ""
