"""What bodies, branches, rules and functions return or take that they must not: refused
by name.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

pytestmark = pytest.mark.filterwarnings("ignore::meshtf.errors.LayoutWarning")


@pytest.fixture(params=[("", ""), ("data:2", "n:data")], ids=["one device", "sharded"])
def x(request):
    return mtf.ones(mtf.Mesh(*request.param), "n:2;d:3")


def state(x):
    return mtf.reduce_sum(x, "n")


BODIES = {
    "keys of a carry": (
        "changes the structure, shapes or types of its carry",
        lambda x: mtf.scan(
            lambda h, row: ({"b": h["b"], "c": h["a"]}, None),
            {"a": state(x), "b": state(x)},
            x,
            "n",
        ),
    ),
    "keys of a while loop": (
        "changes the structure, shapes or types of its carry",
        lambda x: mtf.while_loop(
            lambda h: mtf.reduce_sum(h["a"]) < 9.0,
            lambda h: {"c": h["a"] * 2.0},
            {"a": x},
        ),
    ),
    "a dict for a list": (
        "changes the structure, shapes or types of its carry",
        lambda x: mtf.scan(lambda h, row: ({"a": h[0]}, None), [state(x)], x, "n"),
    ),
    "two results for three": (
        "returns three values",
        lambda x: mtf.scan_and_sum(lambda h, row: (h, row), state(x), x, "n"),
    ),
    "one for three": (
        "returns three values",
        lambda x: mtf.scan_and_sum(lambda h, row: h, state(x), x, "n"),
    ),
    "none for three, no iteration": (
        "returns three values",
        lambda x: mtf.scan_and_sum(lambda h, row: None, x, length=0),
    ),
    "sums of bool": (
        "sums numbers, not bool",
        lambda x: mtf.scan_and_sum(
            lambda h, row: (h, row > 0.0, None), state(x), x, "n"
        ),
    ),
    "keys without an order": (
        "cannot be flattened",
        lambda x: mtf.scan(lambda h, row: (h, {"a": h, 1: h}), state(x), x, "n"),
    ),
    "number of slices": (
        "gave 2 results",
        lambda x: mtf.slicewise(
            lambda y: (y, y), [x], ["n:2;d:3"], shardable="n", check=False
        ),
    ),
    "no slice": ("1 of them None", lambda x: mtf.slicewise(lambda y: None, [x])),
    "no input": ("at least one tensor", lambda x: mtf.slicewise(tf.sin, [])),
    "types of slices": (
        "one data type for each of 2",
        lambda x: mtf.slicewise(lambda y: (y, y), [x], ["n:2;d:3"] * 2, ["float32"]),
    ),
    "a number for a cotangent": (
        "the float 1.0 for a cotangent",
        lambda x: mtf.gradients(
            [mtf.custom_gradient(lambda x: (x, lambda dy: 1.0))(x)], [x]
        ),
    ),
    "a dict for cotangents": (
        "the dict .* for a cotangent",
        lambda x: mtf.gradients(
            [mtf.custom_gradient(lambda x: (x, lambda dy: {"x": dy}))(x)], [x]
        ),
    ),
    "a layer that is none": (
        '"make" takes a function that returns a Module',
        lambda x: mtf.layers.Repeat(lambda: None, "layers:2"),
    ),
}


@pytest.mark.parametrize(
    "run", [lambda fn: fn, mtf.function], ids=["eager", "function"]
)
@pytest.mark.parametrize("name", BODIES)
def test_refused(name, run, x):
    words, program = BODIES[name]
    with pytest.raises(
        mtf.MeshtfError, match=f"(?s){words}.*test_refused_bodies.py|{words}"
    ):
        run(program)(x)


def test_keys_of_branches(x):
    def program(x):
        return mtf.cond(
            mtf.reduce_sum(x) > 0.0, lambda: {"a": x, "b": x}, lambda: {"a": x, "c": x}
        )

    with pytest.raises(mtf.PlanError, match="the two branches of a cond differ"):
        mtf.function(program)(x)


def test_a_tensor_of_a_body_has_no_gradient_outside_of_it(x):
    def of_a_branch(x):
        branch_values = []
        mtf.cond(
            mtf.reduce_sum(x) > 0.0,
            lambda: branch_values.append(x * 2.0) or x,
            lambda: x,
        )
        return mtf.gradients(branch_values, [x])

    with pytest.raises(mtf.PlanError, match="outside of the function, or the body"):
        mtf.function(of_a_branch)(x)
    leaked = []
    mtf.function(lambda x: leaked.append(x * 2.0) or x)(x)
    with pytest.raises(mtf.PlanError, match="outside of the function, or the body"):
        mtf.gradients(leaked, [x])


@pytest.mark.parametrize("names", [3, None, ["d"], {"a": 3}])
def test_names_of_arguments(names):
    with pytest.raises(mtf.ArgumentError, match="names of dimensions, such as"):
        mtf.function(lambda a: a, a=names)


def test_functions_that_python_cannot_look_into(x):
    with pytest.raises(mtf.ArgumentError, match="Write a lambda around it"):
        mtf.function(max)


@pytest.mark.parametrize(
    "call", [lambda f, x: f({"a": x, 1: x}), lambda f, x: f(x, mixed=True)]
)
def test_keys_without_an_order(call, x):
    f = mtf.function(lambda x, mixed=False: {"a": x, 1: x} if mixed else x)
    with pytest.raises(mtf.PlanError, match="cannot be flattened"):
        call(f, x)


def test_none_goes_through_repeated_layers(x):
    net = mtf.layers.Repeat(lambda: mtf.layers.LayerNorm(x.mesh, "d:3"), "layers:2")

    def step(x):
        return net.each(
            lambda layer, h, row: ({"h": mtf.tanh(h["h"]), "cache": None}, None),
            {"h": x, "cache": None},
        )[0]

    for run in (step, mtf.function(step)):
        outputs = run(x)
        assert outputs["cache"] is None
        np.testing.assert_allclose(
            outputs["h"].numpy(), np.tanh(np.tanh(x.numpy())), 1e-5
        )
