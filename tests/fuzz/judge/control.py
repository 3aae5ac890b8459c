"""Loops, modules and pipelines of drawn programs in plain Python: see
`tests.fuzz.judge.plain`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fuzz.judge import elementwise, indices, ops, windows
from tests.fuzz.judge.plain import (
    Named,
    leaves,
    names,
    ordered,
    plain,
    rows,
    sizes,
    stacked,
)

_around = SimpleNamespace(
    stacks=[]
)  # the dimensions of the Repeats around what is made


def scan(
    body: Any,
    state: Any,
    xs: Any = None,
    dim: str = "iterations",
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    length = plain(next(leaves(xs))).sizes[dim] if length is None else length
    outputs: dict[int, Any] = {}
    for i in reversed(range(length)) if reverse else range(length):
        row = tf.nest.map_structure(
            lambda x, i=i: None if x is None else rows(x, dim)[i], xs
        )
        state, outputs[i] = body(state, row)
    return state, _stack([outputs[i] for i in range(length)], dim)


def scan_and_sum(body: Any, state: Any, xs: Any, dim: str) -> tuple[Any, Any, Any]:
    sums: list[Any] = []

    def step_fn(state: Any, row: Any) -> tuple[Any, Any]:
        state, term, outputs = body(state, row)
        sums.append(term)
        return state, outputs

    state, outputs = scan(step_fn, state, xs, dim)
    return state, ops.add_n(sums), outputs


def _stack(outputs: Sequence[Any], dim: str) -> Any:
    return tf.nest.map_structure(
        lambda *xs: None if xs[0] is None else stacked(xs, dim), *outputs
    )


def while_loop(test: Any, body: Any, state: Any) -> Any:
    while bool(test(state).value):
        state = body(state)
    return state


def cond(predicate: Named, then: Any, otherwise: Any) -> Any:
    return then() if bool(predicate.value) else otherwise()


def recompute(fn: Any) -> Any:
    return fn


def function(fn: Any, mesh: Any = None) -> Any:
    return fn


def custom_gradient(fn: Any) -> Any:
    """Returns fn, whose result or results come with a rule of their cotangents."""

    def wrapped(*args: Any) -> Any:
        named = [plain(x) for x in args]
        shapes = []

        @tf.custom_gradient
        def values(*values: Any) -> Any:
            outputs, rule = fn(*(Named(v, x.dims) for v, x in zip(values, named)))
            results = outputs if isinstance(outputs, tuple) else (outputs,)
            shapes[:] = [y.dims for y in results]

            def cotangents(*dys: Any) -> Any:
                dxs = rule(*(Named(dy, dims) for dy, dims in zip(dys, shapes)))
                return [
                    None if dx is None else ordered(dx, x.dims)
                    for dx, x in zip(dxs, named)
                ]

            return [y.value for y in results], cotangents

        outputs = tuple(
            Named(v, dims) for v, dims in zip(values(*(x.value for x in named)), shapes)
        )
        return outputs if len(outputs) > 1 else outputs[0]

    return wrapped


def nothing(*args: Any) -> Any:
    """What says where something lies changes no number."""
    return contextlib.nullcontext()


layout = stage = seed = nothing


class Mesh:
    """One device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.axes: dict[str, int] = {}


class Variable:
    """Numbers with names; within a `Repeat`, those of one layer."""

    shape = None

    def __init__(
        self, mesh: Any, shape: str, initializer: Any, name: str, dtype: str
    ) -> None:
        self.dims = [*(names(s)[0] for s in _around.stacks), *names(shape)]
        self.num_stacked = len(_around.stacks)
        self.dtype = dtype
        self.views: list[Named] = []

    def assign(self, value: Named) -> None:
        """Sets the value, of the same names in any order."""
        self.views = [ops.transpose(value, self.dims)]

    def tensor(self) -> Named:
        """Returns the present value."""
        return self.views[-1]

    def __deepcopy__(self, memo: Any) -> Variable:
        """Returns a variable with a tensor of its own, which the tape tells apart."""
        duplicate = copy.copy(self)
        duplicate.views = [Named(tf.identity(x.value), x.dims) for x in self.views]
        return duplicate


for _name in ("add", "sub", "mul", "truediv", "gt", "radd", "rmul", "neg"):
    setattr(
        Variable,
        f"__{_name}__",
        lambda self, *other, _name=_name: getattr(self.tensor(), f"__{_name}__")(
            *other
        ),
    )


class Module:
    """Something with variables."""

    def __init__(self, name: str) -> None:
        pass

    def scope(self) -> Any:
        """Names change no number."""
        return contextlib.nullcontext()

    def variables(self) -> list[Variable]:
        """Returns all variables within."""
        results: list[Variable] = []
        for x in tf.nest.flatten(list(vars(self).values())):
            results += (
                x.variables()
                if isinstance(x, Module)
                else [x]
                if isinstance(x, Variable)
                else []
            )
        return list(dict.fromkeys(results))


class Repeat(Module):
    """A layer many times, each time with weights of its own."""

    def __init__(
        self, make: Any, dim: str, recomputed: bool = False, name: str = ""
    ) -> None:
        self.dim = dim
        _around.stacks.append(dim)
        self.layer = make()
        _around.stacks.pop()

    def __call__(self, x: Any) -> Any:
        dim = names(self.dim)[0]
        for i in range(sizes(self.dim)[0]):
            with _entry(
                [v for v in self.layer.variables() if dim in v.tensor().dims], dim, i
            ):
                x = self.layer(x)
        return x


class Reversible(Module):
    """Residual layers: each adds a function of one stream to the other."""

    def __init__(self, functions: Sequence[Any], name: str) -> None:
        self.functions = functions

    def __call__(self, x1: Any, x2: Any) -> tuple[Any, Any]:
        for f in self.functions:
            x1, x2 = x2, x1 + f(x2)
        return x1, x2


@contextlib.contextmanager
def _entry(variables: Sequence[Variable], dim: str, i: int) -> Iterator[None]:
    for v in variables:
        v.views.append(rows(v.views[-1], dim)[i])
    yield
    for v in variables:
        v.views.pop()


class GPipe:
    """Layers, one after another."""

    def __init__(self, layers: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        self.layers = layers

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def loss(self, loss_of: Any, x: Any, *other_inputs: Any) -> Any:
        """Returns the loss of the whole batch."""
        return loss_of(self(x), *other_inputs)


def asarray(mesh: Any, array: Any, shape: str, dtype: str | None = None) -> Named:
    return Named(tf.constant(np.asarray(array), dtype), names(shape))


def constant(mesh: Any, value: Any, dtype: str) -> Named:
    return Named(tf.constant(value, dtype), ())


def weighted_mean(x: Any, weights: Any) -> Named:
    """Returns the mean of x with weights of some of its dimensions; 0 if they are 0."""
    spread = weights + x * 0.0
    return ops.reduce_sum(x * weights) / elementwise.maximum(
        ops.reduce_sum(spread), 1e-9
    )


layers = SimpleNamespace(
    Repeat=Repeat,
    Reversible=Reversible,
    initializers=SimpleNamespace(zeros=None),
    weighted_mean=weighted_mean,
)
pipeline = SimpleNamespace(GPipe=GPipe)

_OPS = (elementwise, ops, indices, windows)
VOCABULARY = SimpleNamespace(
    **{
        name: value
        for namespace in (*map(vars, _OPS), globals())
        for name, value in namespace.items()
        if not name.startswith("_")
    }
)
VOCABULARY.math = VOCABULARY
