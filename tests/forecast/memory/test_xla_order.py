"""Which steps XLA runs later than planned."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.forecast.memory.peak_memory import scheduled_steps
from meshtf.forecast.memory.xla_order import in_xla_order
from meshtf.partition import Compute, LoopStep, build
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

ARCHITECTURE = Architecture(
    vocab=64,
    d_model=16,
    d_ff=1024,
    heads=4,
    d_kv=8,
    blocks=3,
    scanned=True,
    recompute=True,
)
CALL = (
    dict.fromkeys(("tokens", "targets"), tf.TensorSpec([8, 8], tf.int32)),
    tf.TensorSpec([], tf.int32),
)
DATA = ("data:4", "batch:data")
FSDP = (*DATA, "d_model:data")


def training_step(axes="", layout="", variable_layout="", **settings):
    mesh = mtf.Mesh(axes, layout, devices="abstract", variable_layout=variable_layout)
    model = LanguageModel(mesh, dataclasses.replace(ARCHITECTURE, **settings))
    return Trainer(model)._step


def orders(step):
    """Returns the steps of a training step as planned, and in the order of XLA."""
    recorded = step.record_call(CALL, {}).recorded
    program = build(recorded.nodes, recorded.results, recorded.mesh)
    steps = scheduled_steps(program)
    return list(steps), list(in_xla_order(steps, program.results))


def is_behind_the_loop(steps):
    """Returns whether the gradient of the logits' variable is computed behind the last loop."""
    loop = max(i for i, step in enumerate(steps) if isinstance(step, LoopStep))
    (product,) = [
        i
        for i, step in enumerate(steps)
        if isinstance(step, Compute)
        and step.node.op.display_name == "einsum"
        and {dim.name for dim in step.node.outputs[0].shape} == {"vocab", "d_model"}
    ]
    return product > loop


@pytest.mark.parametrize(
    ("layout", "dtype", "tied", "waits"),
    [
        ((), "float32", True, False),  # nothing to hide
        (DATA, "float32", False, True),
        (FSDP, "float32", True, True),
        # Converted to float32, which a sum in bfloat16 precedes, before the loop. It waits for
        # the gradient of the embedding only if both are of one variable.
        (FSDP, "bfloat16", False, False),
        (FSDP, "bfloat16", True, True),
    ],
    ids=str,
)
def test_gradients_of_variables_are_computed_behind_the_loop(
    layout, dtype, tied, waits
):
    planned, ordered = orders(training_step(*layout, dtype=dtype, tied=tied))
    assert not is_behind_the_loop(planned)
    assert is_behind_the_loop(ordered) == waits


def test_products_run_right_before_their_readers():
    planned, _ = orders(training_step(*FSDP, dropout=0.1))
    *_, loop = [step for step in planned if isinstance(step, LoopStep)]
    steps = list(scheduled_steps(loop.body))

    def last_of_softmax(steps):
        """Returns the last of the gradient of the softmax and the product with its result."""
        names = [getattr(getattr(x, "node", None), "op", None) for x in steps]
        gradient = [op is not None and op.display_name for op in names].index(
            "softmaxgrad"
        )
        (dropped,) = {
            value
            for step in steps[:gradient]
            if isinstance(step, Compute) and step.node.op.display_name == "dropout"
            for value in step.outs
            if value.spec == steps[gradient].outs[0].spec
        }.difference(steps[gradient].ins)
        product = max(i for i, x in enumerate(steps) if dropped in x.needs)
        return "gradient" if gradient > product else "product"

    assert last_of_softmax(steps) == "gradient"
    ordered = list(in_xla_order(steps, loop.body.results))
    assert last_of_softmax(ordered) == "product"


def test_what_a_product_behind_the_loop_reads_lives_through_the_loop():
    step = training_step(*FSDP, tied=True)
    plain, xla = (
        step.forecast_call(CALL, {}, under_xla=under_xla) for under_xla in (False, True)
    )

    def live_gradients_of_logits(forecast):
        return [x for x in forecast.live if x.title == "crossentropygrad"]

    assert live_gradients_of_logits(xla)
    assert not live_gradients_of_logits(plain)
    assert sum(x.total for x in xla.live) == pytest.approx(xla.memory.peak)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", [DATA, FSDP], ids=str)
def test_the_order_keeps_all_steps_and_what_they_depend_on(layout, tied):
    planned, ordered = orders(training_step(*layout, tied=tied))
    assert sorted(map(id, ordered)) == sorted(map(id, planned))
    missing = {value for step in planned for value in step.outputs}
    for step in ordered:
        assert missing.isdisjoint(step.dependencies)
        missing.difference_update(step.outputs)
