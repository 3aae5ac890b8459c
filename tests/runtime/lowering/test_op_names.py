"""TensorFlow ops are called by module path and op: in programs, in StableHLO."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.runtime.lowering.op_names import as_scope

X = np.ones([4, 4], np.float32)


class Block(mtf.Module):
    """A dense layer and an activation."""

    def __init__(self, mesh, name):
        super().__init__(name)
        with self.scope():
            self.dense = mtf.layers.Dense(mesh, "d:4", "d_out:4", name="dense")

    def __call__(self, x):
        return mtf.rename(mtf.tanh(self.dense(x)), "d_out", "d")


class Mlp(mtf.Module):
    """Two blocks."""

    def __init__(self, mesh):
        super().__init__(name="mlp")
        with self.scope():
            self.blocks = [Block(mesh, f"block_{i}") for i in range(2)]

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def trained(axes, devices=None):
    mesh = mtf.Mesh(
        axes, "batch:data; d_out:model", devices=devices, optional_axes=axes
    )
    model = Mlp(mesh)
    optimizer = mtf.optimizers.SGD(model.trainable_variables, learning_rate=0.1)

    @mtf.function(mesh=mesh, x="batch;d", step_index="")
    def step(x, step_index):
        loss = mtf.reduce_mean(model(x) * model(x))
        gradients = mtf.gradients([loss], model.trainable_variables)
        optimizer.apply_gradients(gradients, model.trainable_variables, step_index)
        return loss

    return step


def node_names(step):
    (entry,) = step._compiled.values()
    program = entry[0].executable
    outer = [node.name for node in program.definition.node_def]
    inner = [n.name for d in program.called_definitions for n in d.node_def]
    return outer, inner


@pytest.fixture(scope="module")
def names():
    step = trained("data:2; model:2")
    step(X, np.int32(0))
    return node_names(step)


def test_a_call_has_the_path_of_its_module(names):
    outer, _ = names
    assert any(name.startswith("mlp/block_0/StatelessCase") for name in outer), outer


def test_a_collective_has_the_op_that_needs_it(names):
    outer, _ = names
    assert any(name.startswith("move/all_gather/model/mlp/") for name in outer), outer


def test_ops_that_equal_blocks_share_have_no_index(names):
    _, inner = names
    assert "mlp/block_N/dense/einsum/MatMul" in inner
    assert any(name.startswith("gradients/mlp/block_N/dense/einsum/") for name in inner)


def test_updates_have_the_name_of_the_variable(names):
    outer, inner = names
    assert any("update/mlp/block_1/dense/kernel/" in name for name in (*outer, *inner))


def test_stablehlo_has_the_path_with_its_index():
    spec = tf.TensorSpec(X.shape, tf.float32)
    module = mtf.export(
        trained("data:2; model:2", "abstract"), spec, np.int32(0)
    ).module
    assert (
        b"mlp_block_1_dense_einsum" in module or b"mlp/block_1/dense/einsum" in module
    )


def test_nan_names_the_block():
    mesh = mtf.Mesh("")
    model = Mlp(mesh)
    model.blocks[1].dense.kernel.assign(np.full([4, 4], np.inf, np.float32))
    x = mtf.asarray(mesh, X * 0, "batch;d")
    with pytest.raises(mtf.NumericsError, match="module +mlp/block_1/dense"):
        with mtf.check_numerics():
            model(x)


def test_any_name_becomes_a_scope():
    assert as_scope("a b/+") == "a_b/_"
    assert as_scope("_private/op") == "op_private/op"
