"""Runs one case of `benchmarks.step` in a separate process.

`benchmarks.harness.rounds` starts it, with a case as JSON in its first argument. It writes
lines of JSON to standard output: first the costs of its start (`Runner.start_costs`), then
an answer to each request, a line of standard input:

    {"steps": 3}      ->  seconds of wall and of processor time of each of three more steps
    {"losses": 5}     ->  losses of five steps from fixed variables and a new optimizer

A request names a method of `Runner` and has its argument. Seconds of the start are counted
from when TensorFlow and JAX are imported and the data is ready.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.harness.case_server import serve
from benchmarks.harness.clocks import Seconds, now
from benchmarks.harness.process_memory import memory, reset_peak
from benchmarks.step.cases.cases import Case
from benchmarks.step.cases.feeds import Batch, batches, fixed_values
from benchmarks.step.cases.sizes import Config


class ModelBuilder(NamedTuple):
    """A class or a function that builds a model. It is imported when a case needs it, so
    that JAX need not be installed for other cases.

    Attributes:
      module: the name of its module in `benchmarks.step`.
      name: its name in the module.
    """

    module: str
    name: str


_DATA_PARALLEL = ModelBuilder("cases.data_parallel_tf", "DataParallelModel")
_MESHTF = ModelBuilder("cases.meshtf_model", "MeshModel")
_PLAIN = ModelBuilder("plain_tf.models", "plain_model")  # one device, without a mesh
# The builder for each runtime (the program that runs the step) on a mesh.
_BUILDERS = {
    "towers": _DATA_PARALLEL,
    "mirrored": _DATA_PARALLEL,
    "dtensor": ModelBuilder("cases.dtensor", "DTensorModel"),
    "jax": ModelBuilder("cases.jax_language_model", "JaxLM"),
    "placed": _MESHTF,
    "spmd": _MESHTF,
}
# The libraries whose import is not timed, for runtimes that need more than TensorFlow.
LIBRARIES = {"jax": ["jax"], "spmd": ["tensorflow", "jax"]}


def build(case: Case) -> tuple[Any, Callable[[], Any]]:
    """Returns a model with a method `assign`, and a function that makes its training step.

    Args:
      case: the case; its `grid` is the mesh as text, "" for plain TensorFlow on one device.
    """
    builder = _BUILDERS[case.runtime] if case.grid else _PLAIN
    module = importlib.import_module(f"benchmarks.step.{builder.module}")
    build_model = getattr(module, builder.name)
    # Models without a mesh are built from a config only.
    model = build_model(case if case.grid else case.config)
    # These have two modes, with and without XLA. Plain TensorFlow is among them: cases
    # without a grid have the default runtime, "placed".
    if case.runtime == "placed":
        return model, lambda: model.train_step(case.jit)
    return model, model.train_step


class Runner:
    """A case that has taken its first three steps, and answers requests.

    Args:
      case: the case.
      build_case: returns the model of a case and a function that makes its training step, as
        `build` does.
      make_batches: returns the batches of a config.
      make_values: returns the values of the variables for losses that are compared, of a config.

    Attributes:
      model: the model.
      step: the function of a batch that takes a training step and returns the loss.
      steps_done: the number of steps done, which chooses the next batch.
      start_costs: the costs of the start, by name:
        "first", "first_cpu": seconds of building the model, with its variables, and of its
          first step;
        "compile", "compile_cpu": seconds of the first step, with tracing and compiling, from
          when the model is built;
        "memory": the largest growth of the resident memory until after the third step, in
          MiB;
        "device_memory": the memory of a device at the peak of a step, by XLA's plan of its
          buffers, in MiB; of programs that jax runs;
        "forecast": the peak of memory that meshtf forecasts, in MiB; of some cases only.
        Times with "_cpu" are processor time, others are wall time.
    """

    def __init__(
        self,
        case: Any,
        build_case: Callable[[Any], tuple[Any, Callable[[], Any]]] = build,
        make_batches: Callable[[Config], list[Batch]] = batches,
        make_values: Callable[[Config], Batch] = fixed_values,
    ):
        self.case = case
        self.config = case.config
        self.make_values = make_values
        self.batches = make_batches(case.config)
        reset_peak()
        memory_before = memory("VmRSS")  # the resident memory now
        start = now()
        self.model, make_step = build_case(case)
        built = now()
        self.step = make_step()
        self.steps_done = 0
        self.take_step()
        end = now()
        self.start_costs = {
            "first": end.since(start).wall,
            "first_cpu": end.since(start).processor,
            "compile": end.since(built).wall,
            "compile_cpu": end.since(built).processor,
        }
        for _ in range(2):
            self.take_step()
        peak = memory("VmHWM")  # the largest resident memory since `reset_peak`
        self.start_costs["memory"] = peak - memory_before
        if case.runtime in LIBRARIES:
            num_bytes = self.model.device_memory(self.batches[0])
            self.start_costs["device_memory"] = num_bytes / 2**20
        if case.forecasts:
            self.start_costs["forecast"] = self.model.forecast(self.batches[0]) / 2**20

    def take_step(self) -> float:
        """Takes one step and returns its loss; waits until it is computed."""
        batch = self.batches[self.steps_done % len(self.batches)]
        self.steps_done += 1
        return float(self.step(batch))

    def steps(self, count: int) -> dict[str, list[float]]:
        """Takes steps, and returns the seconds of each of them: of wall time ("wall") and of
        processor time ("cpu").
        """
        times = [self._time_step() for _ in range(count)]
        return {
            "wall": [seconds.wall for seconds in times],
            "cpu": [seconds.processor for seconds in times],
        }

    def _time_step(self) -> Seconds:
        """Takes a step and returns its seconds."""
        start = now()
        self.take_step()
        return now().since(start)

    def losses(self, num_steps: int) -> dict[str, list[float]]:
        """Returns the losses of the first steps from fixed values of the variables.

        Cases are compared by these losses, so all must draw the same dropout masks. Plain
        TensorFlow is timed with the masks that are fastest for it; for its losses it takes
        another step function, with meshtf's masks.
        """
        self.model.assign(self.make_values(self.config))  # also resets the optimizer
        self.steps_done = 0
        timed_step = self.step
        if not self.case.grid and self.config.dropout:
            self.step = self.model.train_step(self.case.jit, masks="hash")
        losses = [self.take_step() for _ in range(num_steps)]
        self.step = timed_step
        return {"losses": losses}


def start_runner(text: str) -> Runner:
    """Returns the runner of a case, given as JSON. Its libraries are imported before the
    clock starts.
    """
    case = Case.load(text)
    for library in LIBRARIES.get(case.runtime, ["tensorflow"]):
        importlib.import_module(library)
    return Runner(case)


if __name__ == "__main__":
    serve(start_runner)
