"""SavedModels for batches of any size, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.support.refusals import line_of, refuses

X = np.random.default_rng(0).normal(size=(20, 6)).astype("float32")


@pytest.fixture(params=[None, "spmd:cpu"], scope="module")
def mesh(request):
    return mtf.Mesh("data:2", "batch:data", devices=request.param)


def served(model, folder):
    """Saves a model, and returns its signature, in plain TensorFlow."""
    model.save(str(folder / "model"))
    loaded = tf.saved_model.load(str(folder / "model"))
    return loaded.signatures["serving_default"]


class Net(mtf.Module):
    """A layer, statistics along features, a loop over them, a branch and constants."""

    def __init__(self, mesh):
        super().__init__()
        self.layer = mtf.layers.Dense(mesh, "d:6", "o:4")
        self.norm = mtf.layers.LayerNorm(mesh, "d:6")
        self.batch_norm = mtf.layers.BatchNorm(mesh, "d:6")

    def __call__(self, x, scale):
        h = self.batch_norm(self.norm(x)) * mtf.ones(x.mesh, "batch:4")
        zero = mtf.zeros(x.mesh, "batch:4")
        total, steps = mtf.scan(lambda c, y: (c + y, c * y), zero, h, "d")
        h = mtf.cond(scale > 0.0, lambda: h * scale, lambda: h)
        values, _ = mtf.top_k(mtf.softmax(self.layer(h), "o"), "o", "k:2")
        return {"values": values, "total": total, "steps": steps}


@pytest.mark.parametrize("number", [0, 1, 4, 7, 20])
def test_a_batch_of_any_size_is_computed_in_chunks(mesh, number, tmp_path):
    net = Net(mesh)
    predict = mtf.function(net, mesh=mesh, x="batch;d", scale="")
    scale = np.float32(2)
    model = mtf.export_saved_model(predict, X[:4], scale, any_size="batch")
    serve = served(model, tmp_path)
    outputs = serve(x=tf.constant(X[:number]), scale=tf.constant(scale))
    chunks = [predict(X[i : i + 4], scale) for i in range(0, 20, 4)]
    for name, axis in {"values": 0, "total": 0, "steps": 1}.items():
        expected = np.concatenate([chunk[name].numpy() for chunk in chunks], axis)
        expected = np.take(expected, range(number), axis)
        np.testing.assert_allclose(outputs[name].numpy(), expected, atol=1e-6)
    assert serve.structured_input_signature[1]["x"].shape.as_list() == [None, 6]
    dims = json.loads((tmp_path / "model" / "dims.json").read_text())
    shapes = dims["signatures"]["serving_default"]
    assert shapes["inputs"]["x"]["shape"] == [["batch", None], ["d", 6]]
    assert shapes["outputs"]["steps"]["shape"] == [["d", 6], ["batch", None]]


@pytest.mark.parametrize("search", [False, True])
def test_decoding_stops_early_for_each_chunk(search, tmp_path):
    mesh = mtf.Mesh("")
    # After 0 comes 1, then 2, and so on; 5 ends a sequence.
    table = mtf.asarray(mesh, 9 * np.eye(6, k=1, dtype="float32"), "last;vocab")

    @mtf.function(mesh=mesh, prompt="batch;length")
    def decode(prompt):
        def step(position, ids, state):
            return mtf.gather(table, ids, "last"), state

        if search:
            ids, scores = mtf.decoding.beam_search(step, prompt, "beam:2", eos_id=5)
        else:
            ids, scores = mtf.decoding.sample(step, prompt, eos_id=5, temperature=0)
        return {"ids": ids, "scores": scores}

    prompt = np.full([5, 8], -1, "int32")
    prompt[:, 0] = [4, 3, 0, 4, 1]
    model = mtf.export_saved_model(decode, prompt[:2], any_size="batch")
    outputs = served(model, tmp_path)(prompt=tf.constant(prompt))
    for name, expected in decode(prompt).items():
        np.testing.assert_allclose(outputs[name].numpy(), expected.numpy(), 1e-6)


REFUSED = {
    "mean": lambda x: x - mtf.reduce_mean(x, "batch"),
    "softmax": lambda x: mtf.softmax(x, "batch"),
    "running sum": lambda x: mtf.cumsum(x, "batch"),
    "neighbours": lambda x: mtf.shift(x, "batch", 1),
    "the last entry": lambda x: x * x["batch", -1],
    "a part": lambda x: x["batch", 1:3],
    "the index": lambda x: x * mtf.range(x.mesh, "batch:4", "float32"),
    "random numbers": lambda x: mtf.dropout(x, 0.5, seed=1),
    "sorted": lambda x: mtf.sort(x, "batch"),
    "pairs": lambda x: mtf.einsum([x, mtf.rename(x, "batch", "b")], "batch;b"),
    "over the batch": lambda x: mtf.scan(
        lambda c, y: (c + y, c), mtf.zeros(x.mesh, "d:6"), x, "batch"
    )[1],
    "one decision": lambda x: mtf.cond(x.sum() > 0.0, lambda: x, lambda: -x),
    "one end": lambda x: mtf.while_loop(
        lambda x: mtf.reduce_any(x > 1.0), lambda x: x / 2, x
    ),
    "other entries": lambda x: mtf.flatten(x, "batch;d", "entries"),
    "no entries": lambda x: {"x": x, "one": mtf.ones(x.mesh, "")},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_map_is_refused_with_its_line(name):
    mesh = mtf.Mesh("")
    function = mtf.function(REFUSED[name], mesh=mesh, x="batch;d")
    words = "has no 'batch'" if name == "no entries" else "not map along 'batch'"
    with refuses(mtf.PlanError, words) as error:
        mtf.export_saved_model(function, X[:4], any_size="batch")
    assert "lambda" in line_of(str(error.value), __file__) or "mtf." in line_of(
        str(error.value), __file__
    )
    if name != "random numbers":
        mtf.export_saved_model(function, X[:4])


def test_a_variable_with_the_dimension_or_none_is_refused():
    mesh = mtf.Mesh("")
    v = mtf.Variable(mesh, "batch:4", "ones", name="v")
    weighted = mtf.function(lambda x: x * v, mesh=mesh, x="batch;d")
    with refuses(mtf.PlanError, "read does not map along 'batch'"):
        mtf.export_saved_model(weighted, X[:4], any_size="batch")
    with refuses(mtf.ShapeError, "no argument has entries along 'bach'"):
        mtf.export_saved_model(weighted, X[:4], any_size="bach")


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("shape", ["k:1;{b};d:6", "{b};k:1;d:6", "{b};e:2;f:3"])
def test_a_reshape_keeps_a_batch_in_its_place(chunk, shape, tmp_path):
    """Of one example as well, along whose batch nothing is sharded."""
    new = shape.format(b=f"batch:{chunk}")
    function = mtf.function(
        lambda x: mtf.reshape(x, new), x="batch;d", mesh=mtf.Mesh("")
    )
    model = mtf.export_saved_model(function, X[:chunk], any_size="batch")
    (result,) = served(model, tmp_path)(x=tf.constant(X[:4])).values()
    axis = new.split(";").index(f"batch:{chunk}")
    entries = np.moveaxis(result.numpy(), axis, 0)
    np.testing.assert_array_equal(entries.reshape(4, 6), X[:4])


def test_a_reshape_that_moves_a_batch_is_refused():
    mesh = mtf.Mesh("")
    merged = mtf.function(
        lambda x: mtf.reshape(x, "d:6;batch:4"), mesh=mesh, x="batch;d"
    )
    with refuses(mtf.PlanError, "reshape does not map along 'batch'"):
        mtf.export_saved_model(merged, X[:4], any_size="batch")
