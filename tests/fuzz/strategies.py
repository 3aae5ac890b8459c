"""Strategies of whole programs: meshes, layouts, types, inputs, and what is computed of
them.
"""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from tests.fuzz.judge.optimizers import OPTIMIZERS
from tests.fuzz.program import HALF, Assign, Inside, Mesh, Program
from tests.fuzz.rules.catalogue import OPS
from tests.fuzz.rules.constructs import CONSTRUCTS, layer_of
from tests.fuzz.rules.tables import ONCE
from tests.fuzz.writer import Draw, Writer

MESHES = ("", "data:2", "data:2;model:2", "data:4", "stage:2", "stage:2;data:2")
STAGED = ("", "stage:2", "stage:2;data:2", "data:2")
DTYPES = ("float32", "float64", HALF)
MODES = ("function", "eager", "jit", "export", "live")


@st.composite
def programs(draw: Draw, modes: tuple[str, ...] = MODES) -> Program:
    """Ops, loops, branches, regions, stages, seeds, functions and repeated layers."""
    w, axes = _start(draw, 1)
    _inputs(w, ["batch", "d", "e", "t"])
    w.statements(5)
    return _finish(w, axes, draw(st.sampled_from(modes)), w.pick([1, 0, 2]))


@st.composite
def microbatches(draw: Draw, modes: tuple[str, ...] = MODES) -> Program:
    """Gradients of a batch in parts, of ops that treat each row of the batch
    by itself; the loss may be a weighted mean.
    """
    w, axes = _start(draw, draw(st.sampled_from([2, 4])))
    _inputs(w, ["d", "e", "t"], first="batch")
    weights = _weights(w)
    w.statements(4)
    y = w.value(lambda x: "batch" in w.dims(x)) if weights else None
    loss = w.emit(f"mtf.layers.weighted_mean({y}, {weights})", ()) if y else ""
    return _finish(
        w, axes, draw(st.sampled_from(modes)), 1, loss, microbatches=w.microbatches
    )


@st.composite
def trainings(draw: Draw, modes: tuple[str, ...] = MODES) -> Program:
    """Three steps of training by an optimizer, with or without microbatches."""
    w, axes = _start(draw, draw(st.sampled_from([1, 2])), dtypes=DTYPES)
    _inputs(w, ["d", "e", "t"], first="batch")
    # An optimizer takes each name once, and a copy has the name of the original.
    w.variables = [x for x in w.variables if not x.endswith("_copy")]
    w.exact -= {*w.variables}  # steps round them
    w.statements(3)
    program = _finish(
        w, axes, draw(st.sampled_from(modes)), 1, microbatches=w.microbatches
    )
    slots = w.layout(
        w.shapes,
        ";".join(filter(None, (program.mesh.layout, program.mesh.variable_layout))),
    )
    return dataclasses.replace(
        program,
        optimizer=w.pick([*OPTIMIZERS]),
        copied=w.maybe(),
        mesh=dataclasses.replace(program.mesh, optimizer_layout=slots),
    )


@st.composite
def pipelines(draw: Draw, modes: tuple[str, ...] = MODES) -> Program:
    """Layers in stages, some with one variable in common, and a loss of
    microbatches.
    """
    w, axes = _start(draw, draw(st.sampled_from([2, 4])), STAGED)
    dims = _inputs(w, ["d", "e", "t"], first="batch", same=True)
    layers = []
    for k in range(w.pick([2, 3])):
        tied = w.pick([*w.globals]) if w.maybe() else None
        source, suffixes = layer_of(w, dims, tied=tied)
        w.variables += [f"pipe.layers[{k}]{suffix}" for suffix in suffixes]
        layers.append(source)
    how = f"2, {w.microbatches}, {w.pick(['1f1b', 'gpipe'])!r}, recompute={w.maybe()}"
    w.modules.append(
        Assign(
            "pipe",
            f"mtf.pipeline.GPipe([{', '.join(layers)}], {how}, "
            f"cost={[1] * len(layers)})",
        )
    )
    names = [x for x in w.scope if x.startswith("x")]
    square = "lambda y, target: mtf.reduce_mean(mtf.square(y - target))"
    weighted = (
        "lambda y, target, k: mtf.layers.weighted_mean(mtf.square(y - target), k)"
    )
    w.unused.clear()
    weights = _weights(w)
    if weights:
        loss = w.emit(f"pipe.loss({weighted}, {names[0]}, {names[-1]}, {weights})", ())
    elif w.maybe():
        loss = w.emit(f"pipe.loss({square}, {names[0]}, {names[-1]})", ())
    else:
        w.emit(f"pipe({names[0]})", dims)
        loss = ""
    if w.random:
        w.body = [Inside("mtf.seed(1)", tuple(w.body))]
    return _finish(w, axes, draw(st.sampled_from(modes)), 1, loss=loss)


def _start(
    draw: Draw,
    microbatches: int,
    meshes: tuple[str, ...] = MESHES,
    dtypes: tuple[str, ...] = ("float64", "float32", HALF),
) -> tuple[Writer, str]:
    axes = draw(st.sampled_from(meshes))
    # Whether axes need not divide sizes: then padding is poisoned, see `judging.py`.
    uneven = draw(st.booleans())
    sizes = {
        "batch": 4 if microbatches == 1 else 8,
        **{d: draw(st.sampled_from([3, 5, 4] if uneven else [2, 4])) for d in "de"},
        "t": draw(st.sampled_from([2, 3])),
    }
    w = Writer(
        draw,
        sizes,
        draw(st.sampled_from(dtypes)),
        ("batch",) if microbatches > 1 else (),
        microbatches,
        OPS,
        CONSTRUCTS,
        uneven=uneven,
    )
    split = [a.split(":") for a in axes.split(";") if a]
    w.axes = {name: int(n) for name, n in split if name != "stage"}
    w.stages = 2 if "stage" in axes else 1
    return w, axes


def _inputs(
    w: Writer, dims: list[str], first: str = "", same: bool = False
) -> tuple[str, ...]:
    """Draws inputs and variables; returns the dimensions of the last input."""
    shape: tuple[str, ...] = ()
    for k in range(w.pick([1, 2])):
        if not same or not k:
            own = w.draw(st.permutations(dims))[: w.pick([1, 2, 3])]
            shape = tuple(w.draw(st.permutations([*own, *([first] if first else [])])))
        w.inputs.append((w.name("x"), w.shape(shape), 0))
        w.exact.add(w.see(w.inputs[-1][0], shape))
    if w.maybe():
        into = w.pick([d for d in dims if d != "batch"])
        w.inputs.append((w.name("i"), w.shape(["batch"]), w.sizes[into]))
        w.ids[w.inputs[-1][0]] = ("batch",), into
    for _ in range(w.pick([1, 2])):
        name = _variable(
            w, tuple(w.draw(st.permutations([d for d in dims if d != "batch"]))[:2])
        )
    if w.maybe():
        w.modules.append(Assign(f"{name}_copy", f"copy.deepcopy({name})"))
        _declare(w, f"{name}_copy", w.globals[name])
    if w.maybe():
        w.sizes["expert"] = 4
        w.experts = _variable(w, ("d", "expert")), _variable(w, ("expert", "d", "e"))
    w.unused.clear()
    return shape


def _weights(w: Writer) -> str:
    """Returns the source of weights of examples, 0 for some of them; "": there are none."""
    ids = [x for x, (dims, _) in w.ids.items() if dims == ("batch",)]
    if not ids or not w.maybe():
        return ""
    return f"mtf.cast({w.pick(ids)}, {w.dtype!r})"


def _variable(w: Writer, dims: tuple[str, ...]) -> str:
    name = w.name("w")
    statement: Assign | Inside = Assign(name, w.variable(dims))
    if w.stages > 1 and w.maybe():
        statement = Inside(f"mtf.stage({w.pick(range(w.stages))})", (statement,))
    w.modules.append(statement)
    return _declare(w, name, dims)


def _declare(w: Writer, name: str, dims: tuple[str, ...]) -> str:
    """Makes a variable visible everywhere; returns its name."""
    w.variables.append(name)
    w.globals[name] = w.see(name, dims) and dims
    w.exact.add(name)
    return name


def _finish(
    w: Writer, axes: str, mode: str, order: int, loss: str = "", microbatches: int = 1
) -> Program:
    """Returns the program: its loss is of all values that nothing has used."""
    left = [x for x in w.unused if x in w.scope] or w.values()[:1]
    if w.stages > 1 and mode == "export":
        mode = "function"  # stages are refused there
    if any(ONCE.search(line) for s in (*w.modules, *w.body) for line in s.lines()):
        order = min(order, 1)
    layout = w.layout(w.shapes)
    devices = w.pick(["", f"separate:{_size(axes)}"])
    if mode == "live":
        devices = "spmd:cpu"
    mesh = Mesh(
        axes,
        layout,
        w.layout(w.shapes, layout) if w.maybe() else "",
        devices=devices,
    )
    return Program(
        mesh,
        w.dtype,
        tuple(w.inputs),
        tuple(w.modules),
        tuple(w.variables),
        tuple(w.body),
        tuple(left),
        loss,
        mode,
        order,
        microbatches,
        w.random,
        dims=w.seen,
    ).trimmed()


def _size(axes: str) -> int:
    size = 1
    for axis in axes.split(";"):
        size *= int(axis.split(":")[1]) if axis else 1
    return size


CASES = {
    f"{strategy.__name__} {mode}": strategy((mode,))
    for strategy in (programs, microbatches, pipelines, trainings)
    for mode in MODES
    if (strategy, mode) != (trainings, "export")
}
