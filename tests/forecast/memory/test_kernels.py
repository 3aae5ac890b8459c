"""What a forecast says of the kernels of attention: what lowering calls, with the reason."""

from __future__ import annotations

import re

import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.forecast.reports.html_report import page

CAUSAL = {"causal": True}
NO_CUDA = "blocks of 512 queries: no CUDA device"
NOT_FOR_CUDA = "blocks of 512 queries: XLA does not compile it for CUDA"


def attention(layout="b:x", dropout=0.0, devices="abstract", **settings):
    """Returns a function of the gradients of attention."""
    mesh = mtf.Mesh("x:2", layout, devices=devices)
    layer = mtf.layers.Dropout(dropout) if dropout else None
    kv = "b;h;kv_length;key"

    @mtf.function(mesh=mesh, q="b;h;length;key", k=kv, v=kv)
    def step(q, k, v):
        with mtf.seed(1):
            y = mtf.layers.dot_product_attention(
                q, k, v, length_dim="length", dropout=layer, **settings
            )
        return mtf.gradients([mtf.reduce_sum(y)], [q, k, v])

    return step


def inputs(length=512, key=8):
    return [tf.TensorSpec([2, 4, length, key], tf.bfloat16)] * 3


def kernels(function, *args, **settings):
    """Returns what a forecast says of attention, without the line."""
    texts = mtf.explain(function, *args, **settings).kernels
    found = [re.fullmatch(r"attention of (.*?): (.*)\.", text) for text in texts]
    assert all("test_kernels.py:" in match[1] for match in found)
    return [match[2] for match in found]


CASES = [
    (CAUSAL, {}, "cuDNN"),
    ({"window": 7, **CAUSAL}, {}, "cuDNN"),
    ({"layout": "length:x"}, {}, "cuDNN"),
    ({"dropout": 0.1, **CAUSAL}, {}, "blocks of 512 queries: cuDNN takes no dropout"),
    (
        {"layout": "length:x", **CAUSAL},
        {},
        "blocks of 256 queries: cuDNN takes no causal mask over sharded positions",
    ),
    (CAUSAL, {"length": 513}, "blocks of 513 queries: cuDNN takes no odd length: "),
    # 257 of 514 positions on a device.
    ({"layout": "length:x"}, {"length": 514}, "blocks of 257 queries: cuDNN takes no"),
    (CAUSAL, {"key": 136}, "blocks of 512 queries: cuDNN takes heads of up to 128"),
    (
        CAUSAL,
        {"key": 12},
        "blocks of 512 queries: cuDNN takes heads of a multiple of 8",
    ),
]


@pytest.mark.parametrize("settings, sizes, kernel", CASES)
def test_a_forecast_names_the_kernel_that_the_module_calls(settings, sizes, kernel):
    step = attention(**settings)
    (text,) = kernels(step, *inputs(**sizes), hardware="h100")  # for both passes
    assert text.startswith(kernel)
    module = mtf.export(step, *inputs(**sizes), platform="cuda").module
    assert (b"__cudnn" in module) == (text == "cuDNN")


@pytest.mark.parametrize(
    "devices, settings, kernel",
    [
        ("abstract", {"hardware": "h200"}, "cuDNN"),
        ("abstract", {"hardware": "tpu_v5e"}, NO_CUDA),
        ("abstract", {"hardware": "cpu", "runtime": "spmd"}, NO_CUDA),
        ("abstract", {}, NOT_FOR_CUDA),
        ("abstract", {"runtime": "spmd"}, NOT_FOR_CUDA),
        ("abstract", {"runtime": "placed", "hardware": "h100"}, NOT_FOR_CUDA),
        ("spmd:cuda", {}, "cuDNN"),
        ("spmd:cpu", {}, NO_CUDA),
        (None, {}, NOT_FOR_CUDA),
    ],
)
def test_the_devices_decide(devices, settings, kernel, monkeypatch):
    module = "meshtf.layers.attention.dot_product"
    monkeypatch.setattr(f"{module}.FUSED_LENGTH_ON_CPUS", 512)
    step = attention(devices=devices, **CAUSAL)
    assert kernels(step, *inputs(), **settings) == [kernel]


def test_other_programs_have_no_such_texts():
    assert kernels(attention(**CAUSAL), *inputs(length=256), hardware="h100") == []


def test_each_line_of_code_has_its_kernels():
    mesh = mtf.Mesh("x:2", "b:x", devices="abstract")
    kv = "b;h;kv_length;key"

    @mtf.function(mesh=mesh, q="b;h;length;key", k=kv, v=kv)
    def step(q, k, v):
        attend = mtf.layers.dot_product_attention
        for _ in range(2):
            q = attend(q, k, v, length_dim="length", causal=True)
        with mtf.seed(1):
            dropout = mtf.layers.Dropout(0.5)
            return attend(q, k, v, length_dim="length", dropout=dropout)

    forecast = mtf.explain(step, *inputs(), hardware="h100")
    first, second = forecast.kernels
    assert first.endswith(": cuDNN.") and second.endswith(
        ": cuDNN takes no dropout here."
    )
    text = " ".join(str(forecast).split())
    assert f"kernels {first} {second}" in text
    assert "What computes attention." in page(forecast)


def test_blocks_take_memory():
    step = attention(**CAUSAL)
    forecasts = [
        mtf.explain(step, *inputs(2048), hardware=name) for name in ("h100", "tpu_v5p")
    ]
    scores = 4 * 2048 * 2048 * 2  # of an example, in bfloat16
    by_cudnn, by_blocks = (forecast.memory.peak for forecast in forecasts)
    assert by_blocks == by_cudnn + 2 * scores
