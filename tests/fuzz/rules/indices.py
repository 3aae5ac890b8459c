"""Ops that programs are drawn of which take or give indices: gathers, segments,
scatters, top_k.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.program import HALF, Assign
from tests.fuzz.writer import Writer


def gather(w: Writer) -> str | None:
    """Rows of a value by integers, or a loss of it by labels, or its products with
    one-hot rows.
    """
    fitting = [
        (x, i)
        for x in w.values()
        for i, (dims, into) in w.ids.items()
        if into in w.mixable(x)
    ]
    if not fitting:
        return None
    x, i = w.pick(fitting)
    dims, into = w.ids[i]
    rest = [d for d in w.dims(x) if d != into]
    how = w.pick(["gather", "cross_entropy", "one_hot"])
    w.note([*dims, *w.dims(x)] if how == "one_hot" else [*dims, into])
    w.unused.pop(x, None)
    if how == "gather":
        both = [*dims, *(d for d in rest if d not in dims)]
        return w.emit(f"mtf.gather({x}, {i}, {into!r})", both)
    if how == "cross_entropy" and set(dims) == set(rest):
        entropy = f"mtf.cross_entropy({x}, {i}, {into!r})"
        if w.dtype == HALF:  # it is float32, which does not mix with the other values
            entropy = f"mtf.cast({entropy}, {w.dtype!r})"
        return w.emit(entropy, rest)
    both = list(dict.fromkeys((*rest, *dims)))
    hot = f"mtf.one_hot({i}, {w.shape([into])!r}, {w.dtype!r})"
    return w.emit(f"mtf.einsum([{x}, {hot}], {';'.join(both)!r})", both)


def segment(w: Writer) -> str | None:
    """Entries of a value brought together by integers."""
    fitting = [
        (x, i)
        for x in w.values()
        for i, (dims, into) in w.ids.items()
        if into not in w.dims(x) and set(dims) <= set(w.mixable(x))
    ]
    if not fitting:
        return None
    x, i = w.pick(fitting)
    dims, into = w.ids[i]
    out = [into, *(d for d in w.dims(x) if d not in dims)]
    text = w.pick(
        w.smooth(
            (
                "mtf.segment_sum({}, {}, {!r})",
                "mtf.math.segment_mean({}, {}, {!r})",
                "mtf.clip(mtf.math.segment_max({}, {}, {!r}), -8.0, 8.0)",
                "mtf.clip(mtf.math.segment_min({}, {}, {!r}), -8.0, 8.0)",
                "mtf.scatter({}, {}, {!r})",
            ),
            x,
        )
    )
    w.unused.pop(x, None)
    w.note([*dims, into])
    return w.emit(text.format(x, i, w.shape([into])), out)


def scatter(w: Writer) -> str | None:
    """A value some of whose entries are replaced or added to, by integers."""

    def needs(x: str, i: str) -> set[str]:
        dims, into = w.ids[i]
        return {*dims, *(d for d in w.dims(x) if d != into)}

    fitting = [
        (x, i, y)
        for x in w.values()
        for i, (dims, into) in w.ids.items()
        if into in w.mixable(x)
        and (set(dims) <= set(w.dims(x)) or not set(dims) & {*w.apart})
        for y in w.values()
        if set(w.dims(y)) == needs(x, i)
    ]
    if not fitting:
        return None
    x, i, y = w.pick(fitting)
    for value in (x, y):
        w.unused.pop(value, None)
    how = w.pick(["scatter_add", "scatter_update"])
    w.note([*w.ids[i][0], w.ids[i][1]])
    return w.emit(f"mtf.{how}({x}, {i}, {y}, {w.ids[i][1]!r})", w.dims(x))


def top_k(w: Writer) -> str | None:
    """The two largest along a dimension."""
    x = w.value(lambda x: bool(w.mixable(x)) and "k" not in w.dims(x) and w.certain(x))
    if not x:
        return None
    dim = w.pick(w.mixable(x))
    values = w.name()
    indices = w.name("j")
    w.sizes["k"] = 2
    out = ["k" if d == dim else d for d in w.dims(x)]
    w.body.append(Assign(f"{values}, {indices}", f"mtf.top_k({x}, {dim!r}, 'k:2')"))
    w.see(values, out)
    if w.maybe():
        return w.emit(f"{values} * mtf.cast({indices}, {w.dtype!r})", out)
    return values


def dynamic(w: Writer) -> str | None:
    """Entries of one dimension from an index on that is computed."""
    x = w.value(lambda x: bool(w.mixable(x)))
    if not x:
        return None
    dim = w.pick(w.mixable(x))
    at = _index(w)
    half_size = w.sizes[dim] // 2
    how = w.pick(["slice", "update", "shift", "wrap"])
    if how == "slice":
        short = f"{dim}_{max(2, half_size)}"
        w.sizes[short] = max(2, half_size)
        return w.emit(
            f"mtf.dynamic_slice({x}, {dim!r}, {at}, {w.shape([short])!r})",
            [short if d == dim else d for d in w.dims(x)],
        )
    if how == "update":
        w.pieces.setdefault(dim, set()).add(half_size)
        update = f"mtf.slice(mtf.sin({x}), {dim!r}, 0, {half_size})"
        return w.emit(f"mtf.dynamic_update({x}, {dim!r}, {at}, {update})", w.dims(x))
    return w.emit(
        f"mtf.dynamic_shift({x}, {dim!r}, {at}, wrap={how == 'wrap'})", w.dims(x)
    )


def _index(w: Writer) -> str:
    """Returns the source of a scalar integer, 0 or more."""
    fitting: Sequence[str] = [
        x
        for x in w.values()
        if w.certain(x) and len(w.mixable(x)) == 1 and w.dims(x) == tuple(w.mixable(x))
    ]
    indices = [*w.counters, "mtf.constant(mesh, 1, dtype='int32')"]
    if fitting:
        x = w.pick(fitting)
        indices.append(f"mtf.argmax({x}, {w.dims(x)[0]!r})")
    return str(w.pick(indices))
