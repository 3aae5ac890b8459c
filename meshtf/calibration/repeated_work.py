"""The seconds of one repetition of some work on all positions of a mesh.

    work = RepeatedWork(mesh, lambda x: x * 0.5, {"x": (array, "position;elements")})
    (seconds,) = measure([work])

The work is the body of a loop of one recorded function, and takes its own result, so that
nothing is optimized away. A run of 2n iterations and one of n differ by n repetitions: what
it takes to start the function drops out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.calibration.clock import WALL, Clock
from meshtf.function.function import function
from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.ops.control.cond_and_while_loop import while_loop
from meshtf.ops.elementwise.arithmetic import less
from meshtf.ops.reductions.reduce import reduce_max
from meshtf.ops.variables.fill import zeros
from meshtf.runtime.storage.asarray import asarray

# A run must take so long that the clock and the start of the function do not matter.
_RUN_SECONDS = 0.01
ROUNDS = 4
_MAX_ITERATIONS = 2**16


class RepeatedWork:
    """A function that repeats work on all positions of a mesh.

    Args:
      mesh: the mesh.
      body: the work: a function of the first input, and of the others by name, that returns
        the next value of the first one.
      inputs: name -> (array, dimensions, such as "position;m;k").
      clock: the clock by which it is measured.
      run_seconds: how long a run takes, at least.
    """

    def __init__(
        self,
        mesh: Mesh,
        body: Callable[..., Tensor],
        inputs: Mapping[str, tuple[np.ndarray, str]],
        clock: Clock = WALL,
        run_seconds: float = _RUN_SECONDS,
    ) -> None:
        carry_name, *_ = inputs
        dims = {name: dims for name, (_, dims) in inputs.items()}

        @function(mesh=mesh, count="", arrays=dims)
        def run(count: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
            """Returns the largest element of the result of `count` repetitions."""
            other_inputs = {name: x for name, x in arrays.items() if name != carry_name}

            def iterate(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
                return i + 1, body(x, **other_inputs)

            start = zeros(mesh, "", dtype="int32")
            _, result = while_loop(
                lambda i, _: less(i, count), iterate, (start, arrays[carry_name])
            )
            return reduce_max(result)

        self._run = run
        self._clock = clock
        self._run_seconds = run_seconds
        self._count = 1  # repetitions of a short run
        self._arrays = {
            name: asarray(mesh, array, _sized(array, names))
            for name, (array, names) in inputs.items()
        }

    def run(self, count: int) -> float:
        """Returns the seconds of a call with `count` repetitions."""
        start = self._clock.now()
        result: Any = self._run(np.int32(count), self._arrays)
        result.numpy()
        return self._clock.now() - start

    def prepare(self) -> None:
        """Compiles, and chooses how many repetitions take `run_seconds`, at least."""
        run_seconds = self._run_seconds
        self.run(1)  # compiles
        overhead = min(self.run(0) for _ in range(2))
        count = 1
        while count < _MAX_ITERATIONS:
            # The faster of two, since another program may have run in between.
            excess = min(self.run(count) for _ in range(2)) - overhead
            if excess >= run_seconds:
                break
            factor = run_seconds / max(excess, run_seconds / 16)
            count = min(_MAX_ITERATIONS, max(2 * count, int(count * factor)))
        self._count = count

    def difference(self) -> float:
        """Returns the seconds of 2n repetitions minus those of n, divided by n."""
        short = self.run(self._count)
        long = self.run(2 * self._count)
        return max(long - short, 1e-9) / self._count


def measure(works: Sequence[RepeatedWork], rounds: int = ROUNDS) -> list[float]:
    """Returns the seconds of one repetition of each work.

    All works run in turn, in several rounds, so that a slow moment of the machine meets all of
    them. A round in which the machine was slow is scaled to the others by the median over
    the works.

    Args:
      works: the works; they are compiled first.
      rounds: the count of rounds.
    """
    for work in works:
        work.prepare()
    times = np.array([[work.difference() for work in works] for _ in range(rounds)])
    usual = np.median(times, axis=0)
    scales = np.median(times / usual, axis=1, keepdims=True)
    return [float(x) for x in np.median(times / scales, axis=0)]


def _sized(array: np.ndarray, names: str) -> str:
    """Returns the dimensions of an array with their sizes: "m:4;k:8"."""
    pairs = zip(names.split(";"), array.shape, strict=True)
    return ";".join(f"{name}:{size}" for name, size in pairs)
