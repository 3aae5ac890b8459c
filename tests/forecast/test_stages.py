"""Forecasts of pipelines: what stages compute, send and hold, by formulas."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

# of a microbatch
D = 8
D_FF = 16
ROWS = 4


class Layer(mtf.Module):
    """A sigmoid layer beside the identity."""

    def __init__(self, mesh, k):
        super().__init__(f"layer_{k}")
        with self.scope():
            self.dense = mtf.layers.Dense(
                mesh, f"d:{D}", f"d_ff:{D_FF}", use_bias=False, name="dense"
            )
            self.back = mtf.layers.Dense(
                mesh, f"d_ff:{D_FF}", f"d:{D}", use_bias=False, name="back"
            )

    def __call__(self, x):
        return x + self.back(mtf.sigmoid(self.dense(x)))


def explained(axes, stages, microbatches, layers, layout="", **kwargs):
    mesh = mtf.Mesh(axes, layout, devices="abstract")
    pipe = mtf.pipeline.GPipe(
        [Layer(mesh, k) for k in range(layers)], stages, microbatches, **kwargs
    )
    optimizer = mtf.optimizers.AdamW(pipe.trainable_variables, 0.01)

    @mtf.function(mesh=mesh, x="batch;d", step="")
    def step(x, step):
        loss = pipe.loss(lambda y: mtf.reduce_mean(mtf.square(y)), x)
        optimizer.apply_gradients(
            mtf.gradients([loss], pipe.trainable_variables),
            pipe.trainable_variables,
            step,
        )
        return loss

    return mtf.explain(step, np.zeros((ROWS * microbatches, D), "float32"), np.int32(0))


def of(forecast, title, phase):
    """Returns how often an op runs, and its flops in all."""
    ops = [op for op in forecast.ops if (op.title, op.phase) == (title, phase)]
    return sum(op.times for op in ops), sum(op.total for op in ops)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_all_calls_count_and_stages_share_the_work(schedule):
    forecast = explained("stage:2", 2, 4, 4, schedule=schedule)
    einsum = 2 * ROWS * D * D_FF
    assert of(forecast, "einsum", "forward") == (
        4 * 8,
        4 * 8 * einsum / 2,
    )  # the mean of stages
    assert of(forecast, "einsum", "backward") == (4 * 16, 4 * 16 * einsum / 2)
    assert of(forecast, "einsum", "update") == (0, 0)
    assert (
        of(forecast, "forward.0", "forward")[0]
        == of(forecast, "backward.1", "backward")[0]
        == 4
    )
    first, second = forecast.stages
    assert abs(first.flops + second.flops - 2 * forecast.flops()) < 1
    assert 0.9 < first.flops / second.flops < 1.1


def test_what_stages_send():
    forecast = explained("stage:4", 4, 6, 4)
    sends = [m for m in forecast.collectives if m.kind == "send"]
    assert (
        sum(m.times for m in sends) == 2 * 3 * 6
    )  # over three borders, there and back
    rows = ROWS * D * 4
    assert (
        forecast.bytes_moved("send") == 2 * 3 * 6 * rows / 4
    )  # of four stages one receives
    for phase in ("forward", "backward"):
        assert forecast.bytes_moved("send", phase=phase) == 3 * 6 * rows / 4


def test_what_skips_stages_is_sent_through_all_of_them():
    mesh = mtf.Mesh("stage:4", devices="abstract")
    layers = [Layer(mesh, k) for k in range(4)]

    def first(x):
        y = layers[0](x)
        return y, mtf.sigmoid(y)

    def on(layer):
        return lambda pair: (layer(pair[0]), pair[1])

    def last(pair):
        return layers[3](pair[0]) * pair[1]

    pipe = mtf.pipeline.GPipe([first, on(layers[1]), on(layers[2]), last], 4, 6)

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        loss = pipe.loss(lambda y: mtf.reduce_mean(mtf.square(y)), x)
        return [
            loss,
            *mtf.gradients([loss], [v for layer in layers for v in layer.variables]),
        ]

    forecast = mtf.explain(step, np.zeros((ROWS * 6, D), "float32"))
    rows = ROWS * D * 4
    for phase in (
        "forward",
        "backward",
    ):  # two tensors over three borders, to one of 4 stages
        assert forecast.bytes_moved("send", phase=phase) == 2 * 3 * 6 * rows / 4


def test_gradients_are_reduced_once_for_all_microbatches():
    for microbatches in (2, 6):
        forecast = explained("stage:2;data:2", 2, microbatches, 2, "batch:data")
        large = [
            m for m in forecast.collectives if m.kind == "all_reduce" and m.tensor.shape
        ]
        assert [m.times for m in large] == [1] * 4 and {m.phase for m in large} == {
            "backward"
        }
        # One of two stages has each kernel; over two positions a sum brings as many
        # bytes as it has.
        assert sum(m.total for m in large) == 4 * D * D_FF * 4 / 2


def test_variables_lie_at_one_stage_and_memory_is_that_of_the_fullest():
    forecast = explained("stage:2", 2, 4, 3, partition=[2, 1])
    kernels = 2 * D * D_FF * 4
    assert [s.parameters for s in forecast.stages] == [2 * kernels, kernels]
    memory = forecast.memory
    assert (memory.parameters, memory.gradients) == (2 * kernels, 2 * kernels)
    assert memory.optimizer_state == 4 * kernels
    assert (
        memory.peak
        == max(s.peak for s in forecast.stages)
        > min(s.peak for s in forecast.stages)
    )
    one = explained("", 2, 4, 3, partition=[2, 1])
    assert (one.memory.parameters, one.stages) == (3 * kernels, ())
    assert "\n  stages  " in str(forecast) and "\n  stages  " not in str(one)


def activations(microbatches, layers, stages=2, **kwargs):
    forecast = explained(f"stage:{stages}", stages, microbatches, layers, **kwargs)
    return [s.activations for s in forecast.stages]


@pytest.mark.parametrize("stages", [2, 4])
def test_a_stage_holds_what_its_schedule_says(stages):
    """Of each layer and microbatch that is held, x and the sigmoid; nothing of the
    other layers'.
    """
    residual_bytes = (ROWS * D + ROWS * D_FF) * 4
    for microbatches in (8, 16):

        def growth(microbatches=microbatches, **kwargs):
            few, many = (
                activations(microbatches, n * stages, stages, **kwargs) for n in (4, 8)
            )
            return [(b - a) / 4 for a, b in zip(few, many)]  # by one layer of a stage

        assert growth(schedule="gpipe") == [microbatches * residual_bytes] * stages
        assert growth(schedule="1f1b") == [
            (stages - k) * residual_bytes for k in range(stages)
        ]
        assert growth(schedule="gpipe", recompute=True) == [residual_bytes] * stages


def test_with_recompute_a_microbatch_adds_its_input_alone():
    """O(N + L / K * N / M), with N rows, L layers, K stages and M microbatches."""
    rows = ROWS * D * 4
    loss = 4
    few, many = (activations(m, 16, schedule="gpipe", recompute=True) for m in (8, 16))
    # At the last stage also a loss and its cotangent.
    assert [(b - a) / 8 for a, b in zip(few, many)] == [rows, rows + 2 * loss]
