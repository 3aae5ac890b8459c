"""The seconds of one repetition of some work on all positions of a mesh.

    work = RepeatedWork(mesh, lambda x: x * 0.5, {"x": (array, "position;elements")})
    work.seconds()

The work is the body of a loop of one recorded function, and takes its own result, so that
nothing is optimized away. A run of 2n iterations and one of n differ by n repetitions: what
it takes to start the function drops out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshtf.function.function import function
from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.ops.control.cond_and_while_loop import while_loop
from meshtf.ops.elementwise.arithmetic import less
from meshtf.ops.reductions.reduce import reduce_max
from meshtf.ops.variables.fill import zeros
from meshtf.runtime.storage.asarray import asarray

# A run must take so long that the clock and the start of the function do not matter.
_RUN_SECONDS = 0.02
_ROUNDS = 8
_MAX_ITERATIONS = 2**16


class RepeatedWork:
    """A function that repeats work on all positions of a mesh.

    Args:
      mesh: the mesh.
      body: the work: a function of the inputs that returns the next value of the first one.
      inputs: name -> (array, dimensions, such as "position;m;k").
    """

    def __init__(
        self,
        mesh: Mesh,
        body: Callable[..., Tensor],
        inputs: Mapping[str, tuple[np.ndarray, str]],
    ) -> None:
        carry_name, *_ = inputs
        dims = {name: dims for name, (_, dims) in inputs.items()}

        @function(mesh=mesh, count="", arrays=dims)
        def run(count: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
            """Returns the largest element of the result of `count` repetitions."""
            others = [x for name, x in arrays.items() if name != carry_name]

            def iterate(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
                return i + 1, body(x, *others)

            start = zeros(mesh, "", dtype="int32")
            _, result = while_loop(
                lambda i, _: less(i, count), iterate, (start, arrays[carry_name])
            )
            return reduce_max(result)

        self._run = run
        self._arrays = {
            name: asarray(mesh, array, _sized(array, names))
            for name, (array, names) in inputs.items()
        }

    def run(self, count: int) -> float:
        """Returns the wall time of a call with `count` repetitions."""
        start = time.perf_counter()
        result: Any = self._run(np.int32(count), self._arrays)
        result.numpy()
        return time.perf_counter() - start

    def seconds(
        self, rounds: int = _ROUNDS, run_seconds: float = _RUN_SECONDS
    ) -> float:
        """Returns the seconds of one repetition: the difference between the fastest runs of
        2n and of n repetitions, so that other programs on the machine matter little.

        Args:
          rounds: how often both are run.
          run_seconds: the least seconds that n repetitions take.
        """
        self.run(1)  # compiles
        overhead = min(self.run(0) for _ in range(2))
        count = 1
        while count < _MAX_ITERATIONS:
            excess = self.run(count) - overhead
            if excess >= run_seconds:
                break
            factor = run_seconds / max(excess, run_seconds / 16)
            count = min(_MAX_ITERATIONS, max(2 * count, int(count * factor)))
        short = []
        long = []
        for _ in range(rounds):
            short.append(self.run(count))
            long.append(self.run(2 * count))
        return max(min(long) - min(short), 1e-9 * count) / count


def _sized(array: np.ndarray, names: str) -> str:
    """Returns the dimensions of an array with their sizes: "m:4;k:8"."""
    pairs = zip(names.split(";"), array.shape, strict=True)
    return ";".join(f"{name}:{size}" for name, size in pairs)
