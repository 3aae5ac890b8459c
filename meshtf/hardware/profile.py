"""A profile of hardware: what a device computes, reads and receives in a second.

    {
      "name": "h100",
      "memory": 85899345920,
      "matmul_flops": {"bfloat16": 989e12, "float32": 495e12},
      ...
      "sources": {"matmul_flops": "NVIDIA H100 data sheet, SXM, without sparsity"}
    }

Profiles are JSON files in `configs/hardware/`; `python -m meshtf calibrate` writes one for the
present machine. All values are for one device. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshtf.errors import ArgumentError, ParseError, explain_error, near_misses
from meshtf.names.arguments import as_path, refuse
from meshtf.names.source import Source

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class MeasuredMatmul:
    """The measured time of one matmul: `batch` products [m, k] times [k, n]."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    seconds: float

    @property
    def flops_per_second(self) -> float:
        """The measured rate."""
        return 2.0 * self.batch * self.m * self.n * self.k / self.seconds


@dataclasses.dataclass(frozen=True)
class MeasuredLocalStep:
    """A step of a model on one device, without communication, that was measured.

    Attributes:
      sizes: the sizes on this device of the dimensions of the model's matmuls.
      factor: the measured seconds divided by the predicted ones.
    """

    sizes: Mapping[str, float]
    factor: float


@dataclasses.dataclass(frozen=True)
class Link:
    """A level of the network between devices, such as NVLink within a host.

    Attributes:
      name: the name of the link.
      devices: how many devices it joins; None: all.
      bandwidth: the bytes that a device receives in a second, while all devices receive.
      latency: the seconds that a message of a few bytes takes.
      collectives: measured values in place of those, by kind of collective:
        {"all_reduce": {"latency": 1e-5, "bandwidth": 2e11}}; or by the size of the group,
        in lists of equal length: {"all_reduce": {"devices": [2, 8], "latency": [...], ...}}.
      ring: whether the messages of a collective wait for each other once for each device,
        in a ring; else once for each doubling of their count, in a tree.
    """

    name: str
    devices: int | None
    bandwidth: float
    latency: float
    collectives: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    ring: bool = False

    def rate(self, kind: str) -> tuple[float, float]:
        """Returns (latency, bandwidth) of a kind of collective."""
        measured = self.collectives.get(kind, {})
        latency = measured.get("latency", self.latency)
        bandwidth = measured.get("bandwidth", self.bandwidth)
        return latency, bandwidth

    def has_groups(self, kind: str) -> bool:
        """Returns whether a kind of collective was measured for groups of several sizes."""
        return "devices" in self.collectives.get(kind, {})

    def rate_of_group(self, kind: str, size: Any) -> tuple[Any, Any]:
        """Returns (latency, bandwidth) of a kind of collective in groups of `size` devices,
        a number or an array: between measured sizes, linear in the logarithm of the size.
        """
        measured = self.collectives[kind]
        sizes = np.log2(measured["devices"])
        x = np.log2(np.maximum(size, 1))
        latency = np.interp(x, sizes, measured["latency"])
        seconds_per_byte = np.interp(x, sizes, 1.0 / np.array(measured["bandwidth"]))
        return latency, 1.0 / seconds_per_byte


@dataclasses.dataclass(frozen=True)
class Hardware:
    """A device, and the links between devices.

    Attributes:
      name: the name of the profile.
      memory: the bytes of memory; None: unknown.
      matmul_flops: the peak FLOPs per second of matmuls, by dtype.
      matmul_efficiency: the fraction of the peak that large matmuls reach.
      matmul_tile: matmuls compute blocks of so many rows and columns; others are padded.
      vector_flops: the FLOPs per second of all other ops.
      memory_bandwidth: the bytes per second that ops read and write.
      memory_efficiency: the fraction of that bandwidth that ops reach.
      op_seconds: the time to start an op, however small it is.
      launch_seconds: the time in which the host launches an op, while the device runs the
        ops before it; 0: it does not count, since programs are compiled.
      call_seconds: the time of a call of a function that computes next to nothing.
      array_seconds: the further time of a call for each variable that it reads or writes.
      element_counts: numbers of elements for which `element_seconds` were measured.
      element_seconds: the time of an element of ops by name, one for each of
        `element_counts`: of the largest tensor that an op reads or writes. "elementwise" is
        the time to read or write four bytes, for all ops that are not named; without it,
        memory bandwidth and vector units decide.
      links: the links, from the fastest, between neighbours, to the one that joins all.
      fuses: whether elementwise ops are fused with the ops that read their results (XLA),
        so that these results are not written to memory.
      overlaps: whether collectives run while devices compute.
      platform: what XLA compiles programs for, which decides the kernels of attention: "cpu",
        "cuda" or "tpu"; "": any devices, or not XLA.
      shares_equal_work: whether what several positions compute identically is computed
        once for all: positions that share a device (the placed runtime).
      work_factors: measured time divided by the predicted one, by kind of work: "matmul",
        "update", "call", a kind of collective, "latency" of all collectives (if it is not
        named, a collective's latency has the factor of its kind), or the name of an op; "all"
        is that of kinds which are not named; see `calibration.adjust`.
      matmuls: measured matmuls.
      local_steps: measured steps of a model at local sizes: what all ops of a device take
        there, divided by what the rest of this profile predicts.
      sources: where each value is from, by the name of the attribute.
    """

    name: str
    matmul_flops: Mapping[str, float]
    memory_bandwidth: float
    links: tuple[Link, ...]
    memory: float | None = None
    matmul_efficiency: float = 1.0
    matmul_tile: int = 1
    vector_flops: float = float("inf")
    memory_efficiency: float = 1.0
    op_seconds: float = 0.0
    launch_seconds: float = 0.0
    call_seconds: float = 0.0
    array_seconds: float = 0.0
    element_counts: tuple[int, ...] = ()
    element_seconds: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fuses: bool = True
    overlaps: bool = True
    platform: str = ""
    shares_equal_work: bool = False
    work_factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    matmuls: tuple[MeasuredMatmul, ...] = ()
    local_steps: tuple[MeasuredLocalStep, ...] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Hardware({self.name!r}, {len(self.matmuls)} measured matmuls)"

    def peak_flops(self, dtype: str) -> float:
        """Returns the peak FLOPs per second of matmuls of a dtype; that of the slowest known
        dtype if this one is not listed.
        """
        slowest = min(self.matmul_flops.values())
        return self.matmul_flops.get(dtype, slowest)

    def work_factor(self, kind: str) -> float:
        """Returns measured seconds of a kind of work divided by predicted ones."""
        return self.work_factors.get(kind, self.work_factors.get("all", 1.0))

    def seconds_of_element(self, name: str, elements: Any) -> Any:
        """Returns the seconds of an element of an op that was measured, for a tensor of so
        many elements: between measured ones, linear in the logarithm of their number.
        """
        counts = np.log2(self.element_counts)
        logarithm = np.log2(np.maximum(elements, 1))
        return np.interp(logarithm, counts, self.element_seconds[name])

    def save(self, path: str | Path) -> None:
        """Writes the profile as a JSON file, under a temporary name that is then renamed."""
        target = Path(as_path("path", path))
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
        temporary.write_text(self.as_json(), encoding="utf-8")
        os.replace(temporary, target)

    def as_json(self) -> str:
        """Returns the profile as JSON, with a line for each measurement."""
        fields = dataclasses.asdict(self)
        lines = []
        for name, value in fields.items():
            if value == float("inf"):
                continue
            text = json.dumps(value, ensure_ascii=False)
            if name in ("matmuls", "links", "local_steps") and value:
                rows = ",\n    ".join(json.dumps(row) for row in value)
                text = f"[\n    {rows}\n  ]"
            elif name in ("sources", "work_factors") and value:
                text = json.dumps(value, indent=4, ensure_ascii=False)
                text = text.replace("\n}", "\n  }")
            lines.append(f"  {json.dumps(name)}: {text}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def as_hardware(value: object) -> Hardware:
    """Returns a profile of hardware.

    Args:
      value: a profile, the name of one in `configs/hardware/`, such as "h100", or the path
        of a JSON file.

    Raises:
      ArgumentError: the value is none of these, or there is no such profile.
      ParseError: the file is no profile.
    """
    if isinstance(value, Hardware):
        return value
    if not isinstance(value, (str, Path)):
        refuse("hardware", value, 'a profile, such as "h100", or the path of a file')
    path = Path(value)
    if not path.is_file():
        path = hardware_folder() / f"{value}.json"
    if not path.is_file():
        names = sorted(file.stem for file in hardware_folder().glob("*.json"))
        raise ArgumentError(
            explain_error(
                f"there is no profile of hardware {str(value)!r}.",
                close_to=near_misses(str(value), names) or "none of those",
                profiles=", ".join(names),
                source=Source.of_caller(),
                way_out="Name one of these, or give the path of a file that "
                "python -m meshtf calibrate wrote.",
            )
        )
    return _read(path)


def hardware_folder() -> Path:
    """Returns the folder of the profiles that come with the library."""
    installed_folder = _PACKAGE.parent / "transformer" / "configs" / "hardware"
    if installed_folder.is_dir():
        return installed_folder
    return _PACKAGE.parent / "configs" / "hardware"


def _read(path: Path) -> Hardware:
    """Returns the profile of a JSON file. Raises ParseError if it is none."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fields["element_counts"] = tuple(fields.get("element_counts", ()))
        fields["links"] = tuple(Link(**link) for link in fields.get("links", ()))
        fields["matmuls"] = tuple(
            MeasuredMatmul(**matmul) for matmul in fields.get("matmuls", ())
        )
        fields["local_steps"] = tuple(
            MeasuredLocalStep(**step) for step in fields.get("local_steps", ())
        )
        hardware = Hardware(**fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise ParseError(f"{path} is no profile of hardware: {error}") from None
    if not hardware.links or not hardware.matmul_flops:
        raise ParseError(
            f"{path} is no profile of hardware: it lacks links or matmul_flops."
        )
    return hardware


def proportional(hardware: Hardware) -> Hardware:
    """Returns hardware whose times are proportional to sizes, but for `op_seconds`, and never
    longer: measured ones are replaced by those of the best measured rates.
    """
    if not hardware.matmuls and not hardware.element_seconds:
        return hardware
    efficiency = hardware.matmul_efficiency
    for matmul in hardware.matmuls:
        share = matmul.flops_per_second / hardware.peak_flops(matmul.dtype)
        efficiency = max(efficiency, share)
    return dataclasses.replace(
        hardware,
        matmuls=(),
        matmul_efficiency=efficiency,
        matmul_tile=1,
        memory_bandwidth=float("inf"),
        vector_flops=float("inf"),
        element_seconds={
            name: [min(seconds)] * len(seconds)
            for name, seconds in hardware.element_seconds.items()
        },
    )
