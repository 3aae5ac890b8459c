"""SavedModels: a process without meshtf computes the same results as the original mesh."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import meshtf as mtf
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts

X = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")
LAYOUTS = [
    {"axes": ""},
    {"axes": "data:2;model:2", "layout": "batch:data; d_ff:model; vocab:model"},
    {"axes": "data:4", "layout": "batch:data", "variable_layout": "d_model:data"},
    {
        "axes": "data:2;model:2",
        "layout": "batch:data; d_model:model",
        "devices": "logical:4",
    },
    {
        "axes": "data:2;model:2",
        "layout": "batch:data; vocab:model",
        "devices": "separate:4",
    },
    {"axes": "stage:2;data:2", "layout": "batch:data"},
]
PLAIN = """
import json, sys
import numpy as np
import tensorflow as tf
try:
  import meshtf
except ImportError:
  print("no meshtf", flush=True)
for line in sys.stdin:
  folder, signature = json.loads(line)
  model = tf.saved_model.load(folder + "/model")
  inputs = {name: tf.constant(x) for name, x in np.load(folder + "/in.npz").items()}
  np.savez(folder + "/out.npz", **model.signatures[signature](**inputs))
  print(len(model.variables), flush=True)
"""


class Plain:
    """A process that has TensorFlow and no meshtf, and runs SavedModels."""

    def __init__(self) -> None:
        packages = str(Path(tf.__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", PLAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={"PYTHONPATH": packages, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        assert self.process.stdout.readline() == "no meshtf\n"

    def run(self, folder: Path, signature: str, **inputs) -> dict:
        """Returns the outputs of folder/model, and in `variables` how many it has."""
        np.savez(folder / "in.npz", **inputs)
        self.process.stdin.write(json.dumps([str(folder), signature]) + "\n")
        self.process.stdin.flush()
        variables = int(self.process.stdout.readline())
        return {**np.load(folder / "out.npz"), "variables": variables}


@pytest.fixture(scope="module")
def plain():
    """One process for all models: it takes seconds to start."""
    plain = Plain()
    yield plain
    plain.process.stdin.close()
    assert plain.process.wait() == 0


def graph_of(folder: Path):
    """Returns the graph of a SavedModel."""
    proto = saved_model_pb2.SavedModel.FromString(
        (folder / "saved_model.pb").read_bytes()
    )
    return proto.meta_graphs[0].graph_def


def functions_of(folder: Path) -> list:
    """Returns the functions of a SavedModel, but for those that save and restore it."""
    return [
        f
        for f in graph_of(folder).library.function
        if "_traced_" not in f.signature.name
    ]


class Net(mtf.Module):
    """Layers, stages, regions, loops, sorting, random numbers, and a constant from
    outside.
    """

    def __init__(self, mesh):
        super().__init__("net")
        self.mesh = mesh
        with self.scope():
            self.deep = mtf.layers.Repeat(
                lambda: mtf.layers.FeedForward(
                    mesh, "d_model:8", "d_ff:16", name="deep"
                ),
                "layers:3",
            )
            self.late = mtf.layers.FeedForward(
                mesh, "d_model:8", "d_ff:16", name="late"
            )
            if "stage" in mesh.axes:
                for variable in self.late.variables:
                    variable.move_to_stage(1)
        self.shift = mtf.reduce_sum(
            mtf.ones(mesh, "d_ff:4; d_model:8"), "d_ff"
        )  # or unfinished

    def __call__(self, x, seed):
        with mtf.seed(seed):
            x = mtf.dropout(self.deep(x), 0.2)
        with mtf.layout("batch:; d_ff:"), mtf.stage(1):
            x = self.late(x)
        x = mtf.replicate(x) + self.shift
        zero = mtf.zeros(self.mesh, "d_model:8")
        total, _ = mtf.scan(lambda h, row: (h + row, row), zero, x, "batch")
        return {"y": x, "more": (mtf.sort(x, "d_model"), total), "name": "net"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mesh", LAYOUTS, ids=lambda mesh: "; ".join(mesh.values()))
def test_a_process_without_meshtf_gives_the_same_numbers(mesh, tmp_path, plain):
    net = Net(mtf.Mesh(**mesh, seed=3))
    predict = mtf.function(lambda x, seed: net(x, seed), x="batch; d_model", seed="")
    model = mtf.export_saved_model(predict, X, np.int32(7))
    model.add("one", predict, tf.TensorSpec([1, 8]), np.int32(0)).save(
        str(tmp_path / "model")
    )
    have = plain.run(tmp_path, "serving_default", x=X, seed=np.int32(7))
    expected = predict(X, np.int32(7))
    assert have.pop("variables") == len(net.variables) and set(have) == {
        "y",
        "more_0",
        "more_1",
    }
    for name, y in {
        "y": expected["y"],
        "more_0": expected["more"][0],
        "more_1": expected["more"][1],
    }.items():
        np.testing.assert_allclose(have[name], y.numpy(), rtol=1e-5, atol=1e-5)
    one = plain.run(tmp_path, "one", x=X[:1], seed=np.int32(7))
    assert one["y"].shape == (1, 8)  # a batch that two positions could not share
    for function in functions_of(tmp_path / "model"):
        assert {n.device for n in function.node_def} == {""}
        assert not [
            n.op for n in function.node_def if re.match("Xla|PyFunc|EagerPyFunc", n.op)
        ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mesh", LAYOUTS[:3], ids=lambda mesh: "; ".join(mesh.values()))
def test_decoding_loops_find_the_same_ids(mesh, tmp_path, plain):
    mesh = mtf.Mesh(**mesh)
    table = mtf.Variable(
        mesh, "last:16; vocab:16", mtf.layers.initializers.normal(1.0), "table"
    )

    @mtf.function(mesh=mesh, prompt="batch; length", seed="")
    def decode(prompt, seed):
        def step(position, ids, state):
            return mtf.gather(table, ids, "last"), state

        greedy, scores = mtf.decoding.sample(step, prompt, eos_id=1, temperature=0)
        with mtf.seed(seed):
            drawn, _ = mtf.decoding.sample(
                step, prompt, eos_id=1, temperature=0.9, top_k=5
            )
        best, _ = mtf.decoding.beam_search(step, prompt, "beam:4", eos_id=1)
        return {"greedy": greedy, "scores": scores, "drawn": drawn, "best": best}

    prompt = np.full([4, 10], -1, "int32")
    prompt[:, 0] = [2, 3, 4, 5]
    mtf.export_saved_model(decode, prompt, np.int32(1)).save(str(tmp_path / "model"))
    for seed in np.arange(2, dtype="int32"):
        have = plain.run(tmp_path, "serving_default", prompt=prompt, seed=seed)
        expected = decode(prompt, seed)
        np.testing.assert_allclose(
            have["scores"], expected["scores"].numpy(), rtol=1e-6, atol=1e-6
        )
        for name in ("greedy", "drawn", "best"):
            np.testing.assert_array_equal(have[name], expected[name].numpy())


def test_mixtures_of_experts(tmp_path, plain):
    mesh = mtf.Mesh("data:2;model:2", "batch:data; experts:data; d_ff:model")
    layer = MixtureOfExperts(mesh, "d_model:8", "d_ff:16", 4, gating=gating.top_2)
    x = np.random.default_rng(1).normal(size=(4, 16, 8)).astype("float32")
    predict = mtf.function(lambda x: layer(x)[0], mesh=mesh, x="batch; length; d_model")
    mtf.export_saved_model(predict, x).save(str(tmp_path / "model"))
    have = plain.run(tmp_path, "serving_default", x=x)["output_0"]
    np.testing.assert_allclose(have, predict(x).numpy(), rtol=1e-5, atol=1e-6)


def test_pipelines(tmp_path, plain):
    mesh = mtf.Mesh("stage:2;data:2", "batch:data")
    layers = [
        mtf.layers.FeedForward(mesh, "d_model:8", "d_ff:16", name=f"ff_{k}")
        for k in range(3)
    ]
    pipe = mtf.pipeline.GPipe(layers, stages=2, microbatches=4)
    predict = mtf.function(lambda x: [pipe(x)], mesh=mesh, x="batch; d_model")
    mtf.export_saved_model(predict, X).save(str(tmp_path / "model"))
    have = plain.run(tmp_path, "serving_default", x=X)["output_0"]
    np.testing.assert_allclose(have, predict(X)[0].numpy(), rtol=1e-5, atol=1e-6)


def perceptron(mesh):
    """Returns a function of two layers, and its variables."""
    normal = mtf.layers.initializers.normal(0.2)
    w1 = mtf.Variable(mesh, "d_model:8; d_ff:16", normal, name="net/w1")
    w2 = mtf.Variable(
        mesh, "d_ff:16; d_model:8", normal, name="net/w2", trainable=False
    )

    @mtf.function(x="batch; d_model")
    def predict(x):
        return mtf.einsum(
            [mtf.relu(mtf.einsum([x, w1], "batch; d_ff")), w2], "batch; d_model"
        )

    return predict, w1, w2


def test_a_graph_is_as_lean_as_one_by_hand(tmp_path):
    predict, w1, w2 = perceptron(mtf.Mesh("data:2;model:2", "batch:data; d_ff:model"))
    mtf.export_saved_model(predict, X).save(str(tmp_path / "model"))
    hand = tf.Module()
    hand.w1 = tf.Variable(w1.numpy())
    hand.w2 = tf.Variable(w2.numpy())

    @tf.function(input_signature=[tf.TensorSpec([8, 8])])
    def run(x):
        x = tf.ensure_shape(x, [8, 8])  # a loaded signature does not check it
        return {"y": tf.matmul(tf.nn.relu(tf.matmul(x, hand.w1)), hand.w2)}

    tf.saved_model.save(hand, str(tmp_path / "hand"), {"serving_default": run})
    ours, by_hand = (
        [Counter(n.op for n in f.node_def) for f in functions_of(tmp_path / name)]
        for name in ("model", "hand")
    )
    assert sorted(map(sorted, (c.items() for c in ours))) == sorted(
        map(sorted, (c.items() for c in by_hand))
    )
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert [v.name for v in loaded.variables] == ["net/w1:0", "net/w2:0"]
    assert [v.name for v in loaded.trainable_variables] == ["net/w1:0"]
    for variable, original in zip(loaded.variables, (w1, w2)):
        np.testing.assert_array_equal(variable, original.numpy())


def test_later_training_changes_nothing_that_was_saved(tmp_path):
    predict, w1, _ = perceptron(mtf.Mesh(""))
    model = mtf.export_saved_model(predict, X)
    w1.assign(w1 * 2.0)
    before = w1.numpy()
    expected = predict(X).numpy()
    model.save(str(tmp_path / "model"))  # the present values
    w1.assign(w1 * 3.0)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.variables[0], before)
    np.testing.assert_allclose(
        loaded.signatures["serving_default"](x=X)["output_0"], expected, 1e-6
    )


def test_names_of_inputs_outputs_and_dimensions(tmp_path):
    mesh = mtf.Mesh("data:2", "batch:data")
    outer = mtf.asarray(mesh, X[:, 0], "batch")

    @mtf.function(mesh=mesh, batch={"x": "batch; d"})
    def add(batch, pair, times):
        return batch["x"] * times + pair[0], (pair[1] + outer,)

    y = mtf.asarray(mesh, X[:, 1], "batch")
    x = {"x": tf.TensorSpec([8, 8], tf.float32)}
    mtf.export_saved_model(add, x, [y, y], 2.0).save(str(tmp_path / "model"))
    dims = json.loads((tmp_path / "model" / "dims.json").read_text())
    batch_spec = {"dtype": "float32", "shape": [["batch", 8], ["d", 8]]}
    row_spec = {"dtype": "float32", "shape": [["batch", 8]]}
    assert dims == {
        "variables": {},
        "signatures": {
            "serving_default": {
                "inputs": {
                    "batch_x": batch_spec,
                    "pair_0": row_spec,
                    "pair_1": row_spec,
                },
                "outputs": {"output_0": batch_spec, "output_1_0": row_spec},
            }
        },
    }
    loaded = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    outputs = loaded(batch_x=X, pair_0=X[:, 1], pair_1=X[:, 1])
    np.testing.assert_allclose(outputs["output_0"], X * 2 + X[:, 1:2], 1e-6)
    np.testing.assert_allclose(outputs["output_1_0"], X[:, 1] + X[:, 0], 1e-6)


def test_methods_that_are_functions(tmp_path):
    class Model(mtf.Module):
        def __init__(self):
            super().__init__("model")
            mesh = mtf.Mesh("data:2", "batch:data")
            self.w = mtf.Variable(mesh, "d:8", mtf.layers.initializers.ones, "w")

        @mtf.function(x="batch;d")
        def predict(self, x):
            return {"the sum": mtf.reduce_sum(x * self.w)}

    model = Model()
    mtf.export_saved_model(model.predict, X).save(str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    np.testing.assert_allclose(loaded(x=X)["the_sum"], X.sum(), 1e-5)
    assert mtf.explain(model.predict, X).bytes_moved("all_reduce") == 4


def test_what_writes_or_tells_the_world_is_refused(tmp_path):
    mesh = mtf.Mesh(
        "data:2", "batch:data", "d_model:data", optimizer_layout="d_model:; d_ff:data"
    )
    predict, w1, _ = perceptron(mesh)
    optimizer = mtf.optimizers.AdamW([w1], 0.1)

    @mtf.function(x="batch; d_model")
    def step(x, fused):
        grads = mtf.gradients([mtf.reduce_sum(predict(x))], [w1])
        if fused:
            optimizer.apply_gradients(grads, [w1], mtf.constant(mesh, 0, dtype="int32"))
        else:
            w1.assign(w1 - grads[0])

    for fused in (True, False):
        with pytest.raises(
            mtf.PlanError,
            match="(?s)writes variable 'net/w1'.*test_saved_model.py:"
            r"\d+.*training=False",
        ):
            mtf.export_saved_model(step, X, fused)
    norm = mtf.layers.BatchNorm(mesh, "d_model:8")
    with pytest.raises(mtf.PlanError, match="writes variable 'batch_norm/"):
        mtf.export_saved_model(
            lambda x: norm(x, training=True), mtf.ones(mesh, "batch:8; d_model:8")
        )
    with pytest.raises(mtf.PlanError, match="an exported program cannot"):
        mtf.export_saved_model(
            mtf.function(lambda x: mtf.print(x), mesh=w1.mesh, x="b;d"), X
        )


def test_a_folder_is_replaced_only_if_it_is_one_of_these(tmp_path):
    predict, *_ = perceptron(mtf.Mesh(""))
    model = mtf.export_saved_model(predict, X)
    folder = tmp_path / "model"
    for _ in range(2):
        model.save(str(folder))
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    (folder / "dims.json").unlink()  # a SavedModel of somebody else's
    with pytest.raises(FileExistsError, match="no earlier export"):
        model.save(str(folder))
    abstract, *_ = perceptron(mtf.Mesh("data:2", devices="abstract"))
    with pytest.raises(mtf.MeshError, match="abstract"):
        mtf.export_saved_model(abstract, X).save(str(tmp_path / "none"))
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
