"""Mixtures of experts: equal results under every layout, and the bytes that are
exchanged.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts, into_groups
from transformer.experts.routing import Capacity

BATCH, LENGTH, EXPERTS, D_MODEL, D_FF = 8, 16, 8, 12, 16
SHAPE = f"batch:{BATCH};length:{LENGTH};d_model:{D_MODEL}"
LAYOUTS = [
    {"axes": "data:8", "layout": "batch:data"},
    {"axes": "data:8", "layout": "batch:data; experts:data"},
    {"axes": "data:4;model:2", "layout": "batch:data; experts:data; d_ff:model"},
    {"axes": "data:4;model:2", "layout": "batch:data; experts:model"},
    {"axes": "data:4;model:2", "layout": "batch:data; experts:data; d_model:model"},
    {"axes": "data:2;model:4", "layout": "batch:data; experts:model; batch_all:data"},
    {"axes": "model:8", "layout": "experts:model"},
    {"axes": "data:4;model:2", "layout": "batch:data; length:model; experts:data"},
    {
        "axes": "data:4",
        "layout": "batch:data; experts:data",
        "variable_layout": "d_model:data",
    },
    {
        "axes": "data:4",
        "layout": "batch:data",
        "variable_layout": "d_model:data; experts:data",
    },
    {
        "axes": "data:4;model:2",
        "layout": "batch:data; experts:data",
        "variable_layout": "experts:data; d_ff:model",
    },
    {"axes": "data:4;model:2", "layout": "batch:data; group:model; experts:data"},
]
GATES = {
    "top_2": gating.top_2,
    "switch": gating.switch,
    "expert_choice": gating.expert_choice,
    "top_3": functools.partial(gating.top_k, k=3, normalize="after"),
    "published": functools.partial(gating.top_2, convention="published"),
}


def inputs(batch_size=BATCH, length=LENGTH):
    return (
        np.random.default_rng(0)
        .normal(size=(batch_size, length, D_MODEL))
        .astype("float32")
    )


def step_on(mesh, shape="batch;length;d_model", **options):
    """Returns a function of x: loss, the report, y, and gradients of x and of all
    variables.
    """
    options = {"gating": gating.top_2, "jitter": 0.05, "balance_weight": 0.1, **options}
    layer = MixtureOfExperts(
        mesh, f"d_model:{D_MODEL}", f"d_ff:{D_FF}", EXPERTS, **options
    )

    @mtf.function(mesh=mesh, x=shape)
    def step(x):
        with mtf.seed(5):
            y, report = layer(x, training=True)
        loss = mtf.reduce_mean(mtf.square(y - 1.0)) + report.loss
        return (
            loss,
            *report,
            y,
            *mtf.gradients([loss], [x, *layer.trainable_variables]),
        )

    return step


@functools.cache
def on_one_position(gate="top_2", **options):
    return [
        t.numpy()
        for t in step_on(mtf.Mesh(""), gating=GATES[gate], **options)(inputs())
    ]


def same(have, expected):
    for x, y in zip(have, expected, strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=2e-4, atol=2e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mesh", LAYOUTS, ids=lambda mesh: "; ".join(mesh.values()))
def test_layouts_change_no_number(mesh):
    size = 8 if "group" in mesh["layout"] else None
    same(
        step_on(mtf.Mesh(**mesh), group_size=size)(inputs()),
        on_one_position(group_size=size),
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gate", GATES)
def test_gatings_on_eight_positions(gate):
    mesh = mtf.Mesh("data:4;model:2", layout="batch:data; experts:data; d_ff:model")
    same(step_on(mesh, gating=GATES[gate])(inputs()), on_one_position(gate))


@pytest.mark.parametrize("gate", GATES)
def test_products_with_ones_give_the_same_numbers(gate):
    step = step_on(mtf.Mesh(""), gating=GATES[gate], dispatch="one_hot")
    same(step(inputs()), on_one_position(gate))


def travelled(forecast):
    """Returns all moves but those of scalars, and of results, such as sums of
    gradients.
    """
    collectives = [
        m
        for op in forecast.ops
        for m in op.collectives
        if m.tensor.shape and m.kind != "slice"
    ]
    return [(m.kind, m.phase, m.bytes) for m in collectives]


@pytest.mark.parametrize(
    "shape, layout",
    [
        ("batch;length;d_model", "batch:data; experts:data"),
        ("group;length;d_model", "group:data; experts:data"),
    ],
)
@pytest.mark.parametrize("gate", ["top_2", "switch", "expert_choice"])
def test_tokens_travel_by_two_all_to_alls_each_way_and_nothing_else_moves(
    shape, layout, gate
):
    mesh = mtf.Mesh("data:4", layout=layout, devices="abstract")
    capacity = Capacity(train=1.0)
    step = step_on(
        mesh, shape, gating=functools.partial(GATES[gate], capacity=capacity)
    )
    slots = capacity.slots(1 if gate == "switch" else 2, LENGTH, EXPERTS, True)
    slice_bytes = BATCH // 4 * EXPERTS * slots * D_MODEL * 4
    collectives = travelled(mtf.explain(step, inputs()))
    assert collectives == [
        ("all_to_all", phase, slice_bytes * 3 / 4)
        for phase in ("forward", "forward", "backward", "backward")
    ]


@pytest.mark.parametrize("gate", ["top_2", "switch"])
def test_cut_experts_are_summed_by_token_and_not_by_slot(gate):
    mesh = mtf.Mesh(
        "data:4;model:2", "batch:data; experts:data; d_ff:model", devices="abstract"
    )
    step = step_on(
        mesh, gating=functools.partial(GATES[gate], capacity=Capacity(train=2.0))
    )
    sums = [m for m in travelled(mtf.explain(step, inputs())) if m[0] == "all_reduce"]
    tokens, choices = BATCH // 4 * LENGTH * 4, 1 if gate == "switch" else 2
    assert sums == [
        ("all_reduce", "forward", tokens * D_MODEL),
        ("all_reduce", "backward", tokens * choices),  # of gates
        ("all_reduce", "backward", tokens * D_MODEL),
    ]


def feed_forward(x, wi, wo):
    return np.maximum(x @ wi, 0) @ wo


def test_each_token_gets_what_its_experts_make_of_it():
    mesh, x = mtf.Mesh(""), inputs()
    layer = MixtureOfExperts(
        mesh, f"d_model:{D_MODEL}", f"d_ff:{D_FF}", EXPERTS, shared_experts=2
    )
    y, report = layer(mtf.asarray(mesh, x, SHAPE))
    values = {v.path.removeprefix("moe/"): v.numpy() for v in layer.trainable_variables}
    router, wi, wo, shared_wi, shared_wo = (
        values[f"{name}/kernel"]
        for name in ("router", "experts/wi", "experts/wo", "shared/wi", "shared/wo")
    )
    routing = gating.top_2(mtf.asarray(mesh, x @ router, "batch;length;experts_all"))
    expected = feed_forward(x, shared_wi, shared_wo)
    kept = routing.choices.has_slot.numpy()
    for b, k, s in np.argwhere(kept):
        e = routing.choices.experts.numpy()[b, k, s]
        expected[b, s] += routing.choices.gates.numpy()[b, k, s] * feed_forward(
            x[b, s], wi[e], wo[e]
        )
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(float(report.dropped), 1 - kept.mean(), atol=1e-6)


def test_padding_goes_through_no_expert():
    mesh, x = mtf.Mesh(""), inputs()
    layer = MixtureOfExperts(
        mesh, f"d_model:{D_MODEL}", f"d_ff:{D_FF}", EXPERTS, group_size=8
    )
    real = np.arange(LENGTH) < np.arange(4, 12)[:, None]
    masks = mtf.asarray(mesh, real, "batch;length")
    y = layer(mtf.asarray(mesh, x, SHAPE), nonpadding=masks)[0].numpy()
    assert not y[~real].any() and y[real].any(-1).mean() > 0.9
    other = layer(
        mtf.asarray(mesh, np.where(real[..., None], x, 9.0), SHAPE),
        nonpadding=masks,
    )
    np.testing.assert_array_equal(other[0].numpy(), y)


def test_a_mixture_of_whatever_precision_routes_in_float32():
    mesh = mtf.Mesh("")
    layer = MixtureOfExperts(
        mesh,
        f"d_model:{D_MODEL}",
        f"d_ff:{D_FF}",
        EXPERTS,
        gating=functools.partial(gating.top_k, capacity=Capacity(evaluate=None)),
    )
    layer.experts = lambda tokens: tokens  # what is left sums up to x
    x = mtf.cast(mtf.asarray(mesh, inputs(), SHAPE), "bfloat16")
    y, report = layer(x)
    assert y.dtype == "bfloat16" and {t.dtype for t in report} == {"float32"}
    np.testing.assert_allclose(
        mtf.cast(y, "float32").numpy(), inputs(), rtol=0.02, atol=0.02
    )
    exact = layer(mtf.cast(x, "float32"))[1]
    assert float(exact.entropy) == float(report.entropy)


@pytest.mark.parametrize(
    "gate, mesh",
    [
        ("top_2", {"axes": ""}),
        ("switch", {"axes": ""}),
        ("top_3", {"axes": ""}),
        *(("top_2", mesh) for mesh in LAYOUTS[1:6]),
    ],
)
def test_single_positions_equal_the_complete_text(gate, mesh):
    mesh, x = mtf.Mesh(**mesh), inputs()
    roomy = functools.partial(GATES[gate], capacity=Capacity(evaluate=None))
    layer = MixtureOfExperts(
        mesh,
        f"d_model:{D_MODEL}",
        f"d_ff:{D_FF}",
        EXPERTS,
        gating=roomy,
        group_size=8,
        shared_experts=1,
    )
    expected = layer(mtf.asarray(mesh, x, SHAPE))[0].numpy()
    layer.gating = GATES[gate]  # with the capacity of evaluation
    step = mtf.function(lambda x: layer(x), mesh=mesh, x="batch;d_model")
    for position in (0, LENGTH - 1):
        y, report = step(x[:, position])
        np.testing.assert_allclose(
            y.numpy(), expected[:, position], rtol=1e-4, atol=1e-5
        )
        assert float(report.dropped) == 0


def test_finished_texts_go_through_no_expert():
    mesh, x = mtf.Mesh(""), inputs()[:, 0]
    layer = MixtureOfExperts(mesh, f"d_model:{D_MODEL}", f"d_ff:{D_FF}", EXPERTS)
    x, going = mtf.asarray(mesh, x, "batch;d_model"), np.arange(BATCH) % 2 == 0
    y = layer(x, nonpadding=mtf.asarray(mesh, going, "batch"))[0].numpy()
    np.testing.assert_allclose(y, layer(x)[0].numpy() * going[:, None], atol=1e-6)


def test_experts_cannot_choose_from_one_position():
    layer = MixtureOfExperts(
        mtf.Mesh(""), "d_model:4", "d_ff:4", gating=gating.expert_choice
    )
    with pytest.raises(
        mtf.ShapeError, match=r"(?s)position, \[batch:2 d_model:4\].*switch or top_k"
    ):
        layer(mtf.zeros(layer.router.kernel.mesh, "batch:2;d_model:4"))


def in_type(dtype, **mesh):
    """Returns what a layer on x in bfloat16 makes of it as `dtype`, and
    what travels.
    """
    mesh = mtf.Mesh(**mesh)
    layer = MixtureOfExperts(mesh, f"d_model:{D_MODEL}", f"d_ff:{D_FF}", EXPERTS)

    @mtf.function(mesh=mesh, x="batch;length;d_model")
    def step(x):
        with mtf.seed(5):
            y, report = layer(mtf.cast(mtf.cast(x, "bfloat16"), dtype), training=True)
        assert y.dtype == dtype
        y = mtf.cast(y, "float32")
        loss = mtf.reduce_sum(mtf.square(y - 1.0)) + report.loss
        return (y, *mtf.gradients([loss], [x, *layer.trainable_variables]), *report)

    return [t.numpy() for t in step(inputs())], travelled(mtf.explain(step, inputs()))


def test_experts_in_bfloat16_have_the_router_of_float32():
    expected, _ = in_type("float32", axes="")
    for layout in LAYOUTS[1:6]:
        have, _ = in_type("bfloat16", **layout)
        for x, y in zip(have[:-4], expected[:-4], strict=True):
            assert x.dtype == "float32"
            np.testing.assert_allclose(
                x, y, atol=0.05 * np.abs(y).max(), err_msg=layout["layout"]
            )
        for x, y in zip(have[-4:], expected[-4:], strict=True):
            np.testing.assert_allclose(
                x, y, rtol=1e-5
            )  # the report: it is the same routing


def test_tokens_in_bfloat16_travel_at_half_the_bytes():
    (_, wide), (_, half) = (
        in_type(dtype, **LAYOUTS[1]) for dtype in ("float32", "bfloat16")
    )
    assert (
        half == [(kind, phase, size / 2) for kind, phase, size in wide]
        and len(half) == 4
    )


@pytest.mark.parametrize(
    "size, expected",
    [
        (None, (8, 16)),
        (16, (8, 16)),
        (4, (8, 4, 4)),
        (64, (2, 64)),
        (128, (1, 128)),
        (999, (1, 128)),
    ],
)
def test_groups(size, expected):
    numbers = np.arange(BATCH * LENGTH).reshape(BATCH, LENGTH)
    have = into_groups(mtf.asarray(mtf.Mesh(""), numbers, "batch;length"), size)
    np.testing.assert_array_equal(have.numpy(), numbers.reshape(expected))
    assert have.shape.names == (
        ("batch", "group", "length") if size == 4 else ("batch", "length")
    )


@pytest.mark.parametrize("size", [10, 24, 48])
def test_groups_that_do_not_fit(size):
    with pytest.raises(mtf.ShapeError, match=f"groups of {size} tokens do not fit"):
        into_groups(mtf.zeros(mtf.Mesh(""), "batch:8;length:16"), size)


def test_a_text_shorter_than_a_group_is_one():
    x = mtf.zeros(mtf.Mesh(""), "length:10")
    assert into_groups(x, 16) is x


def accumulated(microbatches, group_size):
    mesh = mtf.Mesh("data:2", layout="batch:data; experts:data")
    layer = MixtureOfExperts(
        mesh,
        f"d_model:{D_MODEL}",
        f"d_ff:{D_FF}",
        EXPERTS,
        jitter=0.05,
        group_size=group_size,
        balance_weight=1.0,
    )

    def loss_of(x):
        y, report = layer(x, training=True)
        return mtf.reduce_mean(mtf.square(y)) + report.loss

    @mtf.function(mesh=mesh, x="batch;length;d_model")
    def step(x):
        with mtf.seed(5):
            loss, grads = mtf.optimizers.accumulate_gradients(
                loss_of, layer.trainable_variables, x, "batch", microbatches
            )
        return (loss, *grads)

    return [t.numpy() for t in step(inputs())]


@pytest.mark.parametrize("group_size", [None, 8])
def test_microbatches_change_no_number(group_size):
    for x, y in zip(
        accumulated(4, group_size), accumulated(1, group_size), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
