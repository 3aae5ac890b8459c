"""The loops that programs are drawn of."""

from __future__ import annotations

import contextlib

from tests.fuzz.program import HALF, Assign
from tests.fuzz.rules.batches import seeded
from tests.fuzz.rules.catalogue import noise
from tests.fuzz.writer import ITERATIONS, Writer


def scan(w: Writer) -> str | None:
    """A loop along a dimension of a value, or a number of times."""
    rows = w.value(lambda x: bool(w.mixable(x))) if w.maybe() else None
    dim = w.pick(w.mixable(rows)) if rows else w.name("n")
    if not rows:
        w.sizes[dim] = w.pick([2, 3])
    carry = w.value(lambda x: dim not in w.dims(x))
    if carry is None or w.iterations * w.sizes[dim] > ITERATIONS:
        return None
    name, h, row = w.name("body"), w.name("h"), w.name("r")
    carries = _Carries(w, dim, carry)
    with w.block(w.sizes[dim]) as body:
        inner = carries.unpack(h)
        if rows:
            w.see(row, [d for d in w.dims(rows) if d != dim])
            w.exact |= {row} if rows in w.exact else set()
        w.statements(3)
        new = carries.updated(inner)
        outs = [_output(w, dim) for _ in range(w.pick([0, 1, 2]))]
        outs = [out for out in outs if out]
        carries.forget()
    text = ", ".join(out for out, _ in outs) or "None"
    w.body.append(
        w.define(
            name, [h, row], body, f"{new}, {f'({text})' if len(outs) > 1 else text}"
        )
    )
    state = w.name("s")
    ys = w.name("o")
    how = f"{rows}, {dim!r}" if rows else f"None, {dim!r}, {w.sizes[dim]}"
    body_name = f"mtf.recompute({name})" if w.maybe() else name
    options = ", reverse=True" if w.maybe() else ""
    w.body.append(
        Assign(
            f"{state}, {ys}", f"mtf.scan({body_name}, {carries.first}, {how}{options})"
        )
    )
    _see_outputs(w, ys, dim, outs)
    return carries.see(state)


class _Carries:
    """What a loop carries: a value, and maybe another one and a count of iterations."""

    def __init__(self, w: Writer, dim: str, carry: str) -> None:
        self.w, self.values, self.counted = w, [carry], w.maybe()
        other = w.value(lambda x: dim not in w.dims(x)) if w.maybe() else None
        self.values += [other] if other else []
        self.dims = [w.dims(x) for x in self.values]
        count = "mtf.constant(mesh, 0, dtype='int32')"
        self.first = _packed([*self.values, *([count] if self.counted else [])])
        self.count = ""

    def unpack(self, h: str) -> list[str]:
        """Writes the names of the parts of the carry at the beginning of an
        iteration.
        """
        inner = [h]
        if self.counted or len(self.values) > 1:
            inner = [self.w.name("h") for _ in self.values]
            self.count = self.w.name("count") if self.counted else ""
            self.w.body.append(
                Assign(", ".join([*inner, *filter(None, [self.count])]), h)
            )
        for x, dims in zip(inner, self.dims):
            self.w.see(x, dims)
        if self.count:
            self.w.counters.append(self.count)
        return inner

    def updated(self, inner: list[str]) -> str:
        """Writes the next carry, and returns its source."""
        return _packed(
            [
                *map(self.w.brought, inner),
                *([f"{self.count} + 1"] if self.count else []),
            ]
        )

    def forget(self) -> None:
        """Ends what the body can see."""
        if self.count:
            self.w.counters.remove(self.count)

    def see(self, state: str) -> str:
        """Writes the names of the parts of the last carry."""
        w = self.w
        results = [state]
        if self.counted or len(self.values) > 1:
            results = [w.name() for _ in self.values]
            count = [w.name("count")] if self.counted else []
            w.body.append(Assign(", ".join([*results, *count]), state))
        for x, dims in zip(results, self.dims):
            w.see(x, dims)
        if self.counted:
            w.emit(f"{results[0]} * mtf.cast({count[0]}, {w.dtype!r})", self.dims[0])
        return results[0]


def _packed(values: list[str]) -> str:
    return f"({', '.join(values)})" if len(values) > 1 else values[0]


def _output(w: Writer, dim: str) -> tuple[str, tuple[str, ...]] | None:
    """Returns the source of what an iteration gives, maybe in another type, and its
    dimensions.
    """
    out = w.value(lambda x: dim not in w.dims(x) and w.size(w.dims(x)) <= 64)
    if out is None:
        return None
    wider = {"float32": "float64", HALF: "float32"}.get(w.dtype)
    kinds = ["{}", *([f"mtf.cast({{}}, {wider!r})"] if wider else [])]
    kinds += [] if w.rough else ["{} > 0.125", "mtf.cast({} > 0.125, 'int32')"]
    return w.pick(kinds).format(out), w.dims(out)


def _see_outputs(
    w: Writer, ys: str, dim: str, outs: list[tuple[str, tuple[str, ...]]]
) -> None:
    """Makes stacked outputs visible, in the type of all floats."""
    stacked = [ys] if len(outs) == 1 else [w.name("o") for _ in outs]
    if len(outs) > 1:
        w.body.append(Assign(", ".join(stacked), ys))
    for y, (text, dims) in zip(stacked, outs):
        if "(" in text or ">" in text:
            w.note((dim, *dims))
            w.emit(f"mtf.cast({y}, {w.dtype!r})", (dim, *dims))
        else:
            w.see(y, (dim, *dims))


def summed(w: Writer) -> str | None:
    """A loop that sums what its iterations return."""
    rows = w.value(lambda x: bool(w.mixable(x)))
    if not rows:
        return None
    dim = w.pick(w.mixable(rows))
    if w.iterations * w.sizes[dim] > ITERATIONS:
        return None
    name, row = w.name("body"), w.name("r")
    with w.block(w.sizes[dim]) as body:
        w.see(row, [d for d in w.dims(rows) if d != dim])
        w.statements(2)
        y = w.brought(row)
        dims = w.dims(y)
    w.body.append(w.define(name, ["h", row], body, f"None, {y}, None"))
    return w.emit(f"mtf.scan_and_sum({name}, None, {rows}, {dim!r})[1]", dims)


def walk(w: Writer) -> str | None:
    """A loop along a batch whose examples are independent: nothing is carried."""
    x = w.value(lambda x: "batch" in w.dims(x))
    if not x or w.iterations * w.sizes["batch"] > ITERATIONS:
        return None
    name, row, dims = (
        w.name("body"),
        w.name("r"),
        [d for d in w.dims(x) if d != "batch"],
    )
    apart = w.apart
    ids = w.ids
    shown = w.scope
    base = w.base
    w.apart = ()
    w.ids = {}
    w.base = tuple(d for d in base if d != "batch")
    w.scope = {x: own for x, own in shown.items() if "batch" not in own}
    with w.block(w.sizes["batch"]) as body:
        w.see(row, dims)
        with seeded(w) if w.maybe() else contextlib.nullcontext():
            w.statements(2)
            noise(w)
        y = w.brought(row)
    w.apart = apart
    w.ids = ids
    w.scope = shown
    w.base = base
    w.body.append(w.define(name, ["h", row], body, f"h, {y}"))
    outputs = w.name()
    body_name = f"mtf.recompute({name})" if w.maybe() else name
    options = ", reverse=True" if w.maybe() else ""
    w.body.append(
        Assign(
            f"{w.name('h')}, {outputs}",
            f"mtf.scan({body_name}, None, {x}, 'batch'{options})",
        )
    )
    return w.see(outputs, ("batch", *dims))
