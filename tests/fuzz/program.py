"""What a drawn program is: statements that print as Python, and the settings that it
runs under.

The source is what runs, with meshtf and with the judge's vocabulary, and what a finding
prints, so a person can paste it. Three kinds of statements make all constructs: a scan
is a `Define` and an `Assign`.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import TypeAlias

HALF = "bfloat16"
Statement: TypeAlias = "Assign | Inside | Define"


@dataclasses.dataclass(frozen=True)
class Assign:
    """targets = expression"""

    targets: str
    expression: str

    def lines(self) -> list[str]:
        """Returns the source."""
        return [f"{self.targets} = {self.expression}"]


@dataclasses.dataclass(frozen=True)
class Inside:
    """with context: body"""

    context: str
    body: tuple[Statement, ...]

    def lines(self) -> list[str]:
        """Returns the source."""
        return [f"with {self.context}:", *indented(self.body)]


@dataclasses.dataclass(frozen=True)
class Define:
    """def name(parameters): body; return result"""

    name: str
    parameters: str
    body: tuple[Statement, ...]
    result: str

    def lines(self) -> list[str]:
        """Returns the source."""
        return [
            f"def {self.name}({self.parameters}):",
            *indented(self.body),
            f"  return {self.result}",
        ]


def indented(body: tuple[Statement, ...]) -> list[str]:
    """Returns the source of statements within another."""
    return [f"  {line}" for statement in body for line in statement.lines()]


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Where a program runs, and with which layout."""

    axes: str
    layout: str = ""
    variable_layout: str = ""
    optimizer_layout: str = ""
    microbatches: int = 0  # of pipelines; 0: as many as the mesh takes by default
    devices: str = ""

    def __str__(self) -> str:
        settings = [
            f"{name}={value!r}"
            for name, value in (
                ("variable_layout", self.variable_layout),
                ("optimizer_layout", self.optimizer_layout),
                ("microbatches", self.microbatches),
                ("devices", self.devices),
            )
            if value
        ]
        return f"mtf.Mesh({', '.join([repr(self.axes), repr(self.layout), *settings])})"


@dataclasses.dataclass(frozen=True, repr=False)
class Program:
    """A program, where it runs and how."""

    mesh: Mesh
    dtype: str
    inputs: tuple[
        tuple[str, str, int], ...
    ]  # name, shape, bound of integers (0: floats)
    modules: tuple[Statement, ...]  # what is created before: variables, layers
    variables: tuple[str, ...]  # expressions of which gradients are taken
    body: tuple[Statement, ...]
    values: tuple[str, ...]  # what is compared, and what the loss sums
    loss: str = ""  # the value that is the loss; "": of all values
    mode: str = "function"  # or "eager", "jit", "export", "live"
    order: int = 1  # 0: forward; 1: gradient; 2: its gradient, too
    microbatches: int = 1
    random: bool = False
    optimizer: str = ""  # three steps of training by it
    copied: bool = (
        False  # whether the last two are done again, from copies of the state
    )
    dims: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict, compare=False
    )

    @property
    def floats(self) -> tuple[str, ...]:
        """The inputs that have gradients."""
        return tuple(name for name, _, below in self.inputs if not below)

    @property
    def targets(self) -> str:
        """The list of what gradients are taken of."""
        own = self.variables if self.only_variables else (*self.floats, *self.variables)
        return f"[{', '.join(own)}]"

    @property
    def only_variables(self) -> bool:
        """Whether gradients are taken of variables alone."""
        return self.microbatches > 1 or bool(self.optimizer)

    def __repr__(self) -> str:
        return self.source()

    def trimmed(self) -> Program:
        """Returns the program without what nothing uses."""
        program = self
        while True:
            lines = [
                line for s in (*program.modules, *program.body) for line in s.lines()
            ]
            uses = collections.Counter(
                re.findall(r"\w+", "\n".join([*lines, self.loss, *self.values]))
            )
            once = {name for name, count in uses.items() if count == 1}
            variables = tuple(
                v for v in program.variables if v.split(".")[0] not in once
            )
            smaller = dataclasses.replace(
                program,
                body=_needed(program.body, once),
                variables=variables,
                modules=_needed(program.modules, once),
            )
            if smaller == program:
                return program
            program = smaller

    def definition(self) -> str:
        """Returns the source of what the judge runs as well: variables, modules,
        `program`.
        """
        names = ", ".join(name for name, _, _ in self.inputs)
        loss = self.loss or " + ".join(
            f"mtf.reduce_mean(mtf.sin({x}))" for x in self.values
        )
        added = () if self.loss else (Assign("loss", loss),)
        program = Define(
            "program",
            names,
            (*self.body, *added),
            f"{self.loss or 'loss'}, [{', '.join(self.values)}]",
        )
        return "\n".join(
            [
                f"mesh = {self.mesh}",
                *self._prelude(),
                *(line for s in self.modules for line in s.lines()),
                *program.lines(),
            ]
        )

    def source(self) -> str:
        """Returns all of it as a script, which ends with `step` and its `results`."""
        head = ["import copy", "import numpy as np", "import meshtf as mtf", ""]
        return "\n".join([*head, self.definition(), *self.step(), *self._call()]) + "\n"

    def step(self) -> list[str]:
        """Returns the source of `step`, which returns the loss, other values, and
        gradients.
        """
        names = [name for name, _, _ in self.inputs]
        head = []
        returned = ["loss", "*values"]
        end = []
        if self.optimizer:
            head = [
                f"variables = {self.targets}",
                f"optimizer = mtf.optimizers.{self.optimizer}",
            ]
            end = ["optimizer.apply_gradients(first, variables, number)"]
        if self.microbatches > 1 or self.optimizer:
            returned = ["loss"]
        results = f"return [{', '.join(returned)}], {'first' if self.order and not end else '[]'}, "
        results += "second" if self.order > 1 else "[]"
        arguments = ", ".join([*names, *(["number"] if self.optimizer else [])])
        lines = [*self._differentiated(names), *end, results]
        return [*head, f"def step({arguments}):", *(f"  {line}" for line in lines)]

    def _differentiated(self, names: list[str]) -> list[str]:
        """Returns the source of the loss and what gradients are wanted."""
        if self.microbatches > 1:
            return [
                "loss, first = mtf.optimizers.accumulate_gradients(lambda inputs: "
                f"program(*inputs)[0], {self.targets}, ({', '.join(names)},), 'batch', "
                f"{self.microbatches})"
            ]
        lines = [f"loss, values = program({', '.join(names)})"]
        if self.order:
            lines.append(f"first = mtf.gradients([loss], {self.targets})")
        if self.order > 1:
            lines += [
                "there = [mtf.reduce_sum(g * g) for g in first if g is not None]",
                f"second = mtf.gradients([mtf.add_n(there)], {self.targets}) if there "
                "else []",
            ]
        return lines

    def _prelude(self) -> list[str]:
        text = "\n".join(line for s in self.modules for line in s.lines())
        lines: list[str] = []
        if "variable(" in text:
            lines += _VARIABLE.format(dtype=self.dtype).splitlines()
        if "Layer(" in text:
            lines += _LAYER.splitlines()
        if "RecordedLayer(" in text:
            lines += _RECORDED_LAYER.splitlines()
        return lines

    def _call(self) -> list[str]:
        expressions = [
            f"mtf.asarray(mesh, {array(shape, below, k, self.dtype)}, {shape!r})"
            for k, (_, shape, below) in enumerate(self.inputs)
        ]
        run = {
            "eager": "step",
            "function": "mtf.function(step, mesh=mesh)",
            "live": "mtf.function(step, mesh=mesh)",
            "jit": "mtf.function(step, mesh=mesh, jit=True)",
        }.get(self.mode, "step")
        lines = [f"inputs = [{', '.join(expressions)}]"]
        if self.mode == "export":
            return [
                *lines,
                "from tests.fuzz.exporting import run_module",
                "results = run_module(step, mesh, inputs)",
            ]
        if self.optimizer:
            return [
                *lines,
                f"run = {run}",
                *(_COPIED if self.copied else ["numbers = range(3)", "losses = []"]),
                f"losses += {_LOSSES}",
                "results = [*losses, *(v.tensor() for v in variables)], [], []",
            ]
        return [*lines, f"results = {run}(*inputs)"]


def _needed(
    body: tuple[Statement, ...], unused: Collection[str]
) -> tuple[Statement, ...]:
    """Returns statements without those which make only what nothing uses."""
    results: list[Statement] = []
    for s in body:
        targets = (
            s.targets.split(", ") if isinstance(s, Assign) else [getattr(s, "name", "")]
        )
        if all(name in unused for name in targets):
            continue
        if not isinstance(s, Assign):
            s = dataclasses.replace(s, body=_needed(s.body, unused))
        if not isinstance(s, Inside) or s.body:
            results.append(s)
    return tuple(results)


def sizes(shape: str) -> list[int]:
    """Returns the sizes of "batch:4;d:2"."""
    return [int(item.split(":")[1]) for item in shape.split(";") if item]


def array(shape: str, below: int, seed: int, dtype: str) -> str:
    """Returns the source of an input's numbers."""
    rng = f"np.random.default_rng({seed})"
    if below:
        return f"{rng}.integers({below}, size={sizes(shape)}).astype('int32')"
    return f"{rng}.normal(size={sizes(shape)}).astype({dtype!r})"


_LOSSES = "[run(*inputs, mtf.constant(mesh, k, dtype='int32'))[0][0] for k in numbers]"
_COPIED = [
    "import copy",
    "numbers = [0]",
    f"losses = {_LOSSES}",
    "kept, kept_optimizer = copy.deepcopy((variables, optimizer))",
    "numbers = [1, 2]",
    f"done_once = {_LOSSES}",
    "for v, value in zip(variables, kept): v.assign(value)",
    "slots = zip(optimizer.variables, kept_optimizer.variables)",
    "for v, value in slots: v.assign(value)",
]

_VARIABLE = """\
def variable(shape, whole, seed, name):
  zeros = lambda mesh, shape, name: mtf.zeros(mesh, shape, {dtype!r})
  v = mtf.Variable(mesh, shape, zeros, name, dtype={dtype!r})
  sizes = [int(dim.split(":")[1]) for dim in whole.split(";")]
  numbers = np.random.default_rng(seed).normal(size=sizes)
  v.assign(mtf.asarray(mesh, numbers, whole, {dtype!r}))
  return v
"""

_LAYER = """\
class Layer(mtf.Module):
  def __init__(self, name, call, *parts):
    super().__init__(name)
    with self.scope():
      self.parts = [make() for make in parts]
    self.call = lambda x: call(x, *self.parts)
  def __call__(self, x):
    return self.call(x)
"""

_RECORDED_LAYER = """\
class RecordedLayer(Layer):
  def __init__(self, name, call, *parts):
    super().__init__(name, call, *parts)
    self.call = mtf.function(lambda x: call(x, *self.parts), mesh=mesh)
"""
