"""What XLA hides of the communication of three meshes, compiled for absent H100s: schedules differ
from version to version of jax. Where the compiler is missing these are skipped (the extra "cuda").
"""

from __future__ import annotations

import jax
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.partition.steps import overlap

LAYERS = 6
MESHES = {
    "data": {"axes": "data:8", "layout": "batch:data"},
    "FSDP": {
        "axes": "data:8",
        "layout": "batch:data",
        "variable_layout": "d_model:data",
    },
    "tensor": {"axes": "data:2;model:4", "layout": "batch:data;d_ff:model"},
    "tensor, in halves": {
        "axes": "data:2;model:4",
        "layout": "batch:data;d_ff:model",
        "two_batch_overlap": True,
    },
}
# Version of jax -> mesh -> the least share of the bytes of a step beside which a matrix product
# runs, and the largest share of the time of communication that is waited for.
SCHEDULES = {
    "0.10": {
        "data": (0.8, 0.1),
        "FSDP": (0.3, 0.5),
        "tensor": (0.5, 0.35),
        "tensor, in halves": (0.7, 0.05),
    },
}


def compiled(name):
    """Returns a step of training, compiled: its program and its schedule."""
    settings = dict(MESHES[name])
    mesh = mtf.Mesh(settings.pop("axes"), devices="abstract", **settings)
    normal = mtf.layers.initializers.normal(0.02)
    variables = [
        mtf.Variable(mesh, f"layers:{LAYERS};d_model:1024;d_ff:4096", normal, "wi"),
        mtf.Variable(mesh, f"layers:{LAYERS};d_ff:4096;d_model:1024", normal, "wo"),
    ]

    optimizer = mtf.optimizers.AdamW(variables, 1e-3)

    @mtf.function(mesh=mesh, x="batch;d_model", step="")
    def train_step(x, step):
        def layer(h, weights):
            wi, wo = (mtf.cast(w, "bfloat16") for w in weights)
            z = mtf.relu(mtf.einsum([h, wi], "batch;d_ff"))
            return h + mtf.einsum([z, wo], "batch;d_model"), None

        h, _ = mtf.scan(layer, x, [v.tensor() for v in variables], "layers")
        loss = mtf.reduce_mean(mtf.square(mtf.cast(h, "float32")))
        gradients = mtf.gradients([loss], variables)
        optimizer.apply_gradients(gradients, variables, step)
        return loss

    x = tf.TensorSpec([65_536, 1024], tf.bfloat16)
    count = tf.TensorSpec([], tf.int32)
    try:
        return mtf.compile_for(train_step, x, count, topology="h100:8").compiled
    except mtf.MeshError as error:
        pytest.skip(f"no compiler for CUDA is here: {error}")


def shares(schedule):
    """Returns (hidden share of bytes, exposed share of the time of communication)."""
    total = sum(x.total_bytes for x in schedule.collectives)
    exposed = sum(x.exposed_bytes for x in schedule.collectives)
    waited = schedule.exposed_seconds / schedule.communication_seconds
    return 1 - exposed / total, waited


@pytest.mark.parametrize("name", MESHES)
def test_schedules_hide_communication(name):
    schedule = compiled(name).schedule
    version = ".".join(jax.__version__.split(".")[:2])
    assert version in SCHEDULES, "compile, look at the schedules, and add them"
    hidden, exposed = SCHEDULES[version][name]
    got_hidden, got_exposed = shares(schedule)
    print(f"{name}: {got_hidden:.2f} hidden, {got_exposed:.2f} exposed")
    assert got_hidden >= hidden
    assert got_exposed <= exposed


def test_without_late_sums_products_hide_none(monkeypatch):
    with_late_sums, _ = shares(compiled("data").schedule)
    monkeypatch.setattr(overlap, "PLATFORMS", set())
    without, _ = shares(compiled("data").schedule)
    assert without < 0.1 < with_late_sums
