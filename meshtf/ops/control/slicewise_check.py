"""Whether a function of slices may run slice by slice: tried on a small input, in
halves and whole.

    mtf.slicewise(tf.nn.softmax, [x], cut="d")        # over d: refused, halves sum to 1 each

A function is tried when it is first seen, outside of any program, by TensorFlow on a
CPU: dimensions get a few elements each. Where it cannot run on so small an input, it
gets their own sizes, and where it cannot run on that either, nothing is found out.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import PlanError, ShapeError, explain_error, near_misses
from meshtf.graph import Source, Spec
from meshtf.names import dtype_bytes, is_complex, is_floating

_FEW = 3  # elements of a dimension that is not cut
_HALF = 2  # elements of half of one that is
_MOST = 2**20  # elements of all inputs: a larger input is not tried
_FORGET = 1000  # functions that are remembered
_TOLERANCE = {
    2: 0.05,
    4: 1e-3,
    8: 1e-3,
}  # by bytes: sums may be added up in another order

_Sizes = dict[str, int]
_EMPTY = types.CellType()
_tried: dict[Any, None] = {}  # what passed


def check_names(cut: Sequence[str], xs: Sequence[Spec], outs: Sequence[Spec]) -> None:
    """Refuses names along which no function can run slice by slice. Raises
    ShapeError.
    """
    facts = {
        "inputs": " ".join(repr(x.shape) for x in xs),
        "outputs": " ".join(repr(y.shape) for y in outs),
        "from": Source.of_caller(),
    }
    for name in cut:
        if not any(name in x.shape for x in xs):
            close = near_misses(name, [n for x in xs for n in x.shape.names])
            raise ShapeError(
                explain_error(
                    f'no input of slicewise has the dimension "{name}" of `cut`.'
                    + (f" Did you mean {close}?" if close else ""),
                    **facts,
                    way_out="Name dimensions of the inputs.",
                )
            )
        if not all(name in y.shape for y in outs):
            raise ShapeError(
                explain_error(
                    f'slicewise cannot run slice by slice along "{name}", which an '
                    "output lacks.",
                    **facts,
                    way_out="Take it out of `cut`: fn then gets all of it.",
                )
            )


def check_slices(
    fn: Callable[..., Any], xs: Sequence[Spec], outs: Sequence[Spec], cut: Sequence[str]
) -> None:
    """Refuses a function whose results on halves are not halves of its result. Raises
    PlanError.
    """
    key = (_told_apart(fn), tuple(xs), tuple(outs), tuple(cut))
    if key in _tried:
        return
    for sizes in _attempts(xs, outs, cut):
        with tf.init_scope(), tf.device("CPU:0"):
            wrong = _first_wrong(fn, xs, outs, cut, sizes)
        if wrong is not None:
            break
    if wrong:
        raise PlanError(
            explain_error(
                f'slicewise gets other numbers slice by slice along "{wrong}": on a '
                "small input, halves of it do not give halves of the result.",
                function=getattr(fn, "__name__", repr(fn)),
                inputs=" ".join(repr(x.shape) for x in xs),
                **{"from": Source.of_caller()},
                way_out=f'Take "{wrong}" out of `cut`: fn then gets all of it. If the '
                "results may differ, pass check=False.",
            )
        )
    while len(_tried) >= _FORGET:
        del _tried[next(iter(_tried))]
    _tried[key] = None


def _told_apart(fn: Any, depth: int = 3) -> Any:
    """Returns what tells functions apart, without what they hold, which may be large.

    A lambda is another one at each call, but its code is the same; many functions of
    TensorFlow have one code in common, and differ by the function inside.
    """
    if isinstance(fn, (bool, int, float, str)):
        return fn
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    if code is None or not depth:
        return type(fn), getattr(fn, "__qualname__", "")
    cells = [cell.cell_contents for cell in fn.__closure__ or () if cell != _EMPTY]
    return (
        code,
        *(_told_apart(x, depth - 1) for x in (*cells, *(fn.__defaults__ or ()))),
    )


def _attempts(
    xs: Sequence[Spec], outs: Sequence[Spec], cut: Sequence[str]
) -> Iterator[_Sizes]:
    """Yields sizes to try: few elements, those of the tensors where nothing is cut, and
    all.
    """
    own = {d.name: d.size for spec in (*xs, *outs) for d in spec.shape}
    yield {n: 2 * _HALF if n in cut else min(size, _FEW) for n, size in own.items()}
    yield {n: 2 * _HALF if n in cut else size for n, size in own.items()}
    yield own


def _first_wrong(
    fn: Callable[..., Any],
    xs: Sequence[Spec],
    outs: Sequence[Spec],
    cut: Sequence[str],
    sizes: _Sizes,
) -> str | None:
    """Returns the first name of `cut` that must not be cut, "" if all may; None:
    nothing is known.
    """
    if sum(int(np.prod(_sizes(x, sizes))) for x in xs) > _MOST:
        return None
    for draw in (_normal, _between):
        inputs = [draw(i, x, sizes) for i, x in enumerate(xs)]
        whole = _run(fn, inputs, outs, sizes)
        if whole is None:
            return None
        for name in (n for n in cut if sizes[n] > 1 and not sizes[n] % 2):
            parts = [
                _run(
                    fn,
                    [_half(a, x, name, i) for a, x in zip(inputs, xs)],
                    outs,
                    sizes | {name: sizes[name] // 2},
                )
                for i in range(2)
            ]
            first, second = parts
            if first is None or second is None:
                return None
            for y, a, b, spec in zip(whole, first, second, outs):
                if not _close(y, np.concatenate([a, b], spec.shape.index(name))):
                    return name
    return ""


def _sizes(x: Spec, sizes: _Sizes) -> list[int]:
    return [sizes[n] for n in x.shape.names]


def _normal(i: int, x: Spec, sizes: _Sizes) -> Any:
    rng = np.random.default_rng(i)
    if not is_floating(x.dtype) and not is_complex(
        x.dtype
    ):  # numbers of elements, perhaps
        return rng.integers(0, 2, _sizes(x, sizes)).astype(x.dtype)
    return rng.normal(size=_sizes(x, sizes)).astype(tf.as_dtype(x.dtype).as_numpy_dtype)


def _between(i: int, x: Spec, sizes: _Sizes) -> Any:
    """Returns numbers between 0 and 1, for functions that take no others."""
    y = _normal(i, x, sizes)
    return y if y.dtype.kind in "biu" else (0.1 + 0.8 * abs(np.tanh(y))).astype(y.dtype)


def _half(array: Any, x: Spec, name: str, i: int) -> Any:
    return np.split(array, 2, x.shape.index(name))[i] if name in x.shape else array


def _run(
    fn: Callable[..., Any], inputs: Sequence[Any], outs: Sequence[Spec], sizes: _Sizes
) -> list[Any] | None:
    """Returns what fn makes of the inputs; None if it cannot run, or makes something
    else.
    """
    try:
        ys = fn(*map(tf.constant, inputs))
        ys = [
            tf.convert_to_tensor(y)
            for y in (ys if isinstance(ys, (list, tuple)) else [ys])
        ]
        want = [(_sizes(y, sizes), y.dtype) for y in outs]
        return (
            [y.numpy() for y in ys]
            if [(y.shape, y.dtype.name) for y in ys] == want
            else None
        )
    except Exception:  # whatever it says of this input, it says again of the true one
        return None


def _close(y: Any, parts: Any) -> bool:
    if y.dtype.kind in "biuOSU":
        return bool(np.array_equal(y, parts))
    tolerance = _TOLERANCE[min(8, dtype_bytes(y.dtype.name))]
    finite = np.abs(y[np.isfinite(y)].astype("complex128"))
    most = finite.max() if finite.size else 0.0
    wide = "complex128" if y.dtype.kind == "c" else "float64"
    return bool(
        np.allclose(
            y.astype(wide),
            parts.astype(wide),
            tolerance,
            tolerance * most,
            equal_nan=True,
        )
    )
