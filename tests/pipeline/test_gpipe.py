"""The GPipe wrapper: whatever its stages, microbatches, schedule and layout, the same
training.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from meshtf.partition import CallStep

CASES = [  # mesh, layout, stages, microbatches, schedule, chunks, recompute
    ("", "", 1, 1, "1f1b", 1, False),
    ("", "", 2, 4, "1f1b", 1, False),
    ("stage:2", "", 2, 4, "1f1b", 1, False),
    ("stage:2", "", 2, 4, "gpipe", 1, True),
    ("stage:4", "", 4, 8, "1f1b", 1, True),
    ("stage:2;data:2", "batch:data", 2, 2, "gpipe", 1, False),
    ("stage:2;data:2;model:2", "batch:data;d_ff:model", 2, 4, "1f1b", 1, True),
    ("stage:2", "", 2, 4, "1f1b", 2, False),
]


class Layer(mtf.Module):
    """Takes and returns a pair: the state, and what the first layer saw, for the last
    one.
    """

    def __init__(self, mesh, k):
        super().__init__(f"layer_{k}")
        with self.scope():
            self.norm = mtf.layers.LayerNorm(mesh, "d:8", name="norm")
            self.ff = mtf.layers.FeedForward(mesh, "d:8", "d_ff:16", name="ff")
            self.dropout = mtf.layers.Dropout(0.25, name="dropout")

    def __call__(self, pair):
        x, first = pair
        return x + self.dropout(self.ff(self.norm(x)), training=True), first


def last(pair):
    x, first = pair
    return x + mtf.sin(first)


def pipeline(
    axes, layout, stages, microbatches, schedule, chunks, recompute, seed, **kwargs
):
    mesh = mtf.Mesh(axes, layout, seed=seed, **kwargs)
    layers = [Layer(mesh, k) for k in range(4)] + [last]
    return mesh, mtf.pipeline.GPipe(
        layers,
        stages,
        microbatches,
        schedule,
        chunks,
        recompute=recompute,
        cost=[1, 1, 1, 1, 0.1],
    )


def loss_of(y, labels):
    return mtf.reduce_mean(mtf.square(y - labels))


def train(*case, eager=False, **kwargs):
    """Returns losses of two steps, gradients of variables and input, the variables
    after them.
    """
    mesh, pipe = pipeline(*case, **kwargs)
    seed = case[-1]
    variables = pipe.trainable_variables
    optimizer = mtf.optimizers.AdamW(variables, 0.01)
    rng = np.random.default_rng(seed)
    x, labels = (rng.normal(size=(16, 8)).astype("float32") for _ in range(2))

    def step(x, labels, number):
        with mtf.seed(seed, number):
            loss = pipe.loss(loss_of, (x, x), labels)
        dx, *grads = mtf.gradients([loss * 3.0], [x, *variables])
        optimizer.apply_gradients(grads, variables, number)
        return [loss, dx, *grads]

    program, found = (step if eager else mtf.function(step, mesh=mesh)), []
    for i in range(2):
        args = [mtf.asarray(mesh, a, "batch;d") for a in (x, labels)]
        found += [
            y.numpy() for y in program(*args, mtf.constant(mesh, i, dtype="int32"))
        ]
    return [*found, *(v.numpy() for v in variables)], pipe


def unpipelined(seed):
    """The same without a pipeline."""
    mesh = mtf.Mesh("", seed=seed)
    layers = [Layer(mesh, k) for k in range(4)] + [last]
    variables = [v for layer in layers[:-1] for v in layer.trainable_variables]
    optimizer = mtf.optimizers.AdamW(variables, 0.01)
    rng = np.random.default_rng(seed)
    x, labels = (rng.normal(size=(16, 8)).astype("float32") for _ in range(2))

    @mtf.function(mesh=mesh, x="batch;d", labels="batch;d")
    def step(x, labels, number):
        with mtf.seed(seed, number):
            pair = x, x
            for layer in layers:
                pair = layer(pair)
        loss = loss_of(pair, labels)
        dx, *grads = mtf.gradients([loss * 3.0], [x, *variables])
        optimizer.apply_gradients(grads, variables, number)
        return [loss, dx, *grads]

    found = []
    for i in range(2):
        found += [
            y.numpy() for y in step(x, labels, mtf.constant(mesh, i, dtype="int32"))
        ]
    return [*found, *(v.numpy() for v in variables)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_a_pipeline_trains_as_the_model_without_it(case, seed):
    want = unpipelined(seed)
    got, _ = train(*case, seed)
    for i, (y, expected) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(y, expected, 2e-4, 2e-6, err_msg=str(i))


@pytest.mark.parametrize(
    "case", [CASES[0], CASES[3], CASES[5]], ids=lambda c: c[0] or "one"
)
def test_eagerly_too(case, seed):
    want, got = unpipelined(seed), train(*case, seed, eager=True)[0]
    for i, (y, expected) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(y, expected, 2e-4, 2e-6, err_msg=str(i))


@pytest.mark.parametrize("case", [CASES[2], CASES[3], CASES[5]], ids=lambda c: c[0])
def test_the_loss_may_be_outside(case, seed):
    want = unpipelined(seed)
    mesh, pipe = pipeline(*case, seed)
    rng = np.random.default_rng(seed)
    x, labels = (rng.normal(size=(16, 8)).astype("float32") for _ in range(2))

    @mtf.function(mesh=mesh, x="batch;d", labels="batch;d", number="")
    def step(x, labels, number):
        with mtf.seed(seed, number):
            loss = loss_of(pipe((x, x)), labels)
        return [loss, *mtf.gradients([loss * 3.0], [x, *pipe.trainable_variables])]

    got = step(x, labels, np.int32(0))
    for i, (y, expected) in enumerate(zip(got, want)):
        np.testing.assert_allclose(y.numpy(), expected, 2e-4, 2e-6, err_msg=str(i))
    calls = [
        s
        for s in step.lower(x, labels, np.int32(0)).program.steps
        if isinstance(s, CallStep)
    ]
    assert (
        len({id(s.body) for s in calls}) == 2 * case[2]
        and len(calls) == 2 * case[2] * case[3]
    )


def test_outputs_are_put_together(seed):
    rows = np.arange(16, dtype="float32")[:, None] + np.zeros((16, 8), "float32")
    for case in CASES[1:3] + CASES[5:6]:
        mesh, pipe = pipeline(*case, seed)
        pipe = mtf.pipeline.GPipe([lambda x: x * 2, lambda x: (x + 1, x)], *case[2:5])
        for program in (pipe, mtf.function(pipe.__call__, mesh=mesh)):
            y, doubled = program(mtf.asarray(mesh, rows, "batch;d"))
            np.testing.assert_array_equal(y.numpy(), rows * 2 + 1)
            np.testing.assert_array_equal(doubled.numpy(), rows * 2)


@pytest.mark.parametrize("recorded", [True, False])
def test_batch_norm_moves_by_the_whole_batch(recorded, seed):
    x = np.random.default_rng(seed).normal(1.0, 2.0, size=(16, 8)).astype("float32")
    for axes, stages, microbatches in (
        ("", 1, 4),
        ("stage:2", 2, 4),
        ("stage:2", 2, 1),
    ):
        mesh = mtf.Mesh(axes)
        norms = [
            mtf.layers.BatchNorm(mesh, "d:8", momentum=0.9, name=f"norm_{k}")
            for k in range(2)
        ]
        pipe = mtf.pipeline.GPipe(
            [lambda x, n=n: n(x, training=True) for n in norms],
            stages,
            microbatches,
            cost=[1, 1],
        )

        def step(x, pipe=pipe):
            return pipe.loss(lambda y: mtf.reduce_sum(y * y), x)

        program = mtf.function(step, mesh=mesh) if recorded else step
        program(mtf.asarray(mesh, x, "batch;d"))
        np.testing.assert_allclose(norms[0].moving_mean.numpy(), 0.1 * x.mean(0), 1e-5)
        np.testing.assert_allclose(
            norms[0].moving_variance.numpy(), 0.9 + 0.1 * x.var(0), 1e-5
        )
        each = [x[m::microbatches] for m in range(microbatches)]
        second = np.concatenate(
            [(p - p.mean(0)) / np.sqrt(p.var(0) + 1e-3) for p in each]
        )
        np.testing.assert_allclose(
            norms[1].moving_variance.numpy(), 0.9 + 0.1 * second.var(0), 1e-4
        )


def test_rows_may_be_added(seed):
    x, labels = (
        np.random.default_rng(seed).normal(size=(14, 8)).astype("float32")
        for _ in range(2)
    )
    cut = "stage:2;data:2", "batch:data", 2
    for axes, layout, stages, microbatches in (("", "", 1, 4), (*cut, 4), (*cut, 5)):
        mesh = mtf.Mesh(axes, layout, seed=seed)
        layer = mtf.layers.Dense(mesh, "d:8", "e:8", name="dense")
        pipe = mtf.pipeline.GPipe(
            [layer, lambda x: mtf.rename(x, "e", "d")], stages, microbatches, pad=True
        )

        def weighted(y, labels, weights):
            return mtf.reduce_mean(mtf.square(y - labels) * weights)

        @mtf.function(mesh=mesh, x="batch;d", labels="batch;d")
        def step(x, labels, pipe=pipe, weighted=weighted):
            loss = pipe.loss(weighted, x, labels)
            return [loss, pipe(x), *mtf.gradients([loss], pipe.trainable_variables)]

        @mtf.function(mesh=mesh, x="batch;d", labels="batch;d")
        def plain(x, labels, layer=layer):
            y = mtf.rename(layer(x), "e", "d")
            loss = loss_of(y, labels)
            return [loss, y, *mtf.gradients([loss], layer.trainable_variables)]

        for got, want in zip(step(x, labels), plain(x, labels), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-5, 1e-6)


def test_costs_are_counted_or_measured():
    mesh = mtf.Mesh("")
    x = mtf.zeros(mesh, "batch:256;d:8")
    layers = [
        mtf.layers.FeedForward(mesh, "d:8", f"f{k}:{n}", name=f"ff_{k}")
        for k, n in enumerate((8, 8, 2048))
    ]
    for how in ({}, {"cost": "measured"}):
        pipe = mtf.pipeline.GPipe(layers, 2, 4, inputs=x, **how)
        assert pipe.sizes == (2, 1)
    table = str(mtf.pipeline.GPipe(layers, 2, 4, inputs=x))
    assert "ff_2" in table and "F3" in table and "idle" in table
    assert pipe.timeline().stages == 2


def test_partials_and_methods_have_the_variables_of_their_module():
    mesh = mtf.Mesh("stage:3")
    norms = [mtf.layers.BatchNorm(mesh, "d:8", name=f"norm_{k}") for k in range(3)]
    layers = [
        functools.partial(norms[0], training=True),
        norms[1].__call__,
        functools.partial(functools.partial(norms[2]), training=True),
    ]
    pipe = mtf.pipeline.GPipe(layers, 3, 1)
    assert {v.name for v in pipe.variables} == {
        v.name for norm in norms for v in norm.variables
    }
    assert [v.stage for v in pipe.trainable_variables] == [0, 0, 1, 1, 2, 2]
    assert [(layer.name, layer.parameters) for layer in pipe.costs] == [
        (f"norm_{k}", 16) for k in range(3)
    ]
    pipe(mtf.asarray(mesh, np.ones((4, 8), "float32"), "batch;d"))
    for norm, moved in zip(norms, (True, False, True)):
        assert (norm.moving_variance.numpy() != 1.0).all() == moved


def test_what_is_refused(seed):
    mesh = mtf.Mesh("stage:2")
    x = mtf.zeros(mesh, "batch:6;d:4")
    layers = [lambda x: x * 2] * 4

    def refused(error, match, *args, call=lambda pipe: pipe(x), **kwargs):
        with pytest.raises(error, match=match):
            call(mtf.pipeline.GPipe(*args, **kwargs))

    refused(mtf.PlanError, "layers", layers[:1], 2, 2)
    refused(mtf.PlanError, "no schedule 'gpipee'", layers, 2, 2, "gpipee")
    refused(mtf.PlanError, "3 costs for 4 layers", layers, 2, 2, cost=[1, 2, 3])
    refused(
        mtf.PlanError, "the cost of layers is not 'flops'", layers, 2, 2, cost="flops"
    )
    refused(mtf.PlanError, "measured on an example", layers, 2, 2, cost="measured")
    refused(
        mtf.ShapeError,
        r'4 microbatches .* "batch" of size 6(.|\n)*\[1, 2, 3, 6\]',
        layers,
        2,
        4,
    )
    refused(mtf.MeshError, "3 stages does not fit axis 'stage' of size 2", layers, 3, 2)
    refused(mtf.ShapeError, 'lacks "batch"', [mtf.reduce_sum, lambda x: x], 2, 2)
    refused(mtf.ShapeError, "batch", layers, 2, 2, dim="rows")
    loss = mtf.function(lambda pipe, x: pipe.loss(lambda y: y, x), mesh=mesh)
    for known in ({"inputs": x}, {}):  # of an example, or of variables: when it is made
        several = [Layer(mesh, k) for k in range(4)] if not known else layers
        for stages in (1, 3, 4):
            with pytest.raises(
                mtf.MeshError,
                match=f"{stages} stages? does not fit axis 'stage' of "
                "size 2(.|\n)*test_gpipe.py(.|\n)*stages=2",
            ):
                mtf.pipeline.GPipe(several, stages, 2, **known)
            assert all(
                v.stage is None
                for layer in several
                if not known
                for v in layer.variables
            )
    refused(
        mtf.ShapeError,
        "the loss of a pipeline must be a scalar",
        layers,
        2,
        2,
        call=lambda pipe: loss(pipe, x),
    )


@pytest.mark.parametrize(
    "axes, how", [("", {}), ("stage:2", {"recompute": True})], ids=str
)
def test_what_the_loss_does_not_depend_on_has_no_gradient(axes, how, seed):
    """So that an optimizer leaves it as it is: one that decays would change it for
    zeros.
    """
    mesh = mtf.Mesh(axes, seed=seed)
    dense = [
        mtf.layers.Dense(mesh, "d:8", "d_out:8", name=f"dense_{k}") for k in range(2)
    ]

    def applied(k, x):
        return mtf.rename(dense[k](x), "d_out", "d")

    pipe = mtf.pipeline.GPipe(
        [
            Held(dense[0], lambda x: (x, applied(0, x))),
            Held(dense[1], lambda pair: applied(1, pair[0])),
        ],
        2,
        2,
        **how,
    )

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        loss = pipe.loss(lambda y: mtf.reduce_mean(mtf.square(y)), x)
        return mtf.gradients(
            [loss], [x, *(v for layer in dense for v in layer.trainable_variables)]
        )

    there = [dx is not None for dx in step(np.ones((8, 8), "float32"))]
    assert there == [True, False, False, True, True]


class Held(mtf.Module):
    """A layer of a function and the module whose variables it uses."""

    def __init__(self, module, fn):
        super().__init__("held")
        self.module, self.fn = module, fn

    def __call__(self, x):
        return self.fn(x)


@pytest.mark.parametrize("batch", [6, 4, 2])
def test_rows_are_added_where_microbatches_could_not_be_sharded(batch, seed):
    rows = np.random.default_rng(seed).normal(size=(batch, 8)).astype("float32")
    mesh = mtf.Mesh("stage:2;data:2", "batch:data")
    pipe = mtf.pipeline.GPipe([lambda x: x * 2, mtf.sin], 2, 2, pad=True)

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        return pipe(x), pipe.loss(lambda y, w: mtf.reduce_mean(y * w), x)

    y, loss = step(rows)
    np.testing.assert_allclose(y.numpy(), np.sin(rows * 2), 1e-5, 1e-6)
    np.testing.assert_allclose(loss.numpy(), np.sin(rows * 2).mean(), 1e-4, 1e-6)
