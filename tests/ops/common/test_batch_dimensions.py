"""Random numbers of microbatches are those of the whole batch, whatever its dimension
became.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

pytestmark = pytest.mark.filterwarnings("ignore::meshtf.errors.LayoutWarning")
MESHES = [("", ""), ("data:2;model:2", "batch:data;rows:data;tokens:data;length:model")]
SHAPE = {"batch": 8, "length": 6, "d": 4}


def renamed(x):
    return mtf.dropout(mtf.rename(x, "batch", "rows"), 0.5)


def swapped(x):
    return mtf.dropout(mtf.rename(x, {"batch": "length", "length": "batch"}), 0.5)


def tokens(x):
    y = mtf.dropout(mtf.flatten(x, ["batch", "length"], "tokens"), 0.5)
    return mtf.dropout(
        mtf.unflatten(y, "tokens", [x.shape.dim("batch"), ("of_length", 6)]),
        0.5,
        name="again",
    )


def tokens_by_length(x):
    return mtf.dropout(mtf.flatten(x, ["length", "batch"], "tokens"), 0.5)


def in_the_middle(x):
    x = mtf.transpose(mtf.unflatten(x, "length", "page:2;line:3"), "page;batch;line;d")
    return mtf.dropout(mtf.flatten(x, ["page", "batch", "line"], "tokens"), 0.5)


def merged_again(x):
    y = mtf.unflatten(
        mtf.flatten(x, ["batch", "length"], "tokens"),
        "tokens",
        [("group", x.shape["batch"] * 2), ("inside", 3)],
    )
    y = mtf.tanh(mtf.flatten(y, ["group", "inside"], "tokens"))
    return mtf.dropout(
        mtf.unflatten(y, "tokens", [x.shape.dim("batch"), x.shape.dim("length")]), 0.5
    )


def split_finer(x):
    y = mtf.flatten(x, ["batch", "length"], "tokens")
    return mtf.dropout(
        mtf.unflatten(y, "tokens", [("page", x.shape["batch"] * 2), ("inside", 3)]), 0.5
    )


def reshaped(x):
    n = x.shape["batch"]
    return mtf.dropout(mtf.reshape(x, [("rows", n), ("features", 24)]), 0.5)


def of_one_feature(x):
    x = mtf.slice(x, "d", 0, 1)
    return mtf.dropout(mtf.reshape(x, [("rows", x.shape["batch"]), ("l", 6)]), 0.5)


def shared_mask(x):
    return mtf.dropout(x, 0.5, broadcast="batch")


def numbers(x):
    y = mtf.rename(x, "batch", "rows")
    return (
        y * mtf.random_normal(x.mesh, y.shape)
        + mtf.random_uniform(x.mesh, y.shape)
        + mtf.cast(mtf.categorical(y, "d", seed=5), "float32")
    )


def by_rows(x):
    _, rows = mtf.scan(lambda c, row: (c, mtf.dropout(row, 0.5)), None, x, "batch")
    return rows


def by_tokens(x):
    y = mtf.flatten(x, ["batch", "length"], "tokens")
    _, rows = mtf.scan(lambda c, row: (c, mtf.dropout(row, 0.5)), None, y, "tokens")
    return rows


def beside_sorting(x):
    apart = mtf.reduce_sum(mtf.sort(x, "batch") * 0.0) + mtf.reduce_sum(
        mtf.sort(x, "length") * 0.0
    )
    return mtf.dropout(mtf.rename(x, "length", "line") + apart, 0.5)


MODELS = [
    renamed,
    swapped,
    tokens,
    tokens_by_length,
    in_the_middle,
    merged_again,
    split_finer,
    reshaped,
    of_one_feature,
    shared_mask,
    numbers,
    by_rows,
    by_tokens,
    beside_sorting,
]


def batch(mesh, seed):
    x = np.random.default_rng(seed).normal(size=list(SHAPE.values())).astype("float32")
    return mtf.asarray(mesh, x, "batch;length;d")


def total(model, x):
    """A loss of which each element counts by itself, so that it tells masks apart."""
    y = model(x)
    return mtf.reduce_sum(mtf.square(y)) / float(x.shape["batch"])


def gradient_of_whole(model, x):
    with mtf.seed(7):
        loss = total(model, x)
    return [y.numpy() for y in (loss, *mtf.gradients([loss], [x]))]


def accumulated(model, x, microbatches):
    with mtf.seed(7):
        return mtf.optimizers.accumulate_gradients(
            lambda x: total(model, x), [], x, "batch", microbatches
        )[:1]


def piped(model, x, microbatches):
    pipe = mtf.pipeline.GPipe(
        [lambda x: mtf.rename(x, "d", "e"), lambda x: mtf.rename(x, "e", "d")],
        2,
        microbatches,
    )
    with mtf.seed(7):
        loss = pipe.loss(lambda y: total(model, y), x)
    return [loss, *mtf.gradients([loss], [x])]


# What runs, over so many microbatches; None: of which each has one element.
MODES = [
    (accumulated, 2, "recorded"),
    (accumulated, None, "eager"),
    (piped, 4, "recorded"),
    (piped, None, "recorded"),
    (piped, 2, "eager"),
]


@pytest.mark.sampled(45, each="model axes run")
@pytest.mark.parametrize("model", MODELS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("axes, layout", MESHES, ids=["one device", "four positions"])
@pytest.mark.parametrize("run, count, mode", MODES)
def test_numbers_are_those_of_the_whole_batch(
    model, axes, layout, run, count, mode, seed
):
    mesh = mtf.Mesh(axes, layout)
    x = batch(mesh, seed)
    want = gradient_of_whole(model, x)
    program = run if mode == "eager" else mtf.function(run, mesh=mesh)
    for y, expected in zip(program(model, x, count or (4 if axes else 8)), want):
        np.testing.assert_allclose(y.numpy(), expected, 1e-4, 1e-5)


def test_a_dimension_of_one_layer_is_known_in_the_next(seed):
    mesh = mtf.Mesh("stage:2")
    x = batch(mesh, seed)
    layers = [
        lambda x: mtf.flatten(x, ["batch", "length"], "tokens"),
        lambda x: mtf.dropout(x, 0.5),
    ]

    def loss_of(x, microbatches):
        with mtf.seed(7):
            return mtf.pipeline.GPipe(layers, 2, microbatches).loss(
                lambda y: mtf.reduce_mean(mtf.square(y)), x
            )

    want = float(mtf.reduce_mean(mtf.square(mtf.dropout(layers[0](x), 0.5, seed=7))))
    for run in (loss_of, mtf.function(loss_of, mesh=mesh)):
        for microbatches in (1, 4):
            np.testing.assert_allclose(float(run(x, microbatches)), want, 1e-5)


@pytest.mark.parametrize("model", [renamed, tokens, by_rows], ids=lambda f: f.__name__)
def test_microbatches_of_microbatches(model, seed):
    mesh = mtf.Mesh("")
    x = batch(mesh, seed)
    want = gradient_of_whole(model, x)[0]

    def nested(x):
        pipe = mtf.pipeline.GPipe([lambda x: x * 1.0], 1, 2)
        with mtf.seed(7):
            return mtf.optimizers.accumulate_gradients(
                lambda x: pipe.loss(lambda y: total(model, y), x), [], x, "batch", 2
            )[0]

    for run in (nested, mtf.function(nested, mesh=mesh)):
        np.testing.assert_allclose(float(run(x)), want, 1e-5)


def test_microbatches_of_two_dimensions(seed):
    mesh = mtf.Mesh("")
    x = batch(mesh, seed)
    accumulate = mtf.optimizers.accumulate_gradients

    def loss_of(x):
        y = mtf.dropout(mtf.rename(x, {"batch": "rows", "length": "line"}), 0.5)
        return mtf.reduce_sum(mtf.square(y)) + mtf.reduce_sum(
            mtf.dropout(x, 0.5, name="more")
        )

    def nested(x):
        with mtf.seed(1):
            return accumulate(
                lambda x: accumulate(loss_of, [], x, "length", 3)[0], [], x, "batch", 2
            )[0]

    with mtf.seed(1):
        want = float(loss_of(x)) / 6
    for run in (nested, mtf.function(nested, mesh=mesh)):
        np.testing.assert_allclose(float(run(x)), want, 1e-5)


def groups(x):
    y = mtf.unflatten(x, "batch", [("group", 2), ("member", x.shape["batch"] // 2)])
    return mtf.dropout(y, 0.5)


def shuffled(x):
    y = mtf.unflatten(x, "batch", [("group", 2), ("member", x.shape["batch"] // 2)])
    y = mtf.flatten(y, ["member", "group"], "rows")
    return mtf.dropout(y, 0.5)


def renamed_pieces(x):
    y = mtf.unflatten(x, "batch", [("batch", x.shape["batch"] // 2), ("member", 2)])
    return mtf.dropout(mtf.reduce_sum(y, "member"), 0.5)


def misfit(x):
    return mtf.dropout(mtf.reshape(x, [("p", 3), ("q", x.shape.size // 3)]), 0.5)


@pytest.mark.parametrize(
    "model", [groups, shuffled, renamed_pieces, misfit], ids=lambda f: f.__name__
)
def test_pieces_of_a_microbatch_draw_numbers_of_their_own(model, seed):
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, SHAPE.items())

    def masks(x):
        seen = []

        def loss_of(x):
            seen.append(model(x))
            return mtf.reduce_sum(seen[-1])

        with mtf.seed(seed):
            mtf.optimizers.accumulate_gradients(loss_of, [], x, "batch", 2)
        return seen

    first, second = (y.numpy() for y in masks(x))
    assert (first != second).any()


def test_a_name_with_two_meanings_is_refused():
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, "batch:4;length:2")

    def loss_of(x, again=False):
        by_batch = mtf.flatten(x, ["batch", "length"], "rows")
        if again:
            mtf.flatten(x, ["length", "batch"], "rows")
        return mtf.reduce_sum(mtf.dropout(by_batch, 0.5))

    with mtf.seed(1):
        mtf.optimizers.accumulate_gradients(loss_of, [], x, "batch", 2)
        with pytest.raises(mtf.PlanError, match='"rows" of size 4'):
            mtf.optimizers.accumulate_gradients(
                lambda x: loss_of(x, True), [], x, "batch", 2
            )


def test_pieces_of_other_dimensions_have_one_meaning(seed):
    """A size that two splits cut off dimensions without a batch, of 6 and of 12
    elements.
    """
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, "batch:4;length:3")

    def loss_of(x):
        for other in (2, 4):
            pieces = mtf.unflatten(
                mtf.ones(mesh, f"length_d:{3 * other}"),
                "length_d",
                f"length:3;d:{other}",
            )
            x = x + mtf.reduce_mean(pieces, "d")
        return mtf.reduce_sum(mtf.dropout(x, 0.5))

    with mtf.seed(seed):
        found, _ = mtf.optimizers.accumulate_gradients(loss_of, [], x, "batch", 2)
        np.testing.assert_allclose(found.numpy(), loss_of(x).numpy() / 2, rtol=1e-6)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_scan_along_a_name_with_two_meanings_is_refused_for_random_ops_alone(
    recorded,
):
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, "batch:4;length:2")

    def total(x, draw):
        rows = mtf.flatten(x, ["batch", "length"], "rows")
        mtf.flatten(x, ["length", "batch"], "rows")
        _, y = mtf.scan(
            lambda state, row: (state, draw(row)), mtf.zeros(mesh, ""), rows, "rows"
        )
        return mtf.reduce_sum(y)

    def step(draw):
        def run():
            with mtf.seed(1):
                return mtf.optimizers.accumulate_gradients(
                    lambda x: total(x, draw), [], x, "batch", 2
                )[0]

        return (mtf.function(run, mesh=mesh) if recorded else run)()

    assert step(lambda row: row * 3.0).numpy() == 12.0
    with pytest.raises(mtf.PlanError, match='(?s)"rows" of size 4.*mtf.scan'):
        step(lambda row: mtf.dropout(row, 0.5))
