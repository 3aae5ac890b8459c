"""A variable that stacks independent ones is updated as these are: by every optimizer, under
every layout, on placed and live meshes.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers

LAYERS = 3
EXPERTS = 2
SHAPES = {
    "w": "a:8;b:12",
    "gain": "a:8",
    "bias": "h:2;a:8",
    "s": "",
    "cube": "a:8;b:12;h:2",
}
LAYOUTS = {
    "one position": {"axes": ""},
    "layers": {"axes": "data:2;model:3", "layout": "layers:model", "variable_layout": "a:data"},
    "layers that do not divide": {"axes": "data:2", "layout": "layers:data"},
    "experts and columns": {"axes": "data:2;model:2", "layout": "experts:data;b:model"},
    "FSDP": {"axes": "data:4", "variable_layout": "a:data"},
    "ZeRO-1": {"axes": "data:2;model:2", "layout": "b:model", "optimizer_layout": "a:data"},
    "ZeRO-1 of layers": {"axes": "data:3", "optimizer_layout": "layers:data"},
    "live": {"axes": "data:2;model:2", "layout": "a:data;b:model", "devices": "spmd:cpu:4"},
    "live ZeRO-1": {
        "axes": "data:2;model:2",
        "layout": "experts:model",
        "optimizer_layout": "a:data",
        "devices": "spmd:cpu:4",
    },
}  # fmt: skip


def has_matrix_shape(variable):
    """A rule that looks at the shape, as those of users do."""
    return len(variable.shape) == 2


OPTIMIZERS = {
    "SGD": lambda vs: optimizers.SGD(vs, 0.1, momentum=0.9),
    "Adam": lambda vs: optimizers.Adam(vs, 0.1),
    "AdamW": lambda vs: optimizers.AdamW(vs, 0.1, weight_decay=0.3),
    "AdamW by shape": lambda vs: optimizers.AdamW(vs, 0.1, 0.3, decay_mask=has_matrix_shape),
    "LAMB": lambda vs: optimizers.LAMB(vs, 0.1, weight_decay=0.3),
    "LAMB of all": lambda vs: optimizers.LAMB(vs, 0.1, decay_mask=lambda v: True),
    "Adafactor": lambda vs: optimizers.Adafactor(
        vs, 0.1, beta_1=0.5, clip_threshold=0.5, weight_decay=0.3, min_dim_size_to_factor=3
    ),
    "the paper's Adafactor": lambda vs: optimizers.Adafactor(vs, min_dim_size_to_factor=2),
    "groups": lambda vs: optimizers.ParameterGroups(
        vs,
        [
            ("w$|gain$", lambda vs: optimizers.LAMB(vs, 0.1, 0.3)),
            ("", lambda vs: optimizers.Adafactor(vs, 0.1, min_dim_size_to_factor=2)),
        ],
    ),
}  # fmt: skip
CASES = [("ZeRO-1", name) for name in OPTIMIZERS]
CASES += [
    (layout, name)
    for layout in LAYOUTS
    for name in ("LAMB", "Adafactor")
    if layout != "ZeRO-1"
]


class Weights(mtf.Module):
    """Variables of all shapes, those of experts among them."""

    def __init__(self, mesh, experts="", name="weights"):
        super().__init__(name)
        draw = initializers.normal(0.1)
        with self.scope():
            self.all = [
                mtf.Variable(
                    mesh, mtf.Shape(experts) + shape, draw, name, stacked_dims=experts
                )
                for name, shape in SHAPES.items()
            ]


def train(make_optimizer, variables, gradients):
    """Returns the values of variables after one step for each list of gradients."""
    optimizer = make_optimizer(variables)
    names = {v.name: ";".join(v.shape.names) for v in variables}

    @mtf.function(mesh=variables[0].mesh, index="", grads=names)
    def train_step(index, grads):
        optimizer.apply_gradients([grads[v.name] for v in variables], variables, index)
        return index

    for index, arrays in enumerate(gradients):
        train_step(np.int32(index), dict(zip(names, arrays)))
    return [variable.numpy() for variable in variables]


@pytest.mark.sampled(9, each="layout name")
@pytest.mark.parametrize("layout, name", CASES)
def test_a_stack_is_updated_as_separate_variables(layout, name, rng):
    mesh = mtf.Mesh(**LAYOUTS[layout])
    net = mtf.layers.Repeat(
        lambda: Weights(mesh, f"experts:{EXPERTS}"), f"layers:{LAYERS}", name="net"
    )
    stacked = net.trainable_variables
    assert [v.entry_shape for v in stacked] == [mtf.Shape(s) for s in SHAPES.values()]
    # Scales differ, so that a norm over several entries is another one.
    scales = 10.0 ** np.arange(-2, LAYERS * EXPERTS - 2).reshape(LAYERS, EXPERTS)

    def scaled(x):
        return (x * scales.reshape(LAYERS, EXPERTS, *[1] * (x.ndim - 2))).astype("f")

    for variable in stacked:
        variable.assign(scaled(variable.numpy()))
    before = [v.numpy() for v in stacked]
    gradients = [
        [scaled(rng.normal(size=v.shape.sizes)) for v in stacked] for _ in range(3)
    ]
    after = train(OPTIMIZERS[name], stacked, gradients)
    entries = list(np.ndindex(LAYERS, EXPERTS))
    one_position = mtf.Mesh("")
    separate = []
    for index in entries:
        weights = Weights(one_position, name="entry_{}_{}".format(*index))
        for variable, value in zip(weights.trainable_variables, before):
            variable.assign(value[index])
            separate.append(variable)
    expected = train(
        OPTIMIZERS[name],
        separate,
        [[g[index] for index in entries for g in grads] for grads in gradients],
    )
    changed = iter(expected)
    for index in entries:
        for variable, value, start in zip(stacked, after, before):
            np.testing.assert_allclose(
                value[index] - start[index],
                next(changed) - start[index],
                rtol=2e-3,
                atol=2e-6 * np.abs(start[index]).max(),
                err_msg=f"{variable.name} {index}",
            )
