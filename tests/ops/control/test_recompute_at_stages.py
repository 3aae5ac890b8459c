"""Recomputed ops of several stages: the numbers of plain TensorFlow, and what they wait
for.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.partition import Compute, walk

BATCH, D = 8, 4
MESHES = {
    "stage:2": "",
    "stage:2;data:2": "batch:data",
    "data:2;stage:2": "batch:data",
    "stage:2;model:2": "d:model",
    "stage:4": "",
    "data:2": "batch:data",
    "": "",
}


class Parts:
    """The same ops on tensors of meshtf, at stages, and on those of TensorFlow."""

    def __init__(self, ws, mesh=None, microbatches=4):
        self.ws, self.mesh, self.microbatches = ws, mesh, microbatches
        self.stages = 1 if mesh is None else mesh.axes.get("stage", 1)

    def layer(self, k, x):
        """tanh(x · w) + x, at stage k."""
        if self.mesh is None:
            return tf.tanh(x @ self.ws[k]) + x
        with mtf.stage(k % self.stages):
            y = mtf.tanh(mtf.einsum([x, self.ws[k]], "batch;e"))
            return mtf.rename(y, "e", "d") + x

    def free(self, x):
        """sin(x · 2), wherever x lies."""
        return tf.sin(x * 2) if self.mesh is None else mtf.sin(x * 2)

    def again(self, fn):
        return fn if self.mesh is None else mtf.recompute(fn)

    def scan(self, fn, x, length):
        if self.mesh is None:
            for _ in range(length):
                x = fn(x)
            return x
        return mtf.scan(lambda h, _: (fn(h), None), x, length=length)[0]

    def cond(self, fn, other, x):
        if self.mesh is None:
            return fn(x)
        return mtf.cond(mtf.reduce_sum(x * x) >= 0, lambda: fn(x), lambda: other(x))

    def pipe(self, x, ks=(0, 1, 2, 3)):
        if self.mesh is None:
            for k in ks:
                x = self.layer(k, x)
            return x
        return self.pipeline(ks)(x)

    def pipe_loss(self, x):
        if self.mesh is None:
            return tf.reduce_mean(tf.square(self.pipe(x)))
        return self.pipeline((0, 1, 2, 3)).loss(
            lambda y: mtf.reduce_mean(mtf.square(y)), x
        )

    def pipeline(self, ks, again=False):
        layers = [Layer(self.ws[k]) for k in ks]
        if again:
            layers = [mtf.recompute(layer) for layer in layers]
        return mtf.pipeline.GPipe(
            layers, max(2, self.stages), self.microbatches, recompute=again
        )

    def recomputed_pipe(self, x):
        return (
            self.pipe(x)
            if self.mesh is None
            else self.pipeline((0, 1, 2, 3), again=True)(x)
        )

    def stop(self, x):
        return (tf if self.mesh is None else mtf).stop_gradient(x)

    def mean(self, y):
        return (tf if self.mesh is None else mtf).reduce_mean(y * y)


class Layer(mtf.Module):
    """A layer that leaves its stage to the pipeline."""

    def __init__(self, w):
        super().__init__("layer")
        self.w = w

    def __call__(self, x):
        y = mtf.tanh(mtf.einsum([x, self.w], "batch;e"))
        return mtf.rename(y, "e", "d") + x


def two(p, x):
    return p.mean(p.again(lambda x: p.layer(1, p.layer(0, x)))(x))


def back(p, x):
    return p.mean(p.again(lambda x: p.layer(0, p.layer(1, x)))(x))


def between(p, x):
    y = p.again(
        lambda x: p.free(p.layer(2, p.free(p.layer(1, p.free(p.layer(0, x))))))
    )(x)
    return p.mean(p.layer(3, y))


def from_the_last_stage(p, x):
    y = p.layer(3, x)
    return p.mean(p.layer(3, p.again(lambda x: p.layer(0, x))(y)))


def nothing_inside(p, x):
    return p.mean(p.layer(1, p.again(lambda x: p.free(x))(p.layer(0, x))))


def nested(p, x):
    inner = p.again(lambda x: p.layer(2, p.layer(1, x)))
    return p.mean(p.again(lambda x: p.layer(3, p.free(inner(p.layer(0, x)))))(x))


def several_results(p, x):
    y, z = p.again(lambda x: (p.layer(0, x), p.layer(1, p.free(x))))(x)
    return p.mean(y) + p.mean(p.layer(2, z))


def in_a_loop(p, x):
    inner = p.again(lambda x: p.layer(1, p.layer(0, x)))
    return p.mean(p.layer(2, p.scan(inner, x, 3)))


def around_a_loop(p, x):
    return p.mean(
        p.again(
            lambda x: p.layer(2, p.scan(lambda x: p.layer(1, p.layer(0, x)), x, 3))
        )(x)
    )


def a_branch(p, x):
    return p.mean(
        p.again(
            lambda x: p.layer(
                2,
                p.cond(lambda x: p.layer(1, p.layer(0, x)), lambda x: p.layer(0, x), x),
            )
        )(x)
    )


def around_a_pipeline(p, x):
    return p.mean(p.again(p.pipe)(x))


def between_pipelines(p, x):
    y = p.again(lambda x: p.free(p.pipe(p.free(x), (0, 1, 2, 3))))(x)
    return p.mean(p.layer(1, y))


def around_its_loss(p, x):
    return p.again(p.pipe_loss)(x) * 3.0


def without_a_gradient(p, x):
    y = p.again(lambda x: p.layer(1, p.layer(0, x)))(x)
    return p.mean(p.layer(2, x) + p.stop(y))


def recomputed_inside_too(p, x):
    return p.mean(p.again(lambda x: p.free(p.recomputed_pipe(x)))(p.layer(1, x)))


PROGRAMS = [
    two,
    back,
    between,
    from_the_last_stage,
    nothing_inside,
    nested,
    several_results,
    in_a_loop,
    around_a_loop,
    a_branch,
    around_a_pipeline,
    between_pipelines,
    around_its_loss,
    without_a_gradient,
    recomputed_inside_too,
]


def numbers(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(D, D)).astype("float32") for _ in range(4)], rng.normal(
        size=(BATCH, D)
    ).astype("float32")


def expected(program, seed):
    values, x = numbers(seed)
    ws, x = [tf.constant(w) for w in values], tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch([*ws, x])
        loss = program(Parts(ws), x)
    grads = tape.gradient(
        loss, [*ws, x], unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return [loss.numpy(), *(g.numpy() for g in grads)]


def variables(mesh, values):
    """Returns variables with these values, at one stage after the other."""
    ws = []
    for k, value in enumerate(values):
        with mtf.stage(k % mesh.axes.get("stage", 1)):
            ws.append(
                mtf.Variable(
                    mesh,
                    f"d:{D};e:{D}",
                    lambda mesh, shape, name, value=value: mtf.asarray(
                        mesh, value, shape
                    ),
                    name=f"w_{k}",
                )
            )
    return ws


def actual(program, seed, axes, layout, eager=False, jit=False, **kwargs):
    values, x = numbers(seed)
    mesh = mtf.Mesh(axes, layout, seed=seed, **kwargs)
    ws = variables(mesh, values)

    def step(x):
        loss = program(Parts(ws, mesh), x)
        grads = mtf.gradients([loss], [*ws, x])
        return [
            loss,
            *(
                mtf.zeros(mesh, like.shape) if g is None else g
                for g, like in zip(grads, [*ws, x])
            ),
        ]

    fn = step if eager else mtf.function(step, mesh=mesh, jit=jit)
    return [y.numpy() for y in fn(mtf.asarray(mesh, x, "batch;d"))]


@pytest.mark.sampled(30, each="program axes")
@pytest.mark.parametrize("axes", MESHES, ids=lambda axes: axes or "one")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_recomputed_stages_change_no_number(program, axes, seed):
    got = actual(program, seed, axes, MESHES[axes])
    for i, (y, want) in enumerate(zip(got, expected(program, seed), strict=True)):
        np.testing.assert_allclose(y, want, 2e-4, 2e-6, err_msg=str(i))


@pytest.mark.sampled(18, each="program mode")
@pytest.mark.parametrize("mode", ["eager", "own devices", "jit", "FSDP"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_other_modes_agree(program, mode, seed):
    how = {
        "eager": {"eager": True},
        "own devices": {"devices": "separate:4"},
        "jit": {"jit": True},
        "FSDP": {"variable_layout": "e:data"},
    }[mode]
    got = actual(program, seed, "stage:2;data:2", "batch:data", **how)
    for i, (y, want) in enumerate(zip(got, expected(program, seed), strict=True)):
        np.testing.assert_allclose(y, want, 2e-4, 2e-6, err_msg=str(i))


@pytest.mark.parametrize("axes", ["stage:2;data:2", "stage:4"])
@pytest.mark.parametrize(
    "program",
    [two, back, between, nested, several_results, in_a_loop],
    ids=lambda fn: fn.__name__,
)
def test_gradients_of_gradients(program, axes, seed):
    values, x = numbers(seed)
    with tf.GradientTape() as outer:
        ws, start = [tf.constant(w) for w in values], tf.constant(x)
        outer.watch([*ws, start])
        with tf.GradientTape() as tape:
            tape.watch(start)
            loss = program(Parts(ws), start)
        size = tf.reduce_sum(tape.gradient(loss, start) ** 2)
    want = outer.gradient(
        size, [*ws, start], unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    mesh = mtf.Mesh(axes, MESHES[axes], seed=seed)
    ws = variables(mesh, values)

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        (dx,) = mtf.gradients([program(Parts(ws, mesh), x)], [x])
        return mtf.gradients([mtf.reduce_sum(dx * dx)], [*ws, x])

    for y, expect in zip(step(x), want, strict=True):
        np.testing.assert_allclose(0.0 if y is None else y.numpy(), expect, 1e-3, 1e-5)


def planned(program, axes, layout, **kwargs):
    """Returns the program of a step, and its forecast."""
    values, x = numbers(0)
    mesh = mtf.Mesh(axes, layout, **kwargs)
    ws = variables(mesh, values)

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        return mtf.gradients([program(Parts(ws, mesh), x)], ws)

    return step.lower(x).program, step.explain(x)


@pytest.mark.parametrize("axes", ["stage:2;data:2", "stage:4"])
@pytest.mark.parametrize(
    "program",
    [p for p in PROGRAMS if p is not without_a_gradient],
    ids=lambda fn: fn.__name__,
)
def test_what_is_waited_for_is_there_at_the_stage(program, axes):
    steps = [step for step, _ in walk(planned(program, axes, MESHES[axes])[0])]
    waiting = [step for step in steps if step.waits_for]
    assert waiting
    for step in (step for step in waiting if isinstance(step, Compute)):
        stage = step.waits_for[0].placement.stage
        assert stage in (None, step.plan.stage), step.node.source


@pytest.mark.parametrize("axes", ["stage:2;data:2", "stage:2"])
def test_stages_send_no_more_than_a_number_to_wait(axes):
    def sent(again):
        def program(p, x):
            def fn(x):
                return p.layer(1, p.layer(0, p.layer(1, p.layer(0, x))))

            return p.mean(p.layer(1, (p.again(fn) if again else fn)(x)))

        forecast = planned(program, axes, MESHES[axes])[1]
        return [m for m in forecast.collectives if m.kind in ("send", "broadcast")]

    size = sum(m.bytes for m in sent(False))
    once = (
        3 * BATCH * D * 4 / (2 if "data" in axes else 1) / 2
    )  # forwards in the second run
    assert 0 < sum(m.bytes for m in sent(True)) - size <= once + 8


def test_both_stages_hold_less(seed):
    """Blocks of four layers at each stage, one after the other, each block recomputed
    or not.
    """

    def held(again):
        def program(p, x):
            def block(x):
                for k in (0, 0, 0, 0, 1, 1, 1, 1):
                    x = p.layer(k, x)
                return x

            for _ in range(4):
                x = (p.again(block) if again else block)(x)
            return p.mean(x)

        return [s.activations for s in planned(program, "stage:2", "")[1].stages]

    for less, more in zip(held(True), held(False), strict=True):
        assert less < 0.5 * more
