"""Which matrix products a loop waits for."""

from __future__ import annotations

import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.graph import Graph
from meshtf.partition import LoopStep, build
from meshtf.runtime.spmd.module.products_before_loops import products_before_loops
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

SIZES = {"vocab": 64, "d_model": 16, "d_ff": 32, "heads": 2, "d_kv": 8, "blocks": 2}
BATCH = dict.fromkeys(("tokens", "targets"), tf.TensorSpec([8, 8], tf.int32))


def program(variable_layout="", **settings):
    mesh = mtf.Mesh(
        "data:4", "batch:data", devices="abstract", variable_layout=variable_layout
    )
    architecture = Architecture(**SIZES, scanned=True, **settings)
    step = Trainer(LanguageModel(mesh, architecture))._step
    call = step._python.bind((BATCH, tf.TensorSpec([], tf.int32)), {}, runs=False)
    recorded = step._python.record(Graph(call.mesh), call).recorded
    return build(recorded.nodes, recorded.results, recorded.mesh)


@pytest.mark.parametrize("variable_layout", ["", "d_model:data"], ids=["data", "FSDP"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_backward_loop_waits_for_the_gradient_of_the_logits(variable_layout, tied):
    planned = program(variable_layout, tied=tied)
    awaited = products_before_loops(planned)
    forward, backward = [x for x in planned.steps if isinstance(x, LoopStep)]
    assert not awaited[forward]
    (gradient,) = awaited[backward]
    assert set(gradient.spec.shape.names) == {"vocab", "d_model"}


def test_a_product_that_the_loop_reads_is_not_awaited():
    mesh = mtf.Mesh("", devices="abstract")
    w = mtf.Variable(mesh, "d:8;e:8", "ones", "w")

    @mtf.function(x="b;d")
    def f(x):
        y = mtf.rename(mtf.einsum([x, w], "b;e"), "e", "d")
        z, _ = mtf.scan(lambda z, _: (z + y, None), y, length=3)
        return z

    call = f._python.bind((tf.TensorSpec([4, 8]),), {}, runs=False)
    recorded = f._python.record(Graph(call.mesh), call).recorded
    planned = build(recorded.nodes, recorded.results, recorded.mesh)
    ((_loop, awaited),) = products_before_loops(planned).items()
    assert not awaited
