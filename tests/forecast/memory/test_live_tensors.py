"""What a forecast says about the peak of memory, modules, and the memory of a device."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import tensorflow as tf

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

SMALL = Architecture(vocab=64, d_model=16, d_ff=64, heads=4, d_kv=4, blocks=2)
BATCH = dict.fromkeys(("tokens", "targets"), tf.TensorSpec([8, 8], tf.int32))


@functools.cache
def explained(
    axes="data:2; model:2", microbatches=1, variable_layout="", memory=None, **sizes
):
    layout = "batch:data; heads:model; d_ff:model; vocab:model"
    mesh = mtf.Mesh(axes, layout, devices="abstract", variable_layout=variable_layout)
    model = LanguageModel(mesh, dataclasses.replace(SMALL, **sizes))
    return Trainer(model, microbatches=microbatches).explain(BATCH, memory)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scanned": True},
        {"scanned": True, "recompute": True},
        {"microbatches": 2},
    ],
    ids=str,
)
def test_live_tensors_add_up_to_the_peak(settings):
    forecast = explained(**settings)
    total = sum(live.total for live in forecast.live)
    assert total == pytest.approx(forecast.memory.peak)
    sizes = [live.total for live in forecast.live]
    assert sizes == sorted(sizes, reverse=True)


def test_live_tensors_have_kind_module_and_line():
    live = explained().live
    sums = dict.fromkeys([tensors.kind for tensors in live], 0.0)
    for tensors in live:
        sums[tensors.kind] += tensors.total
    memory = explained().memory
    assert sums["parameter"] == memory.parameters
    assert sums["optimizer state"] == memory.optimizer_state
    assert sums["activation"] > 0.5 * memory.activations
    (hidden,) = [x for x in live if x.title == "gelu"]
    assert hidden.path == "language_model/decoder/block_*/feed_forward/wi"
    assert (hidden.kind, hidden.count, hidden.tensor.bytes) == ("activation", 2, 4096)
    assert hidden.file.endswith("block.py") and hidden.line > 0


def test_modules_have_all_costs():
    forecast = explained()
    for depth in (1, 3, 9):
        rows = forecast.by_module(depth)
        assert sum(row.flops for row in rows) == pytest.approx(forecast.flops())
        assert sum(row.received for row in rows) == pytest.approx(
            forecast.bytes_moved()
        )
        assert sum(row.live for row in rows) == pytest.approx(forecast.memory.peak)
    blocks = forecast.by_module(3)[0]
    assert (blocks.path, blocks.count) == ("language_model/decoder/block_*", 2)
    assert blocks.file.endswith("block.py")
    paths = {row.path for row in forecast.by_module(4)}
    assert "language_model/decoder/block_*/feed_forward" in paths


@pytest.mark.parametrize(
    "settings",
    [{}, {"scanned": True}, {"scanned": True, "recompute": True}, {"microbatches": 2}],
    ids=str,
)
def test_gradients_are_reduced_in_the_backward_pass_for_their_module(settings):
    forecast = explained(**settings)
    collectives = [
        collective for collective in forecast.collectives if collective.axis == "data"
    ]
    assert (
        sum(
            collective.total
            for collective in collectives
            if collective.phase == "forward"
        )
        < 100
    )
    (of_wi,) = [
        collective
        for collective in collectives
        if collective.path.endswith("feed_forward/wi")
        and dict(collective.tensor.shape).keys() >= {"d_model", "d_ff"}
    ][:1]
    assert of_wi.phase == "backward"


def test_a_device_with_enough_memory_fits():
    forecast = explained(memory="1GiB")
    assert forecast.fits and "1.00 GiB device memory: fits" in str(forecast)
    assert explained().fits is None and "device memory" not in str(explained())


def test_what_does_not_fit_says_what_helps():
    forecast = explained(memory=1000, vocab=1024)
    assert forecast.fits is False
    (line,) = [x for x in str(forecast).split("\n") if "does not fit" in x]
    assert line.startswith("  1000 B device memory: does not fit, ")
    assert 'variable_layout="d_model:data" (FSDP, ZeRO-3) saves' in str(forecast)
    assert "mtf.recompute" in str(forecast)


def test_advice_saves_what_it_says():
    """The suggested rule is applied, and the memory of variables falls by that amount."""
    before = explained(memory=1000, vocab=1024)
    after = explained(vocab=1024, variable_layout="d_model:data")
    text = " ".join(str(before).split())
    saved = text.partition("(FSDP, ZeRO-3) saves ")[2].split(" of ")[0]
    memory = before.memory.parameters + before.memory.optimizer_state
    left = after.memory.parameters + after.memory.optimizer_state
    amount, unit = saved.split()
    factor = {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]
    assert memory - left == pytest.approx(float(amount) * factor, rel=0.01)


@pytest.mark.parametrize("memory", ["40 gigs", "-1GiB", 0, None.__class__])
def test_a_wrong_device_memory_is_refused(memory):
    @mtf.function(mesh=mtf.Mesh(""), x="d")
    def step(x):
        return x

    with pytest.raises(mtf.ArgumentError, match='"40GiB"'):
        mtf.explain(step, tf.TensorSpec([4]), device_memory=memory)


def test_one_module_path_depth_is_chosen():
    forecast = explained()
    assert "modules, 3 names deep" in str(forecast)
    assert "modules, 1 name deep" in forecast.text(module_depth=1)
    assert "names deep" not in forecast.text(module_depth=0)
