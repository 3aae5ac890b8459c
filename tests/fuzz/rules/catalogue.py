"""The ops that programs are drawn of. Each function writes one op, or returns None if
none fits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hypothesis import strategies as st

from tests.fuzz.program import Assign
from tests.fuzz.rules.batches import merged_batch, renamed_noise, split_batch
from tests.fuzz.rules.indices import dynamic, gather, scatter, segment, top_k
from tests.fuzz.rules.tables import ALONG, BINARY, CONDITIONS, REDUCE, STEPS, UNARY
from tests.fuzz.rules.windows import conv, pool
from tests.fuzz.writer import MOST, Writer

Rule = Callable[[Writer], "str | None"]


def unary(w: Writer) -> str | None:
    """One value, element by element."""
    x = w.value()
    return x and w.emit(w.pick(w.smooth(UNARY, x)).replace("{}", x), w.dims(x))


def binary(w: Writer) -> str | None:
    """Two values; the second one's dimensions are among the first one's."""
    x = w.value()
    y = x and w.value(lambda y: set(w.dims(y)) <= set(w.dims(x)))
    return y and w.emit(w.pick(w.smooth(BINARY, x, y)).format(x, y), w.dims(x))


def einsum(w: Writer) -> str | None:
    """A product of two values, some dimensions of which are summed."""
    x = w.value()
    y = w.value()
    if not x or not y:
        return None
    both = list(dict.fromkeys((*w.dims(x), *w.dims(y))))
    summed = {d for d in both if d not in w.apart and w.maybe()}
    out = [d for d in both if d not in summed]
    if w.size(out) > MOST or len(out) > 4 or not both:
        return None
    order = w.draw(st.permutations(out))
    product = w.emit(f"mtf.einsum([{x}, {y}], {';'.join(order)!r})", order)
    w.unused.pop(product)
    return w.emit(f"mtf.tanh({product} * 0.3)", order)


def reduce(w: Writer) -> str | None:
    """A value without one of its dimensions."""
    x = w.value(lambda x: bool(w.mixable(x)))
    if not x:
        return None
    dim = w.pick(w.mixable(x))
    text = w.pick(w.smooth(REDUCE, x))
    return w.emit(text.format(x, dim), [d for d in w.dims(x) if d != dim])


def along(w: Writer) -> str | None:
    """A value that is mixed along a dimension."""
    x = w.value(lambda x: bool(w.mixable(x)))
    if not x:
        return None
    dim = w.pick(w.mixable(x))
    text = w.pick(w.smooth(ALONG, x))
    half_size = w.sizes[dim] // 2
    if "slice" in text:
        w.pieces.setdefault(dim, set()).update((half_size, w.sizes[dim] - half_size))
    dims = [dim, *(d for d in w.dims(x) if d != dim)] if "stack" in text else w.dims(x)
    return w.emit(
        text.format(
            x,
            dim,
            dim if "stack" in text else half_size,
            w.sizes[dim] - half_size,
            w.dtype,
        ),
        dims,
    )


def transpose(w: Writer) -> str | None:
    """A value with its dimensions in another order."""
    x = w.value(lambda x: len(w.dims(x)) > 1)
    if not x:
        return None
    rotated_dims = [*w.dims(x)[1:], w.dims(x)[0]]
    return w.emit(f"mtf.transpose({x}, {';'.join(rotated_dims)!r})", rotated_dims)


def rename(w: Writer) -> str | None:
    """A value one of whose dimensions gets another name of the same size."""
    x = w.value(lambda x: bool(w.mixable(x)))
    if not x:
        return None
    old = w.pick(w.mixable(x))
    new = w.pick(
        [
            *(
                d
                for d in w.base
                if w.sizes[d] == w.sizes[old]
                and d not in w.dims(x)
                and d not in w.apart
            ),
            "z" + old.lstrip("z"),
        ]
    )
    if new in w.dims(x):
        return None
    w.sizes.setdefault(new, w.sizes[old])
    if w.sizes[new] != w.sizes[old]:
        return None
    return w.emit(
        f"mtf.rename({x}, {old!r}, {new!r})",
        [new if d == old else d for d in w.dims(x)],
    )


def broadcast(w: Writer) -> str | None:
    """A value with one dimension more, the first one."""
    x = w.value(lambda x: len(w.dims(x)) < 3 and not set(w.dims(x)) & set(w.apart))
    new_dims = [d for d in w.base if x and d not in w.dims(x) and d not in w.apart]
    if not x or not new_dims:
        return None
    dims = [w.pick(new_dims), *w.dims(x)]
    return w.emit(f"mtf.broadcast({x}, {w.shape(dims)!r})", dims)


def merged(w: Writer) -> str | None:
    """A value whose two first dimensions are one for a while."""
    x = w.value(lambda x: len(w.mixable(x)) > 1)
    if not x:
        return None
    a, b, *_ = w.mixable(x)
    rest = [d for d in w.dims(x) if d not in (a, b)]
    one = f"{a}_{b}"
    w.sizes[one] = w.sizes[a] * w.sizes[b]
    ordered = w.emit(f"mtf.transpose({x}, {';'.join([a, b, *rest])!r})", [a, b, *rest])
    y = w.emit(
        f"mtf.sin(mtf.flatten({ordered}, {f'{a};{b}'!r}, {one!r}))", [one, *rest]
    )
    w.unused.pop(ordered), w.unused.pop(y)
    return w.emit(f"mtf.unflatten({y}, {one!r}, {w.shape([a, b])!r})", [a, b, *rest])


def where(w: Writer) -> str | None:
    """One of two values, element by element."""
    x = w.value(w.certain)
    y = x and w.value(lambda y: set(w.dims(y)) == set(w.dims(x)) and w.certain(y))
    if not x or not y:
        return None
    condition = w.pick(
        [c for c in CONDITIONS if not w.rough or not STEPS.search(c)]
    ).format(x, y)
    return w.emit(f"mtf.where({condition}, {y} * 2.0, {x})", w.dims(x))


def stopped(w: Writer) -> str | None:
    """A value through which no gradient flows, halved until it is small."""
    x = None if w.rough else w.value(lambda x: not set(w.dims(x)) & set(w.apart))
    small = "lambda x: mtf.reduce_max(mtf.square(x)) > 0.3, lambda x: x * 0.5"
    return x and w.emit(f"mtf.while_loop({small}, mtf.stop_gradient({x}))", w.dims(x))


def sharded(w: Writer) -> str | None:
    """A value with a layout of its own."""
    x = w.value()
    if not x:
        return None
    fitting = [(d, a) for d in w.dims(x) for a in w.axes_for([w.part_size(d)])]
    rules = [
        f"mtf.replicate({x})",
        *(f"mtf.shard({x}, {{{d!r}: {a!r}}})" for d, a in fitting),
        *(f"mtf.split({x}, {d!r}, {a!r})" for d, a in fitting),
    ]
    return w.emit(w.pick(rules), w.dims(x))


def noise(w: Writer) -> str | None:
    """Random numbers, where a seed is in force."""
    x = w.value() if w.seeded else None
    if not x:
        return None
    w.random = True
    name = w.name("n")
    if w.maybe() and w.dims(x):
        return w.emit(f"mtf.dropout({x}, 0.5, name={name!r})", w.dims(x))
    shape = f"({x} * 1.0).shape"  # a variable's own has the layers of a Repeat, too
    return w.emit(
        f"{x} * mtf.random_uniform(mesh, {shape}, 0.5, 1.5, {w.dtype!r}, "
        f"name={name!r})",
        w.dims(x),
    )


def experts(w: Writer) -> str | None:
    """Each row goes to the expert whose gate is largest, and comes back times
    its gate.
    """
    if not w.experts or w.rough or w.closed:
        return None
    x = w.value(lambda x: "d" in w.dims(x) and not {"e", "expert"} & set(w.dims(x)))
    if not x:
        return None
    gate, weight = w.experts
    rest = [d for d in w.dims(x) if d != "d"]
    sent = [*rest, "expert", "d"]
    back = [*rest, "expert", "e"]
    gates = f"mtf.einsum([{x}, {gate}], {';'.join([*rest, 'expert'])!r})"
    gates = w.emit(f"mtf.softmax({gates}, 'expert')", [*rest, "expert"])
    best = w.name()
    which = w.name()
    hot = w.name()
    w.body.append(Assign(f"{best}, {which}", f"mtf.top_1({gates}, 'expert')"))
    w.body.append(Assign(hot, f"mtf.one_hot({which}, 'expert:4', {w.dtype!r})"))
    w.see(best, rest), w.see(hot, [*rest, "expert"])
    with (
        w.inside(w.region([sent, back, w.dims(weight)]))
        if w.maybe()
        else contextlib.nullcontext()
    ):
        y = w.emit(f"mtf.einsum([{x}, {hot}], {';'.join(sent)!r})", sent)
        y = w.emit(f"mtf.tanh(mtf.einsum([{y}, {weight}], {';'.join(back)!r}))", back)
    y = w.emit(f"mtf.einsum([{y}, {hot}], {';'.join([*rest, 'e'])!r})", [*rest, "e"])
    y = w.emit(f"{y} * {best}", [*rest, "e"])
    w.unused = {y: None, **{v: None for v in w.unused if v not in (best, hot, gates)}}
    return y


OPS: tuple[Rule, ...] = (
    unary,
    binary,
    einsum,
    reduce,
    along,
    transpose,
    rename,
    broadcast,
    merged,
    gather,
    segment,
    scatter,
    top_k,
    dynamic,
    conv,
    pool,
    where,
    sharded,
    stopped,
    experts,
    renamed_noise,
    merged_batch,
    split_batch,
    noise,
)
