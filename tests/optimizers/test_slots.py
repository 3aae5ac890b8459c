"""Slots that are sharded otherwise than their variables (ZeRO-1): counts of moves, equal
numbers.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.graph import apply, apply_all
from meshtf.layers import initializers
from meshtf.mesh import Placement
from meshtf.ops.variables.optimizer_updates import (
    AdamUpdate,
    MomentumUpdate,
)
from meshtf.partition import ReshardStep, WriteStep
from meshtf.partition.cost import bytes_received, local_size

OPTIMIZERS = {
    "momentum": lambda vs: optimizers.SGD(vs, 0.1, momentum=0.9),
    "nesterov": lambda vs: optimizers.SGD(vs, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda vs: optimizers.Adam(vs, 0.01),
    "adamw": lambda vs: optimizers.AdamW(vs, 0.01, weight_decay=0.3),
    "adafactor": lambda vs: optimizers.Adafactor(
        vs, 0.1, beta_1=0.9, min_dim_size_to_factor=8, weight_decay=0.3
    ),
    "lamb": lambda vs: optimizers.LAMB(vs, 0.02, weight_decay=0.3),
    "by name": lambda vs: optimizers.ParameterGroups(
        vs,
        [
            ("b$", lambda vs: optimizers.SGD(vs, 0.1, momentum=0.9)),
            ("1", lambda vs: optimizers.LAMB(vs, 0.02)),
            ("", lambda vs: optimizers.Adam(vs, 0.01)),
        ],
    ),
}
ZERO_1 = {"axes": "data:4", "layout": "batch:data", "optimizer_layout": "d_model:data"}
MESHES = [
    ZERO_1,
    ZERO_1 | {"devices": "logical:4"},
    {
        "axes": "data:4;model:2",
        "layout": "batch:data;d_ff:model",
        "optimizer_layout": "d_model:data",
    },
    {
        "axes": "data:2;model:2",
        "layout": "batch:data;d_ff:model",
        "variable_layout": "d_model:data",
        "optimizer_layout": "d_ff:data;d_model:model",
    },
]
SHAPES = {"w1": "d_model:8;d_ff:16", "w2": "d_ff:16;d_model:8", "b": "d_model:8"}


class Step:
    """A training step of a small network, with or without clipping."""

    def __init__(self, optimizer, clip=False, **mesh):
        self.mesh = mtf.Mesh(**mesh)
        self.variables = [
            mtf.Variable(self.mesh, shape, initializers.normal(0.3), name)
            for name, shape in SHAPES.items()
        ]
        self.optimizer = OPTIMIZERS[optimizer](self.variables)

        @mtf.function(mesh=self.mesh, x="batch;d_model", step="")
        def function(x, step):
            w1, w2, b = self.variables
            y = (
                mtf.einsum(
                    [mtf.relu(mtf.einsum([x, w1], "batch;d_ff")), w2], "batch;d_model"
                )
                + b
            )
            loss = mtf.reduce_mean(mtf.square(y - 1.0))
            grads = mtf.gradients([loss], self.variables)
            if clip:
                grads, _ = optimizers.clip_by_global_norm(grads, 0.1)
            self.optimizer.apply_gradients(grads, self.variables, step)
            return loss

        self.function = function

    def lower(self):
        """Returns the program, for batches so large that activations stay where they
        are.
        """
        return self.function.lower(np.zeros((512, 8), "float32"), np.int32(0))

    def collectives(self):
        """Returns how often each kind of move is made of each variable's shape, slots
        included.
        """
        return Counter(
            (s.reshard.kind, s.reshard.axes_text, repr(s.src.spec.shape))
            for s in _moves(self.lower())
            if "batch" not in s.src.spec.shape
        )

    def run(self, rng, steps=3):
        """Returns losses and variables after some steps."""
        x = rng.normal(size=(8, 8)).astype("float32")
        losses = [float(self.function(x, np.int32(step))) for step in range(steps)]
        return losses, {
            v.name: v.numpy() for v in (*self.variables, *self.optimizer.variables)
        }


def _moves(compiled):
    return [
        s
        for s in compiled.program.steps
        if isinstance(s, ReshardStep) and s.reshard.kind != "slice"
    ]


def received(compiled):
    """Returns the elements that one device receives for tensors of more than one
    number.
    """
    mesh = compiled.program.mesh
    return sum(
        bytes_received(
            s.reshard.kind,
            local_size(s.src.spec.shape, s.src.placement, mesh),
            mesh.group_size(*s.reshard.axes),
        )
        for s in _moves(compiled)
        if s.src.spec.shape.size > 1
    )


def exchange(axis="data"):
    """Returns the moves of ZeRO-1: each gradient is scattered once, each new value
    gathered once.
    """
    shapes = [repr(mtf.Shape(shape)) for shape in SHAPES.values()]
    return Counter(
        (kind, axis, shape)
        for kind in ("reduce_scatter", "all_gather")
        for shape in shapes
    )


@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam", "adamw"])
def test_a_gradient_is_scattered_once_and_a_new_value_gathered_once(name):
    loss = Counter({("all_reduce", "data", "[]"): 1})
    assert Step(name, **ZERO_1).collectives() == exchange() + loss
    norm = Counter({("all_reduce", "data", "[]"): 1})
    assert Step(name, clip=True, **ZERO_1).collectives() == exchange() + loss + norm


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_along_another_axis_than_tensor_parallelism(name):
    found = Step(name, clip=True, **MESHES[2]).collectives()
    assert {move: n for move, n in found.items() if move[2] != "[]"} == exchange()


def test_lamb_sums_squares_of_slices_besides():
    squares = Counter(
        {("all_reduce", "data", "[]"): 1 + 2 * 2}
    )  # the loss, and of each matrix
    assert Step("lamb", **ZERO_1).collectives() == exchange() + squares


def test_adafactor_sums_means_of_slices_besides():
    found = Step("adafactor", **ZERO_1).collectives()
    assert found.pop(("all_reduce", "data", "[d_ff:16]")) == 2  # means over d_model
    assert {move: n for move, n in found.items() if move[2] != "[]"} == exchange()


@pytest.mark.parametrize("clip", [False, True])
def test_a_step_receives_as_much_as_one_of_data_parallelism(clip):
    zero, plain = (
        Step("adam", clip, axes="data:4", layout="batch:data", optimizer_layout=rules)
        for rules in ("d_model:data", "")
    )
    assert (
        received(zero.lower())
        == received(plain.lower())
        == 2 * (8 * 16 * 2 + 8) * 3 / 4
    )


def test_clipping_reduces_each_gradient_once():
    found = Step("adam", clip=True, axes="data:4", layout="batch:data").collectives()
    assert found == Counter(
        {("all_reduce", "data", repr(mtf.Shape(s))): 1 for s in (*SHAPES.values(), "")}
    )


def test_clipping_keeps_gradients_of_another_region_sharded():
    mesh = mtf.Mesh(
        "data:2;model:2", "batch:data;d_ff:model", optimizer_layout="d_model:data"
    )
    variable = mtf.Variable(mesh, "d_model:8;d_ff:16", initializers.ones, "w")

    @mtf.function(mesh=mesh, x="batch;d_model")
    def clipped(x):
        with mtf.layout("*:;batch:data"):
            loss = mtf.reduce_sum(mtf.square(mtf.einsum([x, variable], "batch;d_ff")))
        return optimizers.clip_by_global_norm(mtf.gradients([loss], [variable]), 1.0)[0]

    collectives = Counter(
        (s.reshard.kind, s.reshard.axes_text)
        for s in _moves(clipped.lower(np.zeros((512, 8), "float32")))
        if "d_ff" in s.src.spec.shape
    )
    assert collectives == {("reduce_scatter", "data"): 1}


@pytest.mark.sampled(12, each="name mesh")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_numbers_are_those_of_one_position(name, mesh, seed):
    losses, values = Step(name, clip=True, **mesh).run(np.random.default_rng(seed))
    expected_losses, expected = Step(name, clip=True, axes="").run(
        np.random.default_rng(seed)
    )
    assert expected_losses[-1] < expected_losses[0]
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert values.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(
            values[key], value, rtol=1e-4, atol=1e-6, err_msg=key
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda w, m, v: AdamUpdate(w, m, v, 0.9, 0.99, 1e-6),
        lambda w, m, v: MomentumUpdate(w, m, 0.9, False),
        lambda w, m, v: MomentumUpdate(w, m, 0.9, True),
    ],
    ids=["adam", "momentum", "nesterov"],
)
def test_the_formula_says_what_the_fused_update_does(make, rng):
    mesh = mtf.Mesh("")
    w, m, v = (
        mtf.Variable(mesh, "a:4;b:6", initializers.uniform(), name) for name in "wmv"
    )
    v.assign(np.abs(v.numpy()))
    op = make(w, m, v)
    array = rng.normal(size=(4, 6)).astype("float32")
    scalar = np.float32(0.1)
    expected = op.new_values(array, scalar, *(store.numpy() for store in op.variables))
    apply_all(
        op,
        mtf.asarray(mesh, array, "a:4;b:6"),
        mtf.asarray(mesh, scalar, ""),
    )
    assert len(expected) == len(op.variables)
    for store, value in zip(op.variables, expected, strict=True):
        np.testing.assert_allclose(store.numpy(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda w, m, v: AdamUpdate(w, m, v, 0.9, 0.99, 1e-6),
        lambda w, m, v: MomentumUpdate(w, m, 0.9, True),
    ],
    ids=["adam", "nesterov"],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_an_update_of_a_part_is_the_update(make, compiled, rng):
    mesh = mtf.Mesh("data:2", optimizer_layout="a:data")
    sharded_variables, replicated_variables = [
        [
            mtf.Variable(
                mesh,
                "a:4;b:6",
                initializers.uniform(),
                name,
                layout=mtf.Layout("a:data") if is_sharded and name != "w" else None,
            )
            for name in "wmv"
        ]
        for is_sharded in (True, False)
    ]
    for sharded, replicated in zip(sharded_variables, replicated_variables):
        replicated.assign(np.abs(sharded.numpy()))
        sharded.assign(replicated.numpy())

    def step(grad, rate):
        new = apply(
            make(*sharded_variables).slots_update(),
            grad,
            rate,
            sharded_variables[0].tensor(),
        )
        apply_all(make(*replicated_variables), grad, rate)
        return new

    grad = mtf.asarray(mesh, rng.normal(size=(4, 6)).astype("float32"), "a:4;b:6")
    rate = mtf.asarray(mesh, np.float32(0.1), "")
    before = sharded_variables[0].numpy()
    new = (mtf.function(step) if compiled else step)(grad, rate)
    np.testing.assert_allclose(
        new.numpy(), replicated_variables[0].numpy(), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(
        sharded_variables[0].numpy(), before
    )  # it is given back, not written
    for sharded, replicated in zip(
        sharded_variables[1:], replicated_variables[1:], strict=True
    ):
        np.testing.assert_allclose(
            sharded.numpy(), replicated.numpy(), rtol=1e-5, atol=1e-6
        )


def test_each_position_holds_its_part_of_the_slots():
    step = Step("adam", **ZERO_1)
    for variable in step.variables:
        assert variable.placement == Placement()
        for slot in step.optimizer.slots[variable.name].values():
            assert slot.placement == Placement("d_model:data")
            assert (
                sum(int(np.prod(sharded.shape)) for _, sharded in slot.regions())
                == variable.shape.size
            )
            assert all(
                np.prod(sharded.shape) * 4 == variable.shape.size
                for _, sharded in slot.regions()
            )


def test_slots_that_lie_as_their_variables_are_updated_in_place():
    def updates(**mesh):
        return [
            type(s.node.op).__name__
            for s in Step("adam", **mesh).lower().program.steps
            if isinstance(s, WriteStep)
        ]

    assert updates(axes="data:4", layout="batch:data") == ["AdamUpdate"] * 3
    assert updates(
        axes="data:4", layout="batch:data", variable_layout="d_model:data"
    ) == (["AdamUpdate"] * 3)
    assert updates(
        axes="data:4", layout="batch:data", optimizer_layout="d_ff:data"
    ) == (["AdamUpdate", "Write"] * 2 + ["AdamUpdate"])  # the bias has no d_ff


def test_slots_follow_the_region_of_their_variable():
    mesh = mtf.Mesh("data:2;model:2", "d_ff:model", optimizer_layout="d_model:data")
    with mtf.layout("d_ff:"):
        variable = mtf.Variable(mesh, "d_model:8;d_ff:16", initializers.ones, "w")
    slots = optimizers.Adam([variable]).variables
    assert [slot.placement for slot in slots] == [Placement("d_model:data")] * 2


def test_slots_that_cannot_be_sharded_are_refused():
    rules = "d_model:data;vocab:data"
    mesh = mtf.Mesh("data:4", "batch:data", optimizer_layout=rules, strict=True)
    odd = mtf.Variable(mesh, "d_model:6;d_ff:16", initializers.ones, "odd")
    both = mtf.Variable(mesh, "vocab:16;d_model:8", initializers.ones, "table")
    with pytest.raises(
        mtf.LayoutError,
        match="slots of Adam for variable 'odd'.*"
        '"d_model" of size 6 cannot be split into 4(.|\n)*multiple of 4',
    ):
        optimizers.Adam([odd])
    with pytest.raises(
        mtf.LayoutError,
        match="slots of Adafactor for variable 'table'.*"
        '"vocab" and "d_model" would both be sharded along mesh axis "data"(.|\n)*'
        'optimizer_layout="vocab:"',
    ):
        optimizers.Adafactor([both])
    assert not optimizers.SGD([odd, both]).variables  # it keeps nothing
