"""Branches, regions, stages, seeds and calls of which programs are drawn.

Each function writes one construct, with statements drawn within, or returns None if
none fits.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from tests.fuzz.program import Assign, Inside
from tests.fuzz.rules.catalogue import noise
from tests.fuzz.rules.loops import scan, summed, walk
from tests.fuzz.writer import DEEP, ITERATIONS, Writer

Rule = Callable[[Writer], "str | None"]


def cond(w: Writer) -> str | None:
    """A branch by the numbers of a value."""
    judge = w.value(lambda x: w.certain(x) and not set(w.dims(x)) & set(w.apart))
    base = w.value()
    if not judge or not base:
        return None
    names = []
    for _ in range(2):
        with w.block() as body:
            w.statements(2)
            y = w.brought(base)
        names.append(w.name("branch"))
        w.body.append(w.define(names[-1], [], body, y))
    how = "max" if w.rough else "sum"
    return w.emit(
        f"mtf.cond(mtf.reduce_{how}({judge}) > 0.125, {', '.join(names)})", w.dims(base)
    )


def recompute(w: Writer) -> str | None:
    """A function that the backward pass computes again."""
    x = w.value()
    if not x:
        return None
    name, h, dims = w.name("again"), w.name("h"), w.dims(x)
    with w.block() as body:
        w.see(h, dims)
        w.statements(3)
        y = w.brought(h)
    w.body.append(w.define(name, [h], body, y))
    return w.emit(f"mtf.recompute({name})({x})", dims)


def custom(w: Writer) -> str | None:
    """A function with a gradient of its own."""
    x = w.value()
    if not x:
        return None
    dims = w.dims(x)
    other = w.value(lambda y: set(w.dims(y)) == set(dims)) if w.maybe() else None
    name, h, g = w.name("own"), w.name("h"), w.name("h")
    parameters = {h: dims, **({g: w.dims(other)} if other else {})}
    with w.alone(parameters, closed=True) as body:
        if other and w.maybe():
            del w.scope[g]  # the rule alone uses it
        w.statements(3)
        y = w.brought(h)
        results = [y, w.emit(f"mtf.sin({y}) * {h}", dims)] if w.maybe() else [y]
    dys = [w.name("dy") for _ in results]
    rules = ["{0} * 0.5", "{0} * mtf.cos({1})", "{0} * mtf.sin({2})"]
    if (
        w.microbatches == 1 and not w.rough
    ):  # else a batch's cotangent is not that of its parts
        rules += ["mtf.tanh({0})", "{0} * {0}"]
    dx = " + ".join(w.pick(rules).format(dy, h, y) for dy in dys)
    dxs = [
        dx,
        *(
            [w.pick([f"{dys[-1]} * {g}", "None", f"{dys[0]} * mtf.sin({h})"])]
            if other
            else []
        ),
    ]
    pair = f"({', '.join(results)})" if len(results) > 1 else y
    rule = f"lambda {', '.join(dys)}: [{', '.join(dxs)}]"
    w.body.append(w.define(name, list(parameters), body, f"{pair}, {rule}"))
    call = f"mtf.custom_gradient({name})({', '.join(filter(None, (x, other)))})"
    if len(results) == 1:
        return w.emit(call, dims)
    targets = [w.name(), w.name()]
    w.body.append(Assign(", ".join(targets), call))
    w.see(targets[1], dims)
    return w.see(targets[0], dims)


def region(w: Writer) -> str | None:
    """Statements under another layout."""
    known = dict(w.shapes)
    w.shapes.clear()
    outer = w.body
    w.body = []
    w.statements(3)
    for x in w.values():
        w.note(w.dims(x))  # what comes from outside
    inner = w.body
    w.body = outer
    w.shapes.update(known)
    context = w.region(w.shapes)
    w.body.append(Inside(context, tuple(inner)))
    return "done"


def stage(w: Writer) -> str | None:
    """Statements of a stage."""
    if w.stages == 1:
        return None
    with w.inside(f"mtf.stage({w.pick(range(w.stages))})"):
        w.statements(3)
    return "done"


def seed(w: Writer) -> str | None:
    """Statements with a seed of their own."""
    seeded = w.seeded
    w.seeded = True
    with w.inside(f"mtf.seed({w.name('')})"):
        w.statements(3)
        noise(w)
    w.seeded = seeded
    return "done"


def call(w: Writer) -> str | None:
    """A call of a `mtf.function`, a new one or one that was called before."""
    if w.closed:
        return None
    fitting = [
        (f, x)
        for f, dims in w.functions.items()
        for x in w.values()
        if w.dims(x) == dims
    ]
    if fitting and w.maybe():
        f, x = w.pick(fitting)
        w.unused.pop(x, None)
        return w.emit(f"{f}({x})", w.dims(x))
    x = w.value()
    if not x:
        return None
    f = w.name("f")
    h = w.name("h")
    dims = w.dims(x)
    random = w.random
    outer = w.functions
    w.functions = dict(outer)
    with w.alone({h: dims}) as body:
        w.statements(3)
        y = w.brought(h)
    noisy = w.random and not random
    w.random = w.random or random
    w.functions = outer
    w.modules += [
        w.define(f + "_", [h], body, y),
        Assign(f, f"mtf.function({f}_, mesh=mesh)"),
    ]
    if not noisy:
        w.functions[f] = dims
    return w.emit(f"{f}({x})", dims)


def repeat(w: Writer) -> str | None:
    """Layers, each with weights of its own."""
    x = None if w.closed else w.value()
    if not x or 2 * w.iterations > ITERATIONS:
        return None
    name = w.name("repeat")
    dims = w.dims(x)
    source, suffixes = repeated(w, dims, ())
    w.modules.append(Assign(name, source))
    w.variables += [name + suffix for suffix in suffixes]
    return w.emit(f"{name}({x})", dims)


def reversible(w: Writer) -> str | None:
    """Residual layers whose inputs the backward pass computes from their outputs."""
    # With fewer digits, what is subtracted again leaves too much of rounding.
    x = None if w.closed or w.dtype != "float64" else w.value()
    if not x:
        return None
    name = w.name("reversible")
    dims = w.dims(x)
    layers = []
    for k in range(w.pick([1, 2, 3])):
        source, suffixes = layer_of(w, dims, closed=True)
        layers.append(source)
        w.variables += [f"{name}.functions[{k}]{suffix}" for suffix in suffixes]
    w.modules.append(
        Assign(name, f"mtf.layers.Reversible([{', '.join(layers)}], name={name!r})")
    )
    targets = [w.name(), w.name()]
    w.body.append(Assign(", ".join(targets), f"{name}({x} * 1.0, {x} * 0.5)"))
    w.see(targets[1], dims)
    return w.see(targets[0], dims)


def repeated(
    w: Writer, dims: tuple[str, ...], stacks: tuple[str, ...]
) -> tuple[str, list[str]]:
    """Returns the source that makes a Repeat, and the attributes of its variables."""
    dim = w.name("layers")
    w.sizes[dim] = w.pick([2, 3] if 3 * w.iterations <= ITERATIONS else [2])
    w.iterations *= w.sizes[dim]
    layer, suffixes = layer_of(w, dims, (*stacks, dim))
    w.iterations //= w.sizes[dim]
    options = ", recomputed=True" if w.maybe() else ""
    name = w.name("stack")
    return (
        f"mtf.layers.Repeat(lambda: {layer}, '{dim}:{w.sizes[dim]}', "
        f"name={name!r}{options})",
        [f".layer{suffix}" for suffix in suffixes],
    )


def layer_of(
    w: Writer,
    dims: tuple[str, ...],
    stacks: tuple[str, ...] = (),
    tied: str | None = None,
    closed: bool = False,
) -> tuple[str, list[str]]:
    """Returns the source that makes a layer from `dims` to `dims`, and its variables'
    attributes; a closed one uses no others.
    """
    name, h = w.name("layer"), w.name("h")
    makers = []
    parameters = {h: dims}
    attributes = []
    inner = None
    fitting = [d for d in w.base if d not in w.apart]
    own = tuple(w.draw(st.permutations(fitting))[: w.pick([1, 2])])
    parameters[w.name("p")] = own
    makers.append(f"lambda: {w.variable(own, stacks)}")
    attributes.append(".parts[0]")
    if tied:
        parameters[w.name("p")] = w.globals[tied]
        makers.append(f"lambda: {tied}")
    if stacks and w.depth < DEEP and 2 * w.iterations <= ITERATIONS and w.maybe():
        inner = w.name("p")
        with w.block():
            source, suffixes = repeated(w, dims, stacks)
        attributes += [f".parts[{len(makers)}]{suffix}" for suffix in suffixes]
        makers.append(f"lambda: {source}")
    with w.alone(parameters, closed) as body:
        if inner:
            w.emit(f"{inner}({h})", dims)
        w.statements(2)
        y = w.brought(w.brought(h))
    names = [*parameters, *([inner] if inner else [])]
    w.modules.append(w.define(name, names, body, y))
    kind = "RecordedLayer" if w.maybe() else "Layer"
    return f"{kind}({name!r}, {', '.join([name, *makers])})", attributes


CONSTRUCTS: tuple[Rule, ...] = (
    scan,
    summed,
    walk,
    cond,
    recompute,
    region,
    stage,
    seed,
    call,
    custom,
    repeat,
    reversible,
)
