"""Two layers under six layouts: what explain says equals formulas that are derived
here, by hand.

    h = relu(x[b, io] · w[io, dh]);   y = h · v[dh, io]         and, from dy[b, io] backwards,
    dh = dy · v;   dv = h · dy;   dz = dh where h > 0;   dx = dz · w;   dw = x · dz

The two layers are inside a network: dy comes from above, and dx is needed below
(without it, one matmul and, where the hidden layer is sharded, one sum less: there is a
test of that too).

A matmul sums over one name: h and dh over io, y and dx over dh, dv and dw over b.
Where the layout shards that name along an axis of k positions, the matmul is a partial
result, and an all_reduce over the axis brings (k-1)/k of it twice: once summed, once
gathered. Nothing else moves: whatever else a matmul reads and writes is sharded by names
that it has. So, with X the slice of x (y, dy, dx are as large), H that of h (dh, dz
too) and W that of w (v, dv, dw too):

    b  sharded along k:  2(k-1)/k (W + W)       backward
    dh sharded along k:  2(k-1)/k X             forward, and as much backward (dx)
    io sharded along k:  2(k-1)/k H             forward, and as much backward (dh)

Six matmuls of 2·b·io·dh operations are divided equally among all positions. The two
elementwise ops work on shards of h, and are redundant along an axis that shards io.

Memory, in elements that are live in addition to variables and arguments (x and dy): see
`alive`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers.initializers import zeros

# What is live when, for `alive`. Matmuls do not reuse the buffers of their inputs, relu
# and its gradient do. A collective holds its input and its result.
COMPUTED = (
    "2*H + X + W",  # h, y, dh, and now dv
    "H + 2*X + 2*W",
)  # y, dv, dz, dx, and now dw (h went with dz)
SUM_DW = "2*X + 3*W + 1"  # y, dx, dv, dw, the learning rate, and now the sum of dw
SUM_Y = "3*X"  # y, dx, and now the sum of one of them; dv and dw are used
SUM_DH = (
    "3*H + X + W",  # h, y, dv, dh, and now the sum of dh
    "2*H + 2*X + W",  # h, y, dv, the sum of dh, and now the sum of y
    "H + 2*X + 2*W",
)  # as without sums: y, dv, dz, dx, and now dw
SUM_DV = "2*H + X + 2*W"  # h, y, dv, the sum of dh, and now the sum of dv


@dataclasses.dataclass(frozen=True)
class Row:
    """One layout: what lies on a position, what is summed, and the published row."""

    layout: str
    x: str  # X, H and W
    h: str
    w: str
    sums: tuple[
        tuple[str, str], ...
    ]  # (axis, what), forward and, the same again, backward
    weights: str  # the axis over which dw and dv are summed; "": none
    alive: tuple[str, ...]
    communication: str  # as in the table of arXiv 1811.02084, constants left out
    ratio: str  # likewise: communication / computation
    memory: str  # likewise


ROWS = [
    Row("", "b*io", "b*dh", "io*dh", (), "", COMPUTED, "0", "0", "b*io + b*dh + io*dh"),
    Row(
        "batch:n",
        "b*io/n",
        "b*dh/n",
        "io*dh",
        (),
        "n",
        (*COMPUTED, SUM_DW),
        "io*dh",
        "n/b",
        "(b/n)*io + (b/n)*dh + io*dh",
    ),
    Row(
        "hidden:n",
        "b*io",
        "b*dh/n",
        "io*dh/n",
        (("n", "X"),),
        "",
        (*COMPUTED, SUM_Y),
        "b*io",
        "n/dh",
        "b*io + (b/n)*dh + io*dh/n",
    ),
    Row(
        "batch:r;hidden:c",
        "b/r*io",
        "b*dh/(r*c)",
        "io*dh/c",
        (("c", "X"),),
        "r",
        (*COMPUTED, SUM_DW, SUM_Y),
        "(b/r)*io + (dh/c)*io",
        "c/dh + r/b",
        "(b/r)*io + (b/(r*c))*dh + io*dh/c",
    ),
    Row(
        "hidden:r;io:c",
        "b*io/c",
        "b*dh/r",
        "io*dh/(r*c)",
        (("c", "H"), ("r", "X")),
        "",
        (*SUM_DH, SUM_Y),
        "(b/c)*io + (b/r)*dh",
        "r/dh + c/io",
        "(b/c)*io + (b/r)*dh + io*dh/(r*c)",
    ),
    Row(
        "batch:p;hidden:r;io:c",
        "b*io/(p*c)",
        "b*dh/(p*r)",
        "io*dh/(r*c)",
        (("c", "H"), ("r", "X")),
        "p",
        (*SUM_DH, SUM_DV, SUM_DW, SUM_Y),
        "(b/(p*c))*io + (b/(p*r))*dh + io*dh/(r*c)",
        "r/dh + c/io + p/b",
        "(b/(p*c))*io + (b/(p*r))*dh + io*dh/(r*c)",
    ),
]
MESHES = [
    {"p": 2, "r": 3, "c": 5},
    {"p": 4, "r": 2, "c": 3},
    {"p": 3, "r": 8, "c": 4},
    {"p": 7, "r": 5, "c": 2},
    {"p": 16, "r": 4, "c": 8},
]
FORMULAS = pytest.mark.parametrize(
    "row", ROWS, ids=[row.layout or "(nothing)" for row in ROWS]
)
SIZES = pytest.mark.parametrize("axis_sizes", MESHES, ids=str)


def sizes(axis_sizes, rng):
    """Returns sizes of everything: b, io and dh are drawn, so that no two of X, H, W
    are equal.
    """
    n = axis_sizes["p"] * axis_sizes["r"] * axis_sizes["c"]
    b, io, dh = (
        n * int(k) for k in rng.choice([11, 13, 17, 19, 23, 29, 31], 3, replace=False)
    )
    return axis_sizes | {"n": n, "b": b, "io": io, "dh": dh}


def value(formula, row, s):
    """Returns what a formula comes to."""
    local = {
        name: eval(text, {}, s)
        for name, text in (("X", row.x), ("H", row.h), ("W", row.w))
    }
    return eval(formula, {}, s | local)


def terms(formula):
    """Returns the terms of a formula."""
    return [] if formula == "0" else formula.split(" + ")


def explained(row, s, to_x=True):
    """Returns the forecast of a step: forward, backward, and gradient descent."""
    axes = [rule.partition(":")[2] for rule in row.layout.split(";") if rule]
    mesh = mtf.Mesh(
        ";".join(f"{axis}:{s[axis]}" for axis in axes),
        row.layout,
        devices="abstract",
        bucket_bytes=0,
    )  # the formulas are of sums by themselves
    w = mtf.Variable(mesh, f"io:{s['io']};hidden:{s['dh']}", zeros, "w")
    v = mtf.Variable(mesh, f"hidden:{s['dh']};io:{s['io']}", zeros, "v")
    descent = optimizers.SGD([w, v], 0.1)

    @mtf.function(mesh=mesh, x="batch;io", dy="batch;io", step="")
    def layers(x, dy, step):
        y = mtf.einsum([mtf.relu(mtf.einsum([x, w], "batch;hidden")), v], "batch;io")
        *dx, dw, dv = mtf.gradients([y], [*[x] * to_x, w, v], grad_ys=[dy])
        descent.apply_gradients([dw, dv], [w, v], step)
        return (y, *dx)

    x = tf.TensorSpec([s["b"], s["io"]], tf.float32)
    return mtf.explain(layers, x, x, np.int32(0))


def axes_of(row):
    """Returns the axes of a layout, by the name that each shards."""
    return dict(reversed(rule.split(":")) for rule in row.layout.split(";") if rule)


@FORMULAS
@SIZES
def test_operations(row, axis_sizes, rng):
    s = sizes(axis_sizes, rng)
    forecast = explained(row, s)
    positions = np.prod([s[axis] for axis in axes_of(row)], dtype=int)
    product = 2 * s["b"] * s["io"] * s["dh"] / positions
    assert forecast.flops("forward") == 2 * product + value("H", row, s)
    assert forecast.flops("backward") == 4 * product + value("H", row, s)
    copies = next((s[axis] for axis, name in axes_of(row).items() if name == "io"), 1)
    for phase in ("forward", "backward"):
        repeated = forecast.repeated_flops(phase)
        assert repeated == pytest.approx(
            value("H", row, s) * (copies - 1) / copies, rel=1e-12
        )


@FORMULAS
@SIZES
@pytest.mark.parametrize("to_x", [True, False], ids=["", "dx is not needed"])
def test_bytes(row, axis_sizes, to_x, rng):
    s = sizes(axis_sizes, rng)
    forecast = explained(row, s, to_x)
    expected = []
    for axis, symbol in row.sums:
        expected.append((axis, "forward", value(symbol, row, s)))
        if to_x or symbol != "X":
            expected.append((axis, "backward", value(symbol, row, s)))
    expected += [(row.weights, "backward", value("W", row, s))] * 2 * bool(row.weights)
    assert sorted((m.axis, m.phase, m.bytes) for m in forecast.collectives) == sorted(
        (axis, phase, 2 * (s[axis] - 1) / s[axis] * size * 4)
        for axis, phase, size in expected
    )
    assert {m.kind for m in forecast.collectives} <= {"all_reduce"}


@FORMULAS
@SIZES
def test_memory(row, axis_sizes, rng):
    s = sizes(axis_sizes, rng)
    memory = explained(row, s).memory
    assert memory.parameters == memory.gradients == 4 * value("2*W", row, s)
    assert memory.arguments == 4 * value("2*X", row, s)  # nothing reads the step
    assert memory.optimizer_state == memory.other_variables == 0
    alive = max(value(formula, row, s) for formula in row.alive)
    assert memory.peak == memory.parameters + memory.arguments + 4 * alive


@FORMULAS
@SIZES
def test_the_formulas_have_the_terms_of_the_published_table(row, axis_sizes, rng):
    s = sizes(axis_sizes, rng)
    ours = {value(symbol, row, s) for _, symbol in row.sums}
    ours |= {value("W", row, s)} if row.weights else set()
    assert ours == {value(term, row, s) for term in terms(row.communication)}
    computation = (
        s["b"] * s["io"] * s["dh"] / np.prod([s[axis] for axis in axes_of(row)])
    )
    assert sum(ours) / computation == pytest.approx(value(row.ratio, row, s), rel=1e-12)
    assert {value(name, row, s) for name in "XHW"} == {
        value(term, row, s) for term in terms(row.memory)
    }
