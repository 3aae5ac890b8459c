"""One case in a process of its own: it starts, tells what starting cost, then steps on request.

Started by `rounds` with a case as JSON. It answers with one line of JSON on standard output: first
what the start cost, then the answer to each line of standard input:

    {"steps": 3}      ->  seconds of wall time and of processor time of each of three more steps
    {"losses": 5}     ->  losses of five steps from fixed variables and a new optimizer

The clock starts after TensorFlow's (JAX's) import with the data ready, and stops when the first
loss is there; "compile" counts from where the variables are there: tracing, exporting, compiling
and the first step. Memory is the highest resident set until after the third step, less that before
the start.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.lm_plain import Config
from benchmarks.serving import serve

_BATCHES = 4
_IMPORTED = {"jax": "jax", "spmd": "jaxlib.xla_client", "placed": "tensorflow"}


def batches(config: Config) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns tokens and labels `[batch, length]`: each token is mostly told by the one before."""
  rng = np.random.default_rng(0)
  follows = rng.permutation(config.vocab)
  tokens = np.empty([_BATCHES, config.batch, config.length + 1], np.int32)
  tokens[..., 0] = rng.integers(0, config.vocab, tokens.shape[:2])
  for i in range(config.length):
    told = rng.random(tokens.shape[:2]) < 0.9
    other = rng.integers(0, config.vocab, told.shape)
    tokens[..., i + 1] = np.where(told, follows[tokens[..., i]], other)
  return [(np.ascontiguousarray(t[:, :-1]), np.ascontiguousarray(t[:, 1:])) for t in tokens]


def fixed_values(config: Config) -> dict[str, np.ndarray]:
  """Returns values of all variables, the same for every case."""
  rng = np.random.default_rng(1)
  values = {}
  for name, shape in config.shapes().items():
    draw = rng.standard_normal(shape, np.float32)
    values[name] = (1 + 0.1 * draw if name.endswith("scale") else
                    draw * (0.5 * config.fan_in(name) ** -0.5))
  return values


def build(case: Case) -> tuple[Any, Callable[[], Any]]:
  """Returns a model with `assign`, and what makes a function of tokens and labels: one step."""
  if case.runtime == "jax":
    from benchmarks.lm_jax import JaxLM

    model: Any = JaxLM(case)
    return model, model.train_step
  if case.runtime == "spmd":
    from benchmarks.lm_spmd import SpmdLM
    model = SpmdLM(case)
    return model, model.train_step
  if case.grid:
    from benchmarks.lm_mesh import MeshLM  # here: importing meshtf is part of starting it
    model = MeshLM(case)
    return model, lambda: model.train_step(case.jit)
  from benchmarks.lm_plain import PlainLM
  model = PlainLM(case.config)
  return model, lambda: model.train_step(case.jit)


class Runner:
  """A case that has been built, and how it is made to step."""

  def __init__(self, case: Case):
    self.case, self.config = case, case.config
    self.batches = batches(case.config)
    _reset_peak()
    before = _memory("VmRSS")
    clocks = {"": time.perf_counter, "_cpu": time.process_time}
    start = {name: clock() for name, clock in clocks.items()}
    self.model, make = build(case)
    built = {name: clock() for name, clock in clocks.items()}
    self.step, self.count = make(), 0
    self.one()
    self.start = {what + name: clock() - since[name] for name, clock in clocks.items()
                  for what, since in (("first", start), ("compile", built))}
    for _ in range(2):
      self.one()
    self.start["memory"] = _memory("VmHWM") - before

  def one(self) -> float:
    """Takes one step and returns its loss, which waits for it."""
    tokens, labels = self.batches[self.count % _BATCHES]
    self.count += 1
    return float(self.step(tokens, labels))

  def steps(self, number: int) -> dict[str, list[float]]:
    """Takes steps and returns what each of them took."""
    wall, cpu = [], []
    for _ in range(number):
      start, processor = time.perf_counter(), time.process_time()
      self.one()
      wall.append(time.perf_counter() - start)
      cpu.append(time.process_time() - processor)
    return {"wall": wall, "cpu": cpu}

  def losses(self, number: int) -> dict[str, list[float]]:
    """Returns the losses of steps from fixed variables."""
    self.model.assign(fixed_values(self.config))
    own, self.count = self.step, 0
    if not self.case.grid and self.config.dropout:    # it times masks that are faster for it
      self.step = self.model.train_step(self.case.jit, masks="hash")
    losses = [self.one() for _ in range(number)]
    self.step = own
    return {"losses": losses}


def _memory(field: str) -> float:
  """Returns a line of this process's status, in MB; Linux only, elsewhere 0."""
  try:
    with open("/proc/self/status") as status:
      return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024
  except OSError:
    return 0.0


def _reset_peak() -> None:
  """Lets the highest resident set start from the one of now."""
  try:
    with open("/proc/self/clear_refs", "w") as clear:
      clear.write("5")
  except OSError:
    pass                  # then the peak of the imports counts too, alike for all


def start(text: str) -> Runner:
  """Returns the runner of a case, imported before the clock starts."""
  case = Case.load(text)
  importlib.import_module(_IMPORTED[case.runtime])
  return Runner(case)


if __name__ == "__main__":
  serve(start)
