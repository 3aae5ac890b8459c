"""What writes a program down while it is drawn: names, dimensions and scopes of its
values.

Everything that is drawn is legal: a `Writer` knows the dimensions of each value that
can be seen, and every shape that the program has, so that a layout can be chosen which
holds all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from meshtf.testing.conformance.layouts import axis_choices
from tests.fuzz.program import HALF, Assign, Define, Inside, Statement
from tests.fuzz.rules.tables import EXACT, KINKED, STEPS

Rule = Callable[["Writer"], "str | None"]
OFTEN: list[Rule] = []  # what is drawn more often than all else, if somebody wants it
Draw = Callable[[st.SearchStrategy[Any]], Any]
MOST = 256  # elements of a value
DEEP = 3  # loops, branches and calls within each other
ITERATIONS = 18  # of loops within each other
STATEMENTS = 12  # of a program, about


class Writer:
    """The program so far.

    Args:
      draw: hypothesis' function.
      sizes: of all dimensions that inputs and variables may have.
      dtype: of all floats.
      apart: dimensions along which no op may mix entries: those of microbatches.
      microbatches: how many microbatches a batch has.
      ops: what writes one op; the first one always can.
      constructs: what writes a loop, a function or a region.
      uneven: whether axes may shard dimensions whose size they do not divide.
    """

    def __init__(
        self,
        draw: Draw,
        sizes: dict[str, int],
        dtype: str,
        apart: Sequence[str] = (),
        microbatches: int = 1,
        ops: Sequence[Rule] = (),
        constructs: Sequence[Rule] = (),
        uneven: bool = False,
    ) -> None:
        self.uneven = uneven
        self.microbatches = microbatches
        self.ops = ops
        self.constructs = constructs
        self.draw = draw
        self.sizes = dict(sizes)
        self.dtype = dtype
        self.apart = tuple(apart)
        self.modules: list[Statement] = []
        self.variables: list[str] = []
        self.body: list[Statement] = []
        self.scope: dict[str, tuple[str, ...]] = {}  # floats that can be seen here
        self.seen: dict[str, tuple[str, ...]] = {}  # floats that are seen anywhere
        self.ids: dict[
            str, tuple[tuple[str, ...], str]
        ] = {}  # integers: dimensions, and into which
        self.globals: dict[
            str, tuple[str, ...]
        ] = {}  # variables, which can be seen everywhere
        self.shapes: dict[tuple[str, ...], None] = {}  # all shapes, as an ordered set
        self.unused: dict[str, None] = {}
        self.base: tuple[str, ...] = tuple(sizes)  # dimensions that ops may bring in
        self.pieces: dict[str, set[int]] = {}  # other sizes that a dimension has
        self.axes: dict[str, int] = {}  # of the mesh, without that of stages
        self.experts: tuple[str, str] | None = None  # variables: gate, weight
        self.exact: set[str] = set()  # values that no op has rounded
        self.counters: list[str] = []  # scalar integers: iterations of loops
        self.closed = False  # whether only parameters may be used
        self.depth = 0
        self.seeded = False
        self.random = False
        self.stages = 1
        self.functions: dict[
            str, tuple[str, ...]
        ] = {}  # that can be called: dimensions of x
        self.inputs: list[tuple[str, str, int]] = []
        self.left = STATEMENTS
        self.iterations = 1
        self._numbers = itertools.count()

    def pick(self, options: Sequence[Any]) -> Any:
        """Returns one of some options; hypothesis prefers the first one when it
        shrinks.
        """
        return self.draw(st.sampled_from(list(options)))

    def maybe(self) -> bool:
        """Returns a drawn boolean; False is simpler."""
        return bool(self.draw(st.booleans()))

    def name(self, kind: str = "v") -> str:
        """Returns a name that nothing has yet."""
        return f"{kind}{next(self._numbers)}"

    def dims(self, x: str) -> tuple[str, ...]:
        """Returns the dimensions of a value."""
        return self.scope[x]

    @property
    def rough(self) -> bool:
        """Whether rounding may change on which side of a threshold a number lies."""
        return self.dtype == HALF

    def certain(self, *xs: str) -> bool:
        """Whether rounding does not change on which side of a threshold numbers of
        values lie.
        """
        return not self.rough or self.exact.issuperset(xs)

    def smooth(self, options: Sequence[str], *xs: str) -> list[str]:
        """Returns the ops of values whose gradients rounding changes little."""
        unfit = STEPS if self.certain(*xs) else KINKED
        return [op for op in options if not (self.rough and unfit.search(op))]

    def statements(self, max_statements: int) -> None:
        """Writes up to `most` statements."""
        for i in range(self.draw(st.integers(1, max_statements))):
            if i and self.left <= 0:
                return
            self.left -= 1
            deeper = self.constructs if self.depth < DEEP and self.left > 0 else ()
            staged = (
                [c for c in deeper if c.__name__ == "stage"] * 2
                if self.stages > 1
                else []
            )
            often = [rule for rule in OFTEN if rule in (*self.ops, *deeper)] * len(
                self.ops
            )
            rule = self.pick([*self.ops, *deeper, *deeper, *staged, *often])
            if rule(self) is None:
                self.ops[0](self)

    def size(self, dims: Sequence[str]) -> int:
        """Returns the number of elements of a shape."""
        product = 1
        for d in dims:
            product *= self.sizes[d]
        return product

    def part_size(self, dim: str) -> int:
        """Returns the size of a dimension in a microbatch."""
        return self.sizes[dim] // (self.microbatches if dim in self.apart else 1)

    def shape(self, dims: Sequence[str]) -> str:
        """Returns a shape as meshtf reads it."""
        return ";".join(f"{d}:{self.sizes[d]}" for d in dims)

    def mixable(self, x: str) -> list[str]:
        """Returns the dimensions along which ops may mix entries of a value."""
        return [d for d in self.dims(x) if d not in self.apart]

    def values(self) -> list[str]:
        """Returns the values that can be seen, the latest first."""
        return list(reversed(self.scope))

    def value(self, fits: Callable[[str], bool] = lambda x: True) -> str | None:
        """Returns a drawn value, or None where none fits."""
        matching = [x for x in self.values() if fits(x)]
        if not matching:
            return None
        x: str = self.pick(matching)
        self.unused.pop(x, None)
        return x

    def see(self, x: str, dims: Sequence[str]) -> str:
        """Makes a value visible that other means defined."""
        self.scope[x] = self.seen[x] = tuple(dims)
        self.note(dims)
        self.unused[x] = None
        return x

    def note(self, dims: Sequence[str]) -> None:
        """Says that the program has a tensor of these dimensions."""
        self.shapes[tuple(dims)] = None

    def emit(self, expression: str, dims: Sequence[str]) -> str:
        """Writes an assignment to a new value, and returns its name."""
        x = self.name()
        self.body.append(Assign(x, expression))
        if EXACT.match(expression) and self.exact.issuperset(
            name for name in re.findall(r"\w+", expression) if name in self.seen
        ):
            self.exact.add(x)
        return self.see(x, dims)

    def fit(self, x: str, target: str) -> str:
        """Writes target + something of x, a value of the dimensions of `target`, and
        returns it.

        x is brought there by sums, so its entries along `apart` may not be summed.
        """
        gone = [d for d in self.dims(x) if d not in self.dims(target)]
        self.unused.pop(x, None)
        self.unused.pop(target, None)
        term = f"mtf.reduce_mean({x}, {';'.join(gone)!r})" if gone else x
        return self.emit(f"{target} + 0.3 * mtf.sin({term})", self.dims(target))

    def fits(self, x: str, target: str) -> bool:
        """Returns whether `fit` can bring x to the dimensions of `target`."""
        return all(d in self.dims(target) for d in self.dims(x) if d in self.apart)

    def brought(self, target: str) -> str:
        """Writes `fit` for the latest values that nothing has used yet, or for a drawn
        one.
        """
        left = [
            x
            for x in self.unused
            if x in self.scope and self.fits(x, target) and x != target
        ]
        if not left:
            goal = target
            return self.fit(self.value(lambda x: self.fits(x, goal)) or goal, goal)
        for x in left[-3:]:
            target = self.fit(x, target)
        return target

    def layout(self, shapes: Iterable[Sequence[str]], before: str = "") -> str:
        """Returns drawn rules under which, after those of before, all these shapes can
        be laid out.
        """
        shapes = [set(shape) for shape in shapes]
        rules = dict(r.split(":") for r in before.split(";") if r)
        fresh: dict[str, str] = {}
        for dim in dict.fromkeys(d for shape in shapes for d in sorted(shape)):
            sizes = {self.part_size(dim), *self.pieces.get(dim, ())}
            axes = self.pick(["", *self.axes_for(sizes)])
            taken = {
                axis
                for shape in shapes
                if dim in shape
                for d in shape
                for axis in rules.get(d, "").split("+")
            }
            if axes and taken.isdisjoint(axes.split("+")):
                rules[dim] = fresh[dim] = axes
        return ";".join(f"{dim}:{axis}" for dim, axis in fresh.items())

    def axes_for(self, sizes: Iterable[int]) -> list[str]:
        """Returns the axes, and several as "x+y", that may shard a dimension whose tensors
        have these sizes.
        """
        choices = []
        for axes in axis_choices(list(self.axes)):
            shards = math.prod(self.axes[axis] for axis in axes.split("+"))
            if self.uneven or not any(size % shards for size in sizes):
                choices.append(axes)
        return choices

    def region(self, shapes: Iterable[Sequence[str]]) -> str:
        """Returns the source of a context in which all of these shapes are laid out
        otherwise.
        """
        rules = self.layout(shapes)
        return f"mtf.layout({'*:' + (';' if rules else '') + rules!r})"

    @contextlib.contextmanager
    def block(self, iterations: int = 1) -> Iterator[list[Statement]]:
        """Writes what follows into a body of its own, whose values cannot be seen
        outside.
        """
        outer = self.body
        scope = self.scope
        unused = self.unused
        self.body = []
        self.scope = dict(scope)
        self.unused = {}
        self.depth = self.depth + 1
        self.iterations = self.iterations * iterations
        try:
            yield self.body
        finally:
            self.depth = self.depth - 1
            self.iterations = self.iterations // iterations
            self.body = outer
            self.scope = scope
            self.unused = unused

    @contextlib.contextmanager
    def alone(
        self, parameters: dict[str, tuple[str, ...]], closed: bool = False
    ) -> Iterator[list[Statement]]:
        """Writes a body that sees its parameters and, unless closed, variables; nothing
        else.
        """
        before = self.scope, self.ids, self.seeded
        self.scope = {**self.globals, **parameters}
        self.ids = {}
        self.seeded = False
        outer = (self.counters, self.closed)
        self.counters = []
        self.closed = closed or self.closed
        if self.closed:
            self.scope = dict(parameters)
        try:
            with self.block() as body:
                yield body
        finally:
            self.scope, self.ids, self.seeded = before
            self.counters, self.closed = outer

    @contextlib.contextmanager
    def inside(self, context: str) -> Iterator[None]:
        """Writes what follows into a `with` statement."""
        outer = self.body
        self.body = []
        try:
            yield
        finally:
            if self.body:
                outer.append(Inside(context, tuple(self.body)))
            self.body = outer

    def define(
        self,
        name: str,
        parameters: Sequence[str],
        body: Sequence[Statement],
        result: str,
    ) -> Define:
        """Returns a function."""
        return Define(name, ", ".join(parameters), tuple(body), result)

    def variable(self, dims: Sequence[str], stacks: Sequence[str] = ()) -> str:
        """Returns the source that makes a variable; `stacks` are put in front by
        Repeats around.
        """
        all_dims = [*stacks, *dims]
        self.note(all_dims)
        self.note(dims)
        name = self.name("w")
        seed = next(self._numbers)
        return f"variable({self.shape(dims)!r}, {self.shape(all_dims)!r}, {seed}, {name!r})"
