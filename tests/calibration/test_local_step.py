"""The step of one device of a large mesh, without communication, runs on the devices here."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import meshtf as mtf
from meshtf.calibration.local_step import LocalStep
from meshtf.hardware import as_hardware
from tests.support.module_runner import collectives

DEVICES = "spmd:cpu:2"
BATCH = (np.zeros([32, 16], "float32"), np.int32(0))


def train_step(axes="data:4;model:2", **layouts):
    """Returns the training step of a layer on an abstract mesh."""
    mesh = mtf.Mesh(axes, devices="abstract", **layouts)
    layer = mtf.layers.FeedForward(mesh, "d_model:16", "d_ff:64", use_bias=False)
    variables = layer.trainable_variables
    optimizer = mtf.optimizers.AdamW(variables, 1e-3)

    @mtf.function(mesh=mesh, x="batch;d_model", index="")
    def train(x, index):
        loss = mtf.reduce_mean(mtf.square(layer(x)))
        optimizer.apply_gradients(mtf.gradients([loss], variables), variables, index)
        return loss

    return train


LAYOUTS = {
    "batch and d_ff": {"layout": "batch:data; d_ff:model"},
    "FSDP": {"layout": "batch:data", "variable_layout": "d_model:data+model"},
    "ZeRO-1": {"layout": "batch:data+model", "optimizer_layout": "d_ff:data"},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_device_of_eight_computes_without_communication(name):
    step = LocalStep(train_step(**LAYOUTS[name]), BATCH, DEVICES)
    assert not collectives(step.hlo)
    before = [np.array(array) for array in step.arrays]
    step()
    step()
    changed = [not np.array_equal(x, np.array(y)) for x, y in zip(before, step.arrays)]
    assert any(changed)  # variables are updated
    assert all(np.isfinite(np.array(array)).all() for array in step.arrays)


def test_the_sizes_are_those_of_a_device():
    hardware = as_hardware("cpu")
    measured = mtf.calibration.measure_local_step(
        train_step(layout="batch:data; d_ff:model"),
        *BATCH,
        devices=DEVICES,
        hardware=hardware,
        steps=2,
    )
    assert measured.sizes == {"batch": 8, "d_model": 16, "d_ff": 32}
    assert measured.factor > 0
    # What it measured is predicted from then on.
    profile = dataclasses.replace(hardware, local_steps=(measured,))
    function = train_step(layout="batch:data; d_ff:model")
    times = [
        mtf.explain(function, *BATCH, hardware=h).time for h in (hardware, profile)
    ]
    assert times[1].matmuls == pytest.approx(measured.factor * times[0].matmuls)


@pytest.mark.parametrize("devices", ["logical:8", "spmd:cpu", "spmd"])
def test_devices_need_a_count_and_the_spmd_runtime(devices):
    with pytest.raises(mtf.ArgumentError, match="spmd:cpu:8"):
        mtf.calibration.measure_local_step(
            train_step(), *BATCH, devices=devices, hardware=as_hardware("cpu")
        )
