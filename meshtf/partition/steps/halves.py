"""Layers in two halves of the batch: what one half waits for runs beside the products of the other.

    for w in layers:                        # as planned: each layer waits for its sum
        x = all_reduce(f(x, w))

    for w in layers:                        # in halves: as `with_halves` rewrites it
        p_a = f(a, w)
        p_b = f(b, w)                       # beside all_reduce(p_a)
        a = all_reduce(p_a)
        b = all_reduce(p_b)                 # beside the next product of a

Tensor parallelism waits for sums over devices (Megatron-LM: Shoeybi et al., 2019, section 3); two
halves hide them, as in "Domino" (Wang et al., 2024). A loop qualifies if each step of its body maps
along a dimension, or sums over it: the op contract says so. A half is a shard of what a device has:
random numbers, means and sizes are those of a dimension with twice as many shards.

The body is a list of *chunks*, each with the reductions at its end that the next one reads. Chunks
of both halves take turns, and each waits for the products of the one before: XLA would merge the
products of both halves into one otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from meshtf.partition.steps.bodies import LoopStep
from meshtf.partition.steps.halved_body import HalvedBody, NotHalvable, Pair, has_dim
from meshtf.partition.steps.halved_steps import halves_of_value, take_halves
from meshtf.partition.steps.local import JoinHalvesStep
from meshtf.partition.steps.step import Program, Step, Value

_NO_LOOP = (
    "two_batch_overlap: no loop waits for sums over devices and can run in halves of what its "
    "carries have: each op maps along the dimension or sums over it, and each device has an even "
    "number of its elements."
)


def with_halves(program: Program) -> Program:
    """Returns a program whose loops compute their iterations in two halves, where they wait for
    sums over devices. Its results have the same numbers, and `overlap` says which loops they are.
    """
    halved = _with_halves(program)
    if halved is None:
        notes = (*program.notes, _NO_LOOP)
        return dataclasses.replace(program, notes=notes)
    return halved


@dataclasses.dataclass
class _Known:
    """What is known of a program while its loops are rewritten.

    Attributes:
      pairs: the two halves of values.
      joins: the steps that join halves of outputs of loops.
      texts: what `Program.overlap` says of loops that are halved, in order.
    """

    pairs: dict[Value, Pair] = dataclasses.field(default_factory=dict)
    joins: set[Step] = dataclasses.field(default_factory=set)
    texts: dict[str, None] = dataclasses.field(default_factory=dict)


def _with_halves(program: Program) -> Program | None:
    """Returns what `with_halves` does, for a program or a body; None: no loop is halved."""
    known = _Known()
    steps: list[Step] = []
    for step in program.steps:
        new_steps = None
        if step.loop is not None:
            new_steps = _loop_in_halves(step.loop, known)
        steps.extend([step] if new_steps is None else new_steps)
    if not known.texts:
        return None
    # Another loop may take the halves, so that nothing reads what is joined.
    needed = set(program.results)
    for step in steps:
        needed.update(step.dependencies)
    needed_steps = (
        step
        for step in steps
        if step not in known.joins or not needed.isdisjoint(step.outputs)
    )
    return dataclasses.replace(
        program,
        steps=tuple(needed_steps),
        overlap=(*program.overlap, *known.texts),
    )


def _loop_in_halves(loop: LoopStep, known: _Known) -> list[Step] | None:
    """Returns the steps that take the place of a loop; None: it stays as it is.

    Args:
      loop: the loop.
      known: what is known before the loop; what is known of the loop is added.
    """
    body = _with_halves(loop.body)
    if body is not None:
        known.texts.update(dict.fromkeys(body.overlap))
        return [dataclasses.replace(loop, body=body)]
    if loop.test is not None or loop.axes or loop.is_pipeline:
        return None
    for dim in _candidates(loop):
        try:
            halved = _HalvedLoop(loop, dim, known.pairs)
            steps = halved.steps()
        except NotHalvable:
            continue
        known.pairs.update(halved.pairs)
        known.joins.update(halved.behind)
        text = f"halves of {dim!r} in {loop.node.source}: each beside the sums of the other"
        known.texts[text] = None
        return steps
    return None


def _candidates(loop: LoopStep) -> list[str]:
    """Returns the dimensions of carries that devices reduce in an iteration, in order."""
    names: dict[str, None] = {}
    for step in loop.body.steps:
        for reduction in step.reductions:
            if reduction.src.spec is not None:
                names.update(dict.fromkeys(reduction.src.spec.shape.names))
    return [name for name in names if any(has_dim(x, name) for x in loop.carries)]


class _HalvedLoop:
    """A loop in halves of a dimension.

    Args:
      loop: the loop.
      dim: the name of the dimension.
      pairs: the halves of values that exist before the loop.

    Attributes:
      pairs: these, with those of the inputs and outputs of the loop.
    """

    def __init__(
        self,
        loop: LoopStep,
        dim: str,
        pairs: Mapping[Value, Pair],
    ) -> None:
        self.loop = loop
        self.dim = dim
        self.pairs = dict(pairs)
        self.before: list[Step] = []
        self.behind: list[Step] = []

    def steps(self) -> list[Step]:
        """Returns the steps that take the place of the loop.

        Raises:
          NotHalvable: the loop cannot be computed in halves of the dimension, or has no sum that
            is waited for.
        """
        loop = self.loop
        body = HalvedBody(loop, self.dim)
        arguments: dict[Value, Pair] = {}
        carries, initial_values = self._arguments(
            loop.carries, loop.initial_values, arguments, takes=True
        )
        entries, scanned = self._arguments(
            loop.entries, loop.scanned_inputs, arguments, takes=False
        )
        results = body.compute(arguments)
        outs: list[Value] = []
        new_results: list[Value] = []
        for result, out in zip(results, loop.outs, strict=True):
            new_results.extend(result)
            outs.extend(self._outs(result, out))
        new_loop = dataclasses.replace(
            loop,
            body=dataclasses.replace(
                loop.body, steps=tuple(body.steps), results=tuple(new_results)
            ),
            carries=carries,
            initial_values=initial_values,
            entries=entries,
            scanned_inputs=scanned,
            outs=tuple(outs),
        )
        return [*self.before, new_loop, *self.behind]

    def _arguments(
        self,
        arguments: Sequence[Value],
        values: Sequence[Value],
        pairs: dict[Value, Pair],
        takes: bool,
    ) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """Returns arguments of the body, and their values, with two for each that is halved.

        Args:
          arguments: the arguments.
          values: the value of each.
          pairs: the halves of arguments are added to it.
          takes: whether halves are taken of values that have none yet.
        """
        new_arguments: list[Value] = []
        new_values: list[Value] = []
        for argument, value in zip(arguments, values, strict=True):
            is_halved = has_dim(argument, self.dim)
            if not is_halved or not (takes or value in self.pairs):
                new_arguments.append(argument)
                new_values.append(value)
                continue
            if value not in self.pairs:
                steps = take_halves(value, self.dim, self.loop.node)
                self.before.extend(steps)
                self.pairs[value] = (steps[0].out, steps[1].out)
            pairs[argument] = halves_of_value(argument, self.dim)
            new_arguments.extend(pairs[argument])
            new_values.extend(self.pairs[value])
        return tuple(new_arguments), tuple(new_values)

    def _outs(self, result: Sequence[Value], out: Value) -> Sequence[Value]:
        """Returns the outputs of the loop for one output of the planned loop.

        Args:
          result: the result of the body, or its halves.
          out: the output of the planned loop.
        """
        if len(result) == 1:
            return [out]
        outs = halves_of_value(out, self.dim)
        self.pairs[out] = outs
        self.behind.append(JoinHalvesStep(self.dim, outs, out, self.loop.node))
        return outs
