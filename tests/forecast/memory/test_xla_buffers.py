"""What takes memory if XLA compiles a program, and not under TensorFlow, or the other way."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.hardware import as_hardware
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

ARCHITECTURE = Architecture(
    vocab=64, d_model=16, d_ff=64, heads=4, d_kv=8, blocks=3, scanned=True
)
BATCH = dict.fromkeys(("tokens", "targets"), tf.TensorSpec([8, 8], tf.int32))
STEP = tf.TensorSpec([], tf.int32)


def trainer(axes, layout, variable_layout="", devices="abstract", **settings):
    mesh = mtf.Mesh(axes, layout, devices=devices, variable_layout=variable_layout)
    return Trainer(LanguageModel(mesh, dataclasses.replace(ARCHITECTURE, **settings)))


@functools.cache
def both(*args, **kwargs):
    """Returns the forecasts of a step under TensorFlow and under XLA."""
    step = trainer(*args, **kwargs)._step
    return step.explain(BATCH, STEP), step.forecast_call(
        (BATCH, STEP), {}, under_xla=True
    )


def peaks(fn, *arrays, axes="", layout="", **shapes):
    """Returns the peaks under TensorFlow and under XLA, without arguments."""
    mesh = mtf.Mesh(axes, layout, devices="abstract")
    f = mtf.function(fn, mesh=mesh, **shapes)
    forecasts = f.explain(*arrays), f.forecast_call(arrays, {}, under_xla=True)
    return tuple(x.memory.peak - x.memory.arguments for x in forecasts)


@pytest.mark.parametrize("shards", [1, 2])
def test_what_an_op_converts_or_exponentiates_stays_in_registers(shards):
    def f(logits, labels):
        return mtf.cross_entropy(logits * 2, labels, "v")

    logits = tf.TensorSpec([4, 4096], tf.bfloat16)
    labels = tf.TensorSpec([4], tf.int32)
    axes = f"model:{shards}"
    shapes = {"logits": "b;v", "labels": "b"}
    plain, xla = peaks(f, logits, labels, axes=axes, layout="v:model", **shapes)
    size = 2 * 4 * 4096 // shards
    # Under TensorFlow also the logits in float32; with shards, which wait for each other's
    # statistics, their exponentials, whose size the forecast takes from the logits.
    assert plain == pytest.approx((3 if shards == 1 else 4) * size, abs=200)
    assert xla == pytest.approx(size, abs=200)


def test_only_elementwise_ops_overwrite_an_input():
    x = np.zeros([4, 32], "float32")
    size = x.nbytes
    elementwise = peaks(lambda x: mtf.exp(x * 2) + 1, x, x="b;d")
    rows = peaks(lambda x: mtf.softmax(x * 2, "d") + 1, x, x="b;d")
    product = peaks(lambda x: mtf.einsum([x * 2, x * 3], "b;d"), x, x="b;d")
    assert elementwise == (size, size)
    assert rows == (size, 2 * size)
    assert product == (2 * size, 2 * size)


def test_copies_that_only_kernels_read_stay_in_registers():
    x = np.zeros([4, 32], "float32")
    size = 4 * 32 * 4

    def added(x):  # the broadcast copy is read by a multiplication
        scores = x * 2
        copy = mtf.broadcast(mtf.reduce_max(scores, "d"), "b:4;d:32")
        return mtf.reduce_sum(scores * copy, "d")

    plain, xla = peaks(added, x, x="b;d")
    assert plain - xla == pytest.approx(size, abs=100)

    def product(x):  # a product of matrices reads the copy from memory
        rows = mtf.broadcast(mtf.reduce_max(x * 2, "d"), "b:4;d:32")
        return mtf.einsum([rows, mtf.rename(x * 3, "d", "e")], "d;e")

    plain, xla = peaks(product, x, x="b;d")
    assert xla == plain

    def converted(x):  # what it is computed from stays as long as the copy is read
        halves = mtf.cast(mtf.einsum([x, x * 2], "b;d"), "bfloat16")
        wide = mtf.cast(halves, "float32")
        return mtf.reduce_sum(mtf.exp(wide - mtf.reduce_max(wide, "d")), "d")

    plain, xla = peaks(converted, x, x="b;d")
    assert xla <= plain


def test_what_one_kernel_reads_is_computed_in_it():
    x = tf.TensorSpec([64, 2], tf.bfloat16)
    w = tf.TensorSpec([2, 64], tf.bfloat16)
    size = 64 * 64 * 2

    def products(x, w):
        for factor in (1, 2):
            yield mtf.cast(mtf.einsum([x * factor, w], "b;e"), "float32")

    def gradient(x, w):  # as large as both factors, which it is computed from
        scores, cotangent = products(x, w)
        return mtf.cast(mtf.exp(scores) * cotangent, "bfloat16")

    def read_twice(x, w):
        scores, cotangent = products(x, w)
        gradient = mtf.exp(scores) * cotangent
        rows = mtf.reduce_sum(gradient, "e")
        return mtf.cast(gradient, "bfloat16"), rows

    shapes = {"x": "b;d", "w": "d;e"}
    _plain, xla = peaks(gradient, x, w, **shapes)
    assert xla == pytest.approx(2 * size, abs=1024)
    _plain, xla = peaks(read_twice, x, w, **shapes)
    assert xla == pytest.approx(4 * size, abs=1024)


@pytest.mark.parametrize(
    ("function", "written"), [(mtf.exp, 0), (lambda x: mtf.softmax(x, "e"), 1)]
)
def test_kernels_of_rows_read_masks_from_memory(function, written):
    x = tf.TensorSpec([64, 2], tf.bfloat16)
    w = tf.TensorSpec([2, 64], tf.bfloat16)
    size = 64 * 64 * 2

    def masked(x, w):
        scores = mtf.einsum([x, w], "b;e")
        rows, columns = mtf.range(scores.mesh, "b:64"), mtf.range(scores.mesh, "e:64")
        mask = mtf.outer(rows, columns, mtf.greater_equal)
        y = function(mtf.where(mask, scores, 0.0))
        return mtf.where(mask, y, 0.0)

    _plain, xla = peaks(masked, x, w, x="b;d", w="d;e")
    blocks = 2 if written else 1  # only elementwise ops overwrite an input
    assert xla == pytest.approx(blocks * size + written * size / 2, abs=1024)


def test_probabilities_in_float32_of_bfloat16_logits_stay_in_registers():
    x = tf.TensorSpec([64, 2], tf.bfloat16)
    w = tf.TensorSpec([2, 512], tf.bfloat16)
    labels = tf.TensorSpec([64], tf.int32)

    def gradient(x, w, labels):
        logits = mtf.einsum([x, w], "b;e")
        loss = mtf.reduce_sum(mtf.cross_entropy(logits, labels, "e"))
        return mtf.gradients([loss], [x])[0]

    plain, xla = peaks(gradient, x, w, labels, x="b;d", w="d;e", labels="b")
    logits = 64 * 512 * 2
    assert xla == pytest.approx(logits, abs=2048)  # their gradient overwrites them
    assert plain >= 4 * logits


def live_of(forecast, title):
    return {
        live.tensor.local: live.count for live in forecast.live if live.title == title
    }


FSDP = ("data:4", "batch:data", "d_model:data")


def test_gradients_wait_for_the_next_iteration():
    plain, xla = both(*FSDP, recompute=True)
    waiting = live_of(xla, "waits for the next iteration")
    for shape in ((16, 64), (64, 16), (16, 4, 8), (4, 8, 16)):
        assert waiting[shape] >= 1  # what reduce_scatter reads: whole gradients
    assert not live_of(plain, "waits for the next iteration")
    # Sums over heads and d_ff are needed by the next layer: they do not wait.
    for forecast in both("model:4", "heads:model; d_ff:model", recompute=True):
        assert not live_of(forecast, "waits for the next iteration")


@pytest.mark.parametrize(
    "settings", [{}, {"recompute": True}, {"scanned": False}], ids=str
)
def test_live_tensors_add_up_to_the_peak(settings):
    pipeline = ("stage:3; data:2", "layers:stage; batch:data")
    meshes = [FSDP, pipeline] if settings.get("scanned", True) else [FSDP]
    for mesh in meshes:
        for forecast in both(*mesh, **settings):
            total = sum(live.total for live in forecast.live)
            assert total == pytest.approx(forecast.memory.peak)


def test_live_meshes_are_under_xla():
    plain, xla = both(*FSDP, recompute=True)
    live = trainer(*FSDP, devices="spmd:cpu", recompute=True)
    assert live.explain(BATCH).memory.peak == xla.memory.peak != plain.memory.peak


def test_other_names_and_shapes_take_no_memory():
    x = np.zeros([4, 32], "float32")

    def f(x):  # y lives on while the product reads the elements of y by other names
        y = x * 2
        z = mtf.rename(mtf.unflatten(y, "d", "a:4;c:8"), "b", "e")
        return mtf.einsum([z, z], "e"), mtf.reduce_sum(mtf.exp(y))

    plain, xla = peaks(f, x, x="b;d")
    assert xla == pytest.approx(x.nbytes, abs=100)
    assert plain == pytest.approx(2 * x.nbytes, abs=100)


def test_what_a_result_is_a_view_of_lives_to_the_end():
    x = np.zeros([4, 32], "float32")

    def f(x):
        y = mtf.rename(x * 2, "b", "e")
        return y, mtf.softmax(x, "d")

    plain, xla = peaks(f, x, x="b;d")
    assert xla == plain == 2 * x.nbytes


@pytest.mark.parametrize(("stages", "copies"), [(4, 1), (2, 2)])
def test_a_loop_of_one_iteration_stacks_nothing(stages, copies):
    x = np.zeros([4, 1024], "float32")

    def f(x):
        return mtf.map(lambda row: mtf.softmax(row * 2, "d"), x, "k")

    plain, xla = peaks(f, x, axes=f"stage:{stages}", layout="k:stage", x="k;d")
    row = x.nbytes / 4
    rows = 4 / stages  # of a device
    assert plain == pytest.approx((rows + 1) * row, abs=100)  # the softmax overwrites
    written = 2 * row  # under XLA, where it does not
    assert xla == pytest.approx(written + (copies - 1) * rows * row, abs=100)


def test_what_an_inner_loop_adds_to_a_sum_is_not_stacked():
    x = np.zeros([2, 1, 32], "float32")
    w = np.zeros([8, 32, 32], "float32")

    def f(x, w):
        def layer(x, w):
            return mtf.rename(mtf.einsum([x, w], "b;e"), "e", "d"), None

        def microbatch(_, x):
            loss = mtf.reduce_sum(mtf.scan(layer, x, w, dim="layers")[0])
            return None, mtf.gradients([loss], [w]), None

        return mtf.scan_and_sum(microbatch, None, x, dim="microbatch")[1]

    plain, xla = peaks(f, x, w, x="microbatch;b;d", w="layers;d;e")
    assert plain - xla == pytest.approx(w.nbytes, rel=0.02)
    assert xla == pytest.approx(w.nbytes * 9 / 8, rel=0.04)  # the sum, and one layer


def test_an_all_reduce_is_in_place():
    x = np.zeros([4, 64], "float32")
    w = np.zeros([64, 256], "float32")
    size = 4 * 256 * 4

    def f(x, w):
        return mtf.exp(mtf.einsum([x, w], "b;e"))

    shapes = {"axes": "data:2", "layout": "d:data", "x": "b;d", "w": "d;e"}
    plain, xla = peaks(f, x, w, **shapes)
    assert plain == pytest.approx(2 * size, abs=100)
    assert xla == pytest.approx(size, abs=100)


def test_blocks_of_scores_are_products_in_the_data_type_of_the_queries():
    mesh = mtf.Mesh("", devices="abstract")
    kv = "b;h;kv_length;key"

    def attend(q, k, v):
        return mtf.layers.dot_product_attention(q, k, v, length_dim="length")

    def backward(q, k, v):
        return mtf.gradients([mtf.reduce_sum(attend(q, k, v))], [q, k, v])

    def blocks(fn, hardware):
        step = mtf.function(fn, mesh=mesh, q="b;h;length;key", k=kv, v=kv)
        inputs = [tf.TensorSpec([1, 2, 1024, 8], tf.bfloat16)] * 3
        live = mtf.explain(step, *inputs, hardware=hardware).live
        return sum(x.total for x in live if x.title.startswith("workspace"))

    product = 2 * 1024 * 1024 * 2
    assert blocks(attend, "h100") == blocks(backward, "h100") == 0
    assert blocks(attend, "tpu_v5e") == blocks(backward, "tpu_v5e") == 2 * product
    # Without a platform: also the two that are computed of them.
    h100 = dataclasses.replace(as_hardware("h100"), platform="")
    assert blocks(backward, h100) == 4 * product
