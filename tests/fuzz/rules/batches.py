"""Ops on a batch that has other names and sizes for a while, and random numbers there.

In a microbatch the batch is shorter, so the source asks for its size. Random numbers
must be those of the whole batch: also where it is merged with another dimension, or
split and merged again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tests.fuzz.writer import Writer


def renamed_noise(w: Writer) -> str | None:
    """Random numbers for a batch whose dimension has another name for a while."""
    x = w.value(lambda x: "batch" in w.dims(x)) if w.seeded else None
    if not x:
        return None
    _new(w, "rows", w.sizes["batch"])
    dims = ["rows" if d == "batch" else d for d in w.dims(x)]
    y = _noisy(w, _hidden(w, f"mtf.rename({x}, 'batch', 'rows')", dims), dims)
    return w.emit(f"mtf.rename({y}, 'rows', 'batch')", w.dims(x))


def merged_batch(w: Writer) -> str | None:
    """A batch that is merged with another dimension for a while."""
    x = w.value(lambda x: "batch" in w.dims(x) and bool(_others(w, x)))
    if not x:
        return None
    other = w.pick(_others(w, x))
    pair = w.pick([["batch", other], [other, "batch"]])
    rest = [d for d in w.dims(x) if d not in pair]
    one = _new(w, "_".join(pair), w.sizes["batch"] * w.sizes[other])
    with seeded(w):
        x = _hidden(
            w, f"mtf.transpose({x}, {';'.join([*pair, *rest])!r})", [*pair, *rest]
        )
        y = _hidden(w, f"mtf.flatten({x}, {';'.join(pair)!r}, {one!r})", [one, *rest])
        y = _noisy(w, y, [one, *rest])
    sizes = ";".join(f"{d}:{_size(x) if d == 'batch' else w.sizes[d]}" for d in pair)
    return w.emit(f'mtf.unflatten({y}, {one!r}, f"{sizes}")', [*pair, *rest])


def split_batch(w: Writer) -> str | None:
    """A batch in pairs of examples, which are merged again, one by one or with another
    dimension.
    """
    x = w.value(lambda x: "batch" in w.dims(x))
    if not x:
        return None
    rest = [d for d in w.dims(x) if d != "batch"]
    pairs = _new(w, w.name("pairs"), w.sizes["batch"] // 2)
    pair = w.name("pair")
    w.sizes[pair] = 2
    dims = [pairs, pair, *rest]
    fitting = _others(w, x)
    x = _hidden(
        w, f"mtf.transpose({x}, {';'.join(['batch', *rest])!r})", ["batch", *rest]
    )
    y = _hidden(
        w,
        f'mtf.unflatten({x}, "batch", f"{pairs}:{_size(x)[:-1]} // 2}};{pair}:2")',
        dims,
    )
    y = _hidden(w, f"mtf.sin({y})", dims)
    if not fitting or w.maybe():
        with seeded(w):
            y = _hidden(
                w, f"mtf.flatten({y}, '{pairs};{pair}', 'batch')", ["batch", *rest]
            )
            return _noisy(w, y, ["batch", *rest], shown=True)
    other = w.pick(fitting)
    rest.remove(other)
    two = _new(w, f"{pair}_{other}", 2 * w.sizes[other], short=True)
    one = _new(w, f"batch_{other}", w.sizes["batch"] * w.sizes[other])
    with seeded(w):
        y = _hidden(
            w, f"mtf.flatten({y}, '{pair};{other}', {two!r})", [pairs, two, *rest]
        )
        y = _hidden(w, f"mtf.flatten({y}, '{pairs};{two}', {one!r})", [one, *rest])
        y = _noisy(w, y, [one, *rest])
    return w.emit(
        f'mtf.unflatten({y}, {one!r}, f"batch:{_size(x)};{other}:{w.sizes[other]}")',
        ["batch", other, *rest],
    )


@contextlib.contextmanager
def seeded(w: Writer) -> Iterator[None]:
    """Writes what follows with a seed, if none is in force."""
    before = w.seeded
    w.seeded = True
    with contextlib.nullcontext() if before else w.inside(f"mtf.seed({w.name('')})"):
        yield
    w.seeded = before


def _noisy(w: Writer, x: str, dims: Sequence[str], shown: bool = False) -> str:
    """Writes x times random numbers."""
    w.random = True
    name = w.name("n")
    text = f"mtf.dropout({x}, 0.5, name={name!r})"
    if w.maybe():
        text = f"{x} * mtf.random_uniform(mesh, {x}.shape, 0.5, 1.5, {w.dtype!r}, name={name!r})"
    return w.emit(text, dims) if shown else _hidden(w, text, dims)


def _hidden(w: Writer, expression: str, dims: Sequence[str]) -> str:
    """Writes a value that nothing else may use: its examples may not meet those of other
    values.
    """
    x = w.emit(expression, dims)
    w.unused.pop(x), w.scope.pop(x)
    return x


def _others(w: Writer, x: str) -> list[str]:
    """Returns the dimensions with which the batch of a value may be merged."""
    return [d for d in w.mixable(x) if d != "batch"]


def _new(w: Writer, dim: str, size: int, short: bool = False) -> str:
    """Returns a dimension of the batch, which is shorter in a microbatch unless it is
    short.
    """
    w.sizes[dim] = size
    if w.apart and not short and dim not in w.apart:
        w.apart = (*w.apart, dim)
    return dim


def _size(x: str) -> str:
    """Returns the source, within an f-string, of how many examples a value has here."""
    return f"{{{x}.shape['batch']}}"
