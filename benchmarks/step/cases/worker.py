"""Runs one case of `benchmarks.step` in a separate process.

It is started by `rounds` with a case as JSON. It writes a line of JSON to standard output:
first the costs of its start, then an answer to each line of standard input, whose key is the
name of a method of `Runner`:

    {"steps": 3}      ->  seconds of wall and of processor time of each of three more steps
    {"losses": 5}     ->  losses of five steps from fixed variables and a new optimizer

The clock starts after the import of TensorFlow and JAX, when the data is ready, and stops
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

# The module, and its class or function, that builds the model of each runtime.
_MODELS = {
    "plain": ("plain_tf.models", "plain_model"),
    "towers": ("cases.data_parallel_tf", "DataParallelModel"),
    "mirrored": ("cases.data_parallel_tf", "DataParallelModel"),
    "dtensor": ("cases.dtensor", "DTensorModel"),
    "jax": ("cases.jax_language_model", "JaxLM"),
    "placed": ("cases.meshtf_model", "MeshModel"),
    "spmd": ("cases.meshtf_model", "MeshModel"),
}
# The libraries of runtimes that do not use TensorFlow alone.
_LIBRARIES = {"jax": ["jax"], "spmd": ["tensorflow", "jax"]}


def build(case: Case) -> tuple[Any, Callable[[], Any]]:
    """Returns a model with `assign`, and a function that makes its training step.

    Args:
      case: the case; its `grid` is the mesh as text, "" for plain TensorFlow on one device.
    """
    module_name, attribute = _MODELS[case.runtime if case.grid else "plain"]
    module = importlib.import_module(f"benchmarks.step.{module_name}")
    build_model = getattr(module, attribute)
    # Models without a mesh are built from a config only.
    model = build_model(case if case.grid else case.config)
    # These have two modes, with and without XLA. Plain TensorFlow is among them: cases
    # without a grid have the default runtime, "placed".
    if case.runtime == "placed":
        return model, lambda: model.train_step(case.jit)
    return model, model.train_step


class Runner:
    """Builds a case, takes its first steps, and answers requests: see the module.

    Attributes:
      start: the costs of the start, by name:
        "first", "first_cpu": seconds from the beginning to the end of the first step;
        "compile", "compile_cpu": the same from when the model is built;
        "memory": megabytes at the peak of the first three steps;
        "device_memory": megabytes on a device at the peak of a step, by XLA's plan of its
          buffers; only for programs that jax runs;
        "forecast": the peak that meshtf forecasts, if it is asked for, in megabytes.
    """

    def __init__(self, case: Case):
        self.case = case
        self.config = case.config
        self.batches = batches(case.config)
        _reset_peak()
        memory_before = _memory("VmRSS")
        # The clocks by the suffixes of their keys in `start`.
        clocks = {"": time.perf_counter, "_cpu": time.process_time}
        start_times = {suffix: clock() for suffix, clock in clocks.items()}
        self.model, make_step = build(case)
        built_times = {suffix: clock() for suffix, clock in clocks.items()}
        self.step = make_step()
        self.count = 0  # the number of steps done
        self.take_step()
        self.start = {}
        for suffix, clock in clocks.items():
            now = clock()
            self.start[f"first{suffix}"] = now - start_times[suffix]
            self.start[f"compile{suffix}"] = now - built_times[suffix]
        for _ in range(2):
            self.take_step()
        self.start["memory"] = _memory("VmHWM") - memory_before
        if case.runtime in _LIBRARIES:
            num_bytes = self.model.device_memory(self.batches[0])
            self.start["device_memory"] = num_bytes / 2**20
        if case.forecasts:
            self.start["forecast"] = self.model.forecast(self.batches[0]) / 2**20

    def take_step(self) -> float:
        """Takes one step and returns its loss; waits until it is computed."""
        batch = self.batches[self.count % len(self.batches)]
        self.count += 1
        return float(self.step(batch))

    def steps(self, count: int) -> dict[str, list[float]]:
        """Takes steps, and returns the seconds of each of them: of wall time ("wall") and of
        processor time ("cpu").
        """
        wall = []
        cpu = []
        for _ in range(count):
            wall_start = time.perf_counter()
            cpu_start = time.process_time()
            self.take_step()
            wall.append(time.perf_counter() - wall_start)
            cpu.append(time.process_time() - cpu_start)
        return {"wall": wall, "cpu": cpu}

    def losses(self, num_steps: int) -> dict[str, list[float]]:
        """Returns the losses of the first steps from fixed values of the variables; `assign`
        also sets the slots of the optimizer to zeros.
        """
        self.model.assign(fixed_values(self.config))
        timed_step = self.step
        self.count = 0
        # For times, plain TensorFlow draws the masks that are fastest for it; for losses, the
        # masks of meshtf.
        if not self.case.grid and self.config.dropout:
            self.step = self.model.train_step(self.case.jit, masks="hash")
        losses = [self.take_step() for _ in range(num_steps)]
        self.step = timed_step
        return {"losses": losses}


def _memory(field: str) -> float:
    """Returns a field of this process's status, in MB; Linux only, otherwise 0."""
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith(field))
    except OSError:
        return 0.0
    kilobytes = int(line.split()[1])
    return kilobytes / 1024


def _reset_peak() -> None:
    """Resets the peak of the resident set to its present size."""
    try:
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")  # see clear_refs in proc(5)
    except OSError:
        pass  # then the peak of the imports counts too, for all cases


def start_runner(text: str) -> Runner:
    """Returns the runner of a case, given as JSON. Its libraries are imported before the
    clock starts.
    """
    case = Case.load(text)
    for library in _LIBRARIES.get(case.runtime, ["tensorflow"]):
        importlib.import_module(library)
    return Runner(case)


if __name__ == "__main__":
    serve(start_runner)
