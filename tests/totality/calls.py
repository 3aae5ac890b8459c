"""A legal call of each public function, which `test_totality` makes wrong, argument by
argument.

Example:

    "softmax": call(t.x, "d"),
    "recompute": call(t.fn, then=lambda f: f(t.x)),           # what comes out is called, too
    "Mesh.groups": call("data", on=t.mesh),                   # of an object
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import meshtf as mtf


class Call(NamedTuple):
    """How a public function is called.

    Args:
      args: positional ones.
      kwargs: others.
      on: the object whose method it is.
      then: what is done with the result, so that it shows what it is.
      takes: by argument, the kinds of wrong values that are right for it, beside what
        its annotation says; such as "int float".
      runs: whether the legal call is made, too.
      own: arguments that go on to a user's function, whose answer is its own.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    on: Any
    then: Callable[[Any], Any] | None
    takes: Mapping[str, str]
    runs: bool
    own: tuple[str, ...]


def call(
    *args: Any,
    on: Any = None,
    then: Callable[[Any], Any] | None = None,
    takes: Mapping[str, str] | None = None,
    runs: bool = True,
    own: tuple[str, ...] = (),
    **kwargs: Any,
) -> Call:
    """Returns a `Call`."""
    return Call(args, kwargs, on, then, takes or {}, runs, own)


class Double(mtf.Module):
    """A layer without variables."""

    def __call__(self, x: Any) -> Any:
        return x * 2.0


def tensor(mesh: mtf.Mesh, shape: str, dtype: str = "float32") -> mtf.Tensor:
    """Returns small positive numbers."""
    size = mtf.Shape(shape).size
    values = (np.arange(size) % 4).reshape(mtf.Shape(shape).sizes)
    return mtf.asarray(mesh, values.astype(dtype), mtf.Shape(shape))


@functools.cache
def things() -> SimpleNamespace:
    """Returns what the calls take: a mesh, tensors on it, variables, functions, a
    folder.
    """
    mesh = mtf.Mesh("data:2;model:1", "batch:data")
    t = SimpleNamespace(mesh=mesh, folder=tempfile.mkdtemp())
    t.x = tensor(mesh, "batch:4;d:6")
    t.y = tensor(mesh, "batch:4;d:6") + 1.0
    t.n = tensor(mesh, "batch:4;d:6", "int32")
    t.ids = tensor(mesh, "batch:4", "int32")
    t.truth = t.x > 1.0
    t.yes = mtf.full(mesh, "", True, "bool")
    t.one = mtf.ones(mesh, "")
    t.zero = mtf.zeros(mesh, "")
    t.step = mtf.zeros(mesh, "", "int32")
    t.z = mtf.math.complex(t.x, t.y)
    t.v = mtf.Variable(mesh, "d:6;e:4", mtf.layers.initializers.ones, "v")
    t.b = mtf.Variable(mesh, "d:6", mtf.layers.initializers.ones, "b")
    t.fn = lambda x: x * 2.0
    t.function = mtf.function(t.fn, mesh=mesh)
    t.init = mtf.layers.initializers.ones
    t.grads = [mtf.ones(mesh, v.shape) for v in (t.v, t.b)]
    t.saved = mtf.checkpoints.save(os.path.join(t.folder, "saved"), 1, {"v": t.v})
    return t


def fresh_folder(t: SimpleNamespace) -> str:
    """Returns a new folder."""
    return tempfile.mkdtemp(dir=t.folder)


def named(calls: dict[str, Call]) -> dict[str, Call]:
    """Returns calls of constructors of modules, which go by the name of their class
    without one.
    """
    return {
        name: c._replace(takes={**c.takes, "name": "none"}) for name, c in calls.items()
    }
