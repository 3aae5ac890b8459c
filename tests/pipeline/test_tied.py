"""A variable that chunks of two stages use: the loss and gradients of plain
TensorFlow.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

BATCH, LENGTH, VOCAB, D = 16, 4, 8, 8
SCHEDULES = [
    {"schedule": "gpipe"},
    {"schedule": "1f1b"},
    {"chunks": 2},
    {"schedule": "1f1b", "recompute": True},
    {"schedule": "gpipe", "recompute": True},
]
# mesh, stages, layout, variable layout
MESHES = [
    ("stage:2;data:2", 2, "batch:data", ""),
    ("stage:2;data:2", 2, "batch:data", "d:data"),
    ("data:2;stage:2", 2, "batch:data", "vocab:data"),
    ("stage:2;data:2", 2, "length:data", ""),
    ("stage:2;model:2", 2, "vocab:model", ""),
    ("stage:2;model:2", 2, "length:model", "vocab:model"),
    ("stage:2;model:2", 2, "d:model", ""),
    ("stage:2;data:2;model:2", 2, "batch:data;vocab:model", ""),
    ("stage:2;data:2;model:2", 2, "batch:data;vocab:model", "d:data"),
    ("stage:4", 4, "", ""),
    ("stage:4;data:2", 4, "batch:data", ""),
    ("data:2", 2, "batch:data", ""),
]


class Tied:
    """An embedding, four layers, and logits by the table of the embedding."""

    def __init__(self, mesh, values):
        table, *inner = values
        self.table = mtf.Variable(
            mesh, f"vocab:{VOCAB};d:{D}", constant(table), name="table"
        )
        self.inner = [
            mtf.Variable(mesh, f"d:{D};e:{D}", constant(w), name=f"inner_{k}")
            for k, w in enumerate(inner)
        ]
        self.variables = [self.table, *self.inner]

    def layers(self):
        return [
            Part(self.embed, [self.table]),
            *(
                Part(
                    lambda x, w=w: (
                        x
                        + mtf.rename(
                            mtf.tanh(mtf.einsum([x, w], "batch;length;e")), "e", "d"
                        )
                    ),
                    [w],
                )
                for w in self.inner
            ),
            Part(self.logits, [self.table]),
        ]

    def embed(self, tokens):
        return mtf.gather(self.table, tokens, "vocab")

    def logits(self, x):
        return mtf.einsum([x, self.table], "batch;length;vocab")


class Part(mtf.Module):
    """A layer of a function and the variables that it uses."""

    def __init__(self, fn, variables):
        super().__init__("part")
        self.fn, self.held = fn, variables

    def __call__(self, x):
        return self.fn(x)


def constant(value):
    return lambda mesh, shape, name: mtf.asarray(mesh, value, shape)


def loss_of(logits, targets):
    return mtf.reduce_mean(mtf.cross_entropy(logits, targets, "vocab"))


def numbers(seed):
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=(VOCAB, D)), *(rng.normal(size=(D, D)) for _ in range(4))]
    tokens, targets = rng.integers(0, VOCAB, (2, BATCH, LENGTH)).astype("int32")
    return [v.astype("float32") for v in values], tokens, targets


def expected(values, tokens, targets):
    """Returns the loss and gradients by TensorFlow's tape."""
    table, *inner = map(tf.constant, values)
    with tf.GradientTape() as tape:
        tape.watch([table, *inner])
        x = tf.gather(table, tokens)
        for w in inner:
            x = x + tf.tanh(x @ w)
        logits = tf.einsum("bld,vd->blv", x, table)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=targets, logits=logits
            )
        )
    return [
        loss.numpy(),
        *(
            tf.convert_to_tensor(g).numpy()
            for g in tape.gradient(loss, [table, *inner])
        ),
    ]


def made(axes, stages, layout, variables, how, values, **mesh):
    """Returns a mesh, the net on it, and its pipeline."""
    mesh = mtf.Mesh(axes, layout, variable_layout=variables, **mesh)
    net = Tied(mesh, values)
    layers = net.layers()
    return mesh, net, mtf.pipeline.GPipe(layers, stages, 4, **how)


def compare(got, want):
    for i, (y, expect) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(y.numpy(), expect, 2e-4, 2e-6, err_msg=str(i))


def step_of(net, pipe, inside=True):
    """Returns a function that gives the loss, taken inside or outside the pipeline, and
    gradients.
    """

    def step(tokens, targets):
        loss = (
            pipe.loss(loss_of, tokens, targets)
            if inside
            else loss_of(pipe(tokens), targets)
        )
        return [loss, *mtf.gradients([loss], net.variables)]

    return step


@pytest.mark.sampled(20, each="how layout")
@pytest.mark.parametrize("how", SCHEDULES, ids=str)
@pytest.mark.parametrize("axes, stages, layout, variables", MESHES, ids=str)
def test_a_tied_table_has_the_gradient_of_both_uses(
    axes, stages, layout, variables, how, seed
):
    if how.get("chunks", 1) * stages > 6:
        pytest.skip("there are fewer layers than chunks")
    values, tokens, targets = numbers(seed)
    mesh, net, pipe = made(axes, stages, layout, variables, how, values)
    step = mtf.function(
        step_of(net, pipe), mesh=mesh, tokens="batch;length", targets="batch;length"
    )
    compare(step(tokens, targets), expected(values, tokens, targets))


@pytest.mark.sampled(5, each="case mode")
@pytest.mark.parametrize(
    "mode", ["loss outside", "eager", "eager, loss outside", "own devices"]
)
@pytest.mark.parametrize("case", [MESHES[1], MESHES[5], MESHES[10]], ids=str)
def test_other_modes_agree(case, mode, seed):
    values, tokens, targets = numbers(seed)
    positions = 4 if "stage:2" in case[0] else 8
    own = {"devices": f"separate:{positions}"} if mode == "own devices" else {}
    for how in SCHEDULES[:1] + SCHEDULES[3:4]:
        mesh, net, pipe = made(*case, how, values, **own)
        step = step_of(net, pipe, inside="outside" not in mode)
        if "eager" not in mode:
            step = mtf.function(step, mesh=mesh)
        compare(
            step(*(mtf.asarray(mesh, x, "batch;length") for x in (tokens, targets))),
            expected(values, tokens, targets),
        )


def test_a_table_may_lie_at_a_later_stage_than_its_last_use(seed):
    """In chunks of two stages, the chunks at stages 0, 1, 0, 1: the second and third use
    it.
    """
    values, tokens, targets = numbers(seed)
    table, *inner = values

    def net_of(mesh):
        net = Tied(mesh, values)
        first, *middle, last = net.layers()
        return net, [lambda tokens: tokens, first, last, lambda y: y * 2.0]

    mesh = mtf.Mesh("stage:2;data:2", "batch:data", "d:data")
    net, layers = net_of(mesh)
    pipe = mtf.pipeline.GPipe(layers, 2, 4, chunks=2)
    assert net.table.placement.stage == 1

    @mtf.function(mesh=mesh, tokens="batch;length", targets="batch;length")
    def step(tokens, targets):
        loss = pipe.loss(loss_of, tokens, targets)
        return loss, *mtf.gradients([loss], [net.table])

    with tf.GradientTape() as tape:
        table = tf.constant(table)
        tape.watch(table)
        logits = 2 * tf.einsum("bld,vd->blv", tf.gather(table, tokens), table)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=targets, logits=logits
            )
        )
    compare(
        step(tokens, targets), [loss, tf.convert_to_tensor(tape.gradient(loss, table))]
    )


@pytest.mark.parametrize(
    "layout, variables", [("batch:data", ""), ("batch:data", "d:data")]
)
def test_microbatches_send_and_reduce_no_more_of_the_table(layout, variables, seed):
    values, tokens, targets = numbers(seed)

    def collectives(microbatches):
        mesh = mtf.Mesh("stage:2;data:2", layout, variable_layout=variables)
        net = Tied(mesh, values)
        pipe = mtf.pipeline.GPipe(net.layers(), 2, microbatches)
        step = mtf.function(
            step_of(net, pipe), mesh=mesh, tokens="batch;length", targets="batch;length"
        )
        return sorted(
            m
            for m in step.lower(tokens, targets).collectives
            if f"[vocab:{VOCAB} d:{D}]" in m and not m.startswith("drop")
        )

    if not variables:  # else it depends on rows where tables are gathered
        assert collectives(2) == collectives(8)
    assert (
        sum(m.startswith("send") for m in collectives(8)) == 2
    )  # the table, and its cotangent
