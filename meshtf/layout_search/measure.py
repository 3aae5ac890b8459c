"""The measured time of candidates: the program runs for a few steps on each mesh."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.function.without_running import as_function
from meshtf.graph import Tensor
from meshtf.layout_search.candidates import Candidate
from meshtf.layout_search.problem import Problem
from meshtf.mesh import Mesh

_ROUNDS = 5


def measured_seconds(
    problem: Problem, candidates: Sequence[Candidate], mesh_devices: Any
) -> list[float]:
    """Returns the seconds of a step of each candidate: the median over rounds, in each of which
    every candidate runs once, so that other load on the machine affects all of them.

    Args:
      problem: what is searched for; its arguments are arrays.
      candidates: the candidates.
      mesh_devices: the devices of the meshes, as `Mesh(devices=...)`.
    """
    calls = []
    for candidate in candidates:
        mesh = Mesh(devices=mesh_devices, **candidate.mesh_settings)
        function, args = as_function(
            problem.build(mesh, **candidate.choices), problem.args
        )
        _wait(function(*args))  # compiles it
        _wait(function(*args))
        calls.append((function, args))
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(_ROUNDS):
        for seconds, (function, args) in zip(times, calls):
            start = time.perf_counter()
            _wait(function(*args))
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def _wait(results: Any) -> None:
    """Returns once a call has ended: its results are on the host."""
    for result in tf.nest.flatten(results):
        if isinstance(result, Tensor):
            result.numpy()
