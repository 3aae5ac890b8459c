"""Runs one case of `benchmarks.step` in a separate process.

It is started by `rounds` with a case as JSON. It writes a line of JSON to standard output:
first the costs of its start, then an answer to each line of standard input:

    {"steps": 3}      ->  seconds of wall and of processor time of each of three more steps
    {"losses": 5}     ->  losses of five steps from fixed variables and a new optimizer

The clock starts after the import of TensorFlow (or JAX), when the data is ready, and stops
at the first loss. "compile" starts when the variables exist: tracing, exporting, compiling
and the first step. Memory is the peak resident set until after the third step, minus that
before the start.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness.case_server import serve
from benchmarks.step.cases.cases import Case
from benchmarks.step.cases.feeds import batches, fixed_values

_MODELS = {
    "plain": ("plain_tf.models", "plain_model"),
    "towers": ("cases.data_parallel_tf", "ByHand"),
    "mirrored": ("cases.data_parallel_tf", "ByHand"),
    "dtensor": ("cases.dtensor", "DTensorModel"),
    "jax": ("cases.jax_language_model", "JaxLM"),
    "placed": ("cases.meshtf_model", "MeshModel"),
    "spmd": ("cases.exported", "ExportedModel"),
}
_IMPORTED = {"jax": "jax", "spmd": "jax"}


def build(case: Case) -> tuple[Any, Callable[[], Any]]:
    """Returns a model with `assign`, and a function that makes its training step."""
    module, name = _MODELS[case.runtime if case.grid else "plain"]
    model = getattr(importlib.import_module(f"benchmarks.step.{module}"), name)(
        case if case.grid else case.config
    )
    if case.runtime == "placed":  # plain TensorFlow and meshtf know both modes
        return model, lambda: model.train_step(case.jit)
    return model, model.train_step


class Runner:
    """A model that is built and can take steps."""

    def __init__(self, case: Case):
        self.case, self.config = case, case.config
        self.batches = batches(case.config)
        _reset_peak()
        before = _memory("VmRSS")
        clocks = {"": time.perf_counter, "_cpu": time.process_time}
        start = {name: clock() for name, clock in clocks.items()}
        self.model, make = build(case)
        built = {name: clock() for name, clock in clocks.items()}
        self.step = make()
        self.count = 0
        self.one()
        self.start = {
            prefix + name: clock() - since[name]
            for name, clock in clocks.items()
            for prefix, since in (("first", start), ("compile", built))
        }
        for _ in range(2):
            self.one()
        self.start["memory"] = _memory("VmHWM") - before
        if case.forecasts:
            self.start["forecast"] = self.model.forecast(self.batches[0]) / 2**20

    def one(self) -> float:
        """Takes one step and returns its loss; waits until it is computed."""
        batch = self.batches[self.count % len(self.batches)]
        self.count += 1
        return float(self.step(batch))

    def steps(self, count: int) -> dict[str, list[float]]:
        """Takes steps and returns the seconds of each."""
        wall = []
        cpu = []
        for _ in range(count):
            start = time.perf_counter()
            processor = time.process_time()
            self.one()
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - processor)
        return {"wall": wall, "cpu": cpu}

    def losses(self, num_steps: int) -> dict[str, list[float]]:
        """Returns the losses of the first steps from fixed values of the variables."""
        self.model.assign(fixed_values(self.config))
        own = self.step
        self.count = 0
        if (
            not self.case.grid and self.config.dropout
        ):  # it times masks that are faster for it
            self.step = self.model.train_step(self.case.jit, masks="hash")
        losses = [self.one() for _ in range(num_steps)]
        self.step = own
        return {"losses": losses}


def _memory(field: str) -> float:
    """Returns a line of this process's status, in MB; Linux only, otherwise 0."""
    try:
        with open("/proc/self/status") as status:
            return (
                next(int(line.split()[1]) for line in status if line.startswith(field))
                / 1024
            )
    except OSError:
        return 0.0


def _reset_peak() -> None:
    """Resets the peak of the resident set to its present size."""
    try:
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
    except OSError:
        pass  # then the peak of the imports counts too, for all cases


def start(text: str) -> Runner:
    """Returns the runner of a case; its library is imported before the clock starts."""
    case = Case.load(text)
    importlib.import_module(_IMPORTED.get(case.runtime, "tensorflow"))
    return Runner(case)


if __name__ == "__main__":
    serve(start)
