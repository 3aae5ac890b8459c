"""Tables of many features against TensorFlow's lookups: vectors, gradients and updates under
several layouts, placed and live.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import layers, optimizers
from meshtf.partition import ReshardStep, WriteStep
from tests.support.refusals import refuses

ITEMS = 130  # not a multiple of four
TABLES = {"users": "users:70;d:6", "items": f"items:{ITEMS};d:6", "wide": "wide:60"}
FEATURES = {
    "user": "users",
    "shown": "items",
    "summed": layers.Bag("items", "slot"),
    "mean": layers.Bag("items", "slot", "mean"),
    "sqrtn": layers.Bag("users", "slot", "sqrtn"),
    "bias": layers.Bag("wide", "slot", "mean"),
}
NAMES = {
    name: "batch;slot" if isinstance(feature, layers.Bag) else "batch"
    for name, feature in FEATURES.items()
}
WEIGHTED = ("mean", "sqrtn")
MESHES = {
    "one position": {"axes": ""},
    "batch": {"axes": "data:2", "layout": "batch:data"},
    "rows": {
        "axes": "data:2;model:2",
        "layout": "batch:data;items:model;users:data;wide:model",
    },
    "rows over two axes": {"axes": "data:2;model:2", "layout": "items:data+model"},
    "columns": {"axes": "data:2;model:2", "layout": "batch:data;d:model"},
    "a mixture": {"axes": "data:2;model:2", "layout": "items:model;d:data;slot:model"},
    "live rows": {
        "axes": "data:2;model:2",
        "layout": "batch:data;items:model;users:model",
        "devices": "spmd:cpu",
    },
    "live columns": {"axes": "model:3", "layout": "d:model", "devices": "spmd:cpu"},
}
OPTIMIZERS = {
    "sgd": lambda variables: optimizers.SGD(variables, 0.3),
    "adagrad": lambda variables: optimizers.Adagrad(variables, 0.1),
}


def batch(step):
    """Returns ids by feature, and weights, of the first rows: some twice, bags with padding, one
    bag without ids.
    """
    rng = np.random.default_rng(step)
    ids = {}
    for name, dims in NAMES.items():
        shape = (4, 3) if "slot" in dims else (4,)
        ids[name] = rng.integers(0, 5, shape).astype("int32")
        if "slot" in dims:
            ids[name][0, 2] = -1
            ids[name][1] = -1
    weights = {x: rng.uniform(0.5, 2.0, (4, 3)).astype("float32") for x in WEIGHTED}
    return ids, weights


class Model:
    """Tables, and a step that updates them.

    Args:
      optimizer: a function of variables.
      dense: whether a further term of the loss makes gradients dense.
      mesh: arguments of the mesh.
    """

    def __init__(self, optimizer, dense=False, **mesh):
        self.mesh = mtf.Mesh(**{"axes": "", **mesh})
        self.embed = layers.EmbeddingTables(self.mesh, TABLES, FEATURES)
        self.variables = self.embed.trainable_variables
        self.optimizer = optimizer(self.variables)

        weight_names = dict.fromkeys(WEIGHTED, "batch;slot")

        @mtf.function(mesh=self.mesh, ids=NAMES, weights=weight_names, step="")
        def function(ids, weights, step):
            vectors = self.embed(ids, weights)
            loss = sum(mtf.reduce_mean(mtf.square(x - 1.0)) for x in vectors.values())
            if dense:
                sums = [mtf.reduce_sum(mtf.square(x)) for x in self.variables]
                loss = loss + 0.0 * sum(sums)
            gradients = mtf.gradients([loss], self.variables)
            self.optimizer.apply_gradients(gradients, self.variables, step)
            return loss, vectors

        self.function = function

    def steps(self):
        return self.function.lower(*batch(0), np.int32(0)).program.steps

    def run(self, steps=2):
        """Returns the losses and the vectors of each step, and variables and slots."""
        losses, all_vectors = [], []
        for i in range(steps):
            loss, vectors = self.function(*batch(i), np.int32(i))
            losses.append(float(loss))
            all_vectors.append({name: x.numpy() for name, x in vectors.items()})
        variables = [*self.variables, *self.optimizer.variables]
        return losses, all_vectors, {x.name: x.numpy() for x in variables}


def looked_up(tables, ids, weights):
    """Returns the vectors of all features, by TensorFlow."""
    vectors = {}
    for name, feature in FEATURES.items():
        x = ids[name]
        if isinstance(feature, str):
            vectors[name] = tf.gather(tables[feature], x)
            continue
        places = np.argwhere(x >= 0)
        sparse_ids = tf.SparseTensor(places, np.int64(x[x >= 0]), x.shape)
        sparse_weights = None
        if name in weights:
            sparse_weights = tf.SparseTensor(places, weights[name][x >= 0], x.shape)
        table = tables[feature.table]
        has_rows = len(table.shape) == 2
        y = tf.nn.safe_embedding_lookup_sparse(
            table if has_rows else table[:, None],
            sparse_ids,
            sparse_weights,
            combiner=feature.combiner,
        )
        vectors[name] = y if has_rows else y[:, 0]
    return vectors


def expected_run(optimizer, initial, steps=2):
    """Returns what `Model.run` does but for slots, by TensorFlow and NumPy."""
    tables = {name: tf.Variable(value) for name, value in initial.items()}
    accumulators = {name: np.zeros_like(value) for name, value in initial.items()}
    losses, all_vectors = [], []
    for i in range(steps):
        with tf.GradientTape() as tape:
            vectors = looked_up(tables, *batch(i))
            loss = sum(tf.reduce_mean((x - 1.0) ** 2) for x in vectors.values())
        for name, gradient in tape.gradient(loss, tables).items():
            gradient = tf.convert_to_tensor(gradient).numpy()
            accumulators[name] += gradient**2
            change = 0.3 * gradient
            if optimizer == "adagrad":
                change = 0.1 * gradient / (np.sqrt(accumulators[name]) + 1e-10)
            tables[name].assign_sub(change)
        losses.append(float(loss))
        all_vectors.append({name: x.numpy() for name, x in vectors.items()})
    return losses, all_vectors, {name: x.numpy() for name, x in tables.items()}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_vectors_and_updates_are_those_of_tensorflow(optimizer, mesh):
    model = Model(OPTIMIZERS[optimizer], **MESHES[mesh])
    initial = {name: x.numpy() for name, x in model.embed.tables.items()}
    losses, vectors, expected = expected_run(optimizer, initial)
    run_losses, run_vectors, values = model.run()
    np.testing.assert_allclose(run_losses, losses, rtol=1e-5)
    for step_vectors, expected_vectors in zip(run_vectors, vectors, strict=True):
        assert step_vectors.keys() == expected_vectors.keys()
        for name, x in expected_vectors.items():
            np.testing.assert_allclose(
                step_vectors[name], x, rtol=1e-5, atol=1e-6, err_msg=name
            )
            if name != "user" and name != "shown":
                assert not step_vectors[name][1].any()  # a bag without ids
    for name, x in expected.items():
        np.testing.assert_allclose(
            values[f"tables/{name}"], x, rtol=1e-4, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("mesh", ["one position", "rows"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradients_of_weights_are_those_of_the_formula(combiner, mesh):
    mesh = mtf.Mesh(**MESHES[mesh])
    features = {"clicked": layers.Bag("items", "slot", combiner)}
    embed = layers.EmbeddingTables(mesh, TABLES, features)
    ids, weights = batch(0)[0]["mean"], batch(0)[1]["mean"]

    @mtf.function(mesh=mesh, ids="batch;slot", weights="batch;slot")
    def gradient(ids, weights):
        vectors = embed({"clicked": ids}, {"clicked": weights})["clicked"]
        return mtf.gradients([mtf.reduce_sum(mtf.square(vectors - 1.0))], [weights])[0]

    with tf.GradientTape() as tape:
        x = tf.constant(weights)
        tape.watch(x)
        shares = x * np.float32(ids >= 0)
        if combiner != "sum":
            power = 1 if combiner == "mean" else 2
            total = tf.reduce_sum(shares**power, 1, keepdims=True)
            # An empty bag is divided by 1 and not by 0.
            total = tf.where(total == 0, 1.0, total) ** (1 / power)
            shares = shares / total
        table = embed.tables["items"].numpy()
        vectors = tf.reduce_sum(table[np.maximum(ids, 0)] * shares[:, :, None], 1)
        loss = tf.reduce_sum((vectors - 1.0) ** 2)
    expected = tape.gradient(loss, x).numpy()
    np.testing.assert_allclose(
        gradient(ids, weights).numpy(), expected, rtol=1e-4, atol=1e-6
    )
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("mesh", ["one position", "rows", "columns", "live rows"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_step_computes_a_gradient_as_large_as_a_table(optimizer, mesh):
    by_rows = Model(OPTIMIZERS[optimizer], **MESHES[mesh])
    updates = [step for step in by_rows.steps() if isinstance(step, WriteStep)]
    assert len(updates) == len(TABLES)
    assert all(step.title.endswith("of rows") for step in updates)
    assert table_sized(by_rows) == len(TABLES)  # the reads
    # Against a test that cannot fail.
    dense = Model(OPTIMIZERS[optimizer], dense=True, **MESHES[mesh])
    assert table_sized(dense) > len(TABLES)


def table_sized(model):
    """Returns how many values of a program have the dimension of a table's ids."""
    return sum(
        any(dim in value.spec.shape for dim in TABLES)
        for step in model.steps()
        for value in step.outputs
        if value.spec is not None
    )


@pytest.mark.parametrize("out_of_range", ["error", "zeros", 4])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_devices_exchange_combined_vectors(combiner, out_of_range):
    mesh = mtf.Mesh(**MESHES["rows"])
    features = {"clicked": layers.Bag("items", "slot", combiner)}
    embed = layers.EmbeddingTables(mesh, TABLES, features, None, out_of_range)

    @mtf.function(mesh=mesh, ids="batch;slot")
    def lookup(ids):
        return embed({"clicked": ids})["clicked"] + 1.0  # takes complete sums

    program = lookup.lower(np.zeros((4, 3), "int32")).program
    reshards = [step for step in program.steps if isinstance(step, ReshardStep)]
    (reshard,) = reshards
    assert reshard.reshard.kind == "all_reduce"
    assert reshard.src.spec.shape == mtf.Shape("batch:4;d:6")


@pytest.mark.parametrize("mesh", ["one position", "rows", "live rows"])
@pytest.mark.parametrize("out_of_range", ["zeros", 4])
def test_ids_out_of_range_have_a_declared_vector(mesh, out_of_range):
    mesh = mtf.Mesh(**MESHES[mesh])
    embed = layers.EmbeddingTables(mesh, TABLES, FEATURES, out_of_range=out_of_range)
    ids = {
        "shown": np.array([7, 200, -1, ITEMS], "int32"),
        "mean": np.array([[7, 200], [ITEMS, -1], [8, -1], [1, 2]], "int32"),
    }

    @mtf.function(mesh=mesh, ids={name: NAMES[name] for name in ids})
    def lookup(ids):
        return embed(ids)

    vectors = lookup(ids)
    table = embed.tables["items"].numpy()
    default = np.zeros(6, "float32") if out_of_range == "zeros" else table[4]
    np.testing.assert_allclose(
        vectors["shown"].numpy(), [table[7], default, 0.0 * default, default], rtol=1e-6
    )
    # An id that is padding does not count in the mean; one that has a row does.
    first = table[7] if out_of_range == "zeros" else (table[7] + table[4]) / 2
    np.testing.assert_allclose(
        vectors["mean"].numpy(),
        [first, default, table[8], (table[1] + table[2]) / 2],
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("mesh", ["one position", "rows", "live rows"])
def test_ids_out_of_range_are_errors(mesh):
    mesh = mtf.Mesh(**MESHES[mesh])
    embed = layers.EmbeddingTables(mesh, TABLES, FEATURES)

    @mtf.function(mesh=mesh, ids="batch;slot")
    def lookup(ids):
        return embed({"mean": ids})

    with refuses(mtf.IndexRangeError, rf'\[0, {ITEMS}\) of "items"'):
        vectors = lookup(np.full((4, 3), ITEMS, "int32"))
        vectors["mean"].numpy()


def test_ids_of_a_small_type():
    embed = layers.EmbeddingTables(
        mtf.Mesh(""), {"items": "items:300;d:2"}, None, None, 3
    )
    for dtype in ("int8", "uint8", "int64"):
        ids = mtf.asarray(
            embed.tables["items"].mesh, np.array([1, 100], dtype), "batch"
        )
        table = embed.tables["items"].numpy()
        np.testing.assert_array_equal(
            embed({"items": ids})["items"].numpy(), table[[1, 100]]
        )


def test_names_and_first_values():
    mesh = mtf.Mesh("model:2", "items:model")
    embed = layers.EmbeddingTables(mesh, {"a": "items:4000;d:25", "b": "items:9;d:2"})
    assert [x.name for x in embed.variables] == ["tables/a", "tables/b"]
    assert list(embed.features) == ["a", "b"]
    assert np.std(embed.tables["a"].numpy()) == pytest.approx(0.2, rel=0.02)
    ones = layers.EmbeddingTables(mesh, {"a": "items:4;d:2"}, initializer="ones")
    assert ones.tables["a"].numpy().tolist() == [[1.0, 1.0]] * 4


def test_tables_are_restored_onto_another_mesh_and_served(tmp_path):
    trained = Model(OPTIMIZERS["adagrad"], **MESHES["rows"])
    trained.run()
    saved = {x.name: x for x in trained.embed.variables}
    checkpoint = mtf.checkpoints.save(str(tmp_path / "run"), 2, saved)
    mesh = mtf.Mesh("model:3", "d:model", seed=1)
    embed = layers.EmbeddingTables(mesh, TABLES, FEATURES)
    mtf.checkpoints.restore(checkpoint, {x.name: x for x in embed.variables})
    ids = {name: batch(0)[0][name] for name in ("shown", "mean")}

    @mtf.function(mesh=mesh, ids={name: NAMES[name] for name in ids})
    def score(ids):
        vectors = embed(ids)
        return mtf.reduce_sum(vectors["shown"] * vectors["mean"], "d")

    mtf.export_saved_model(score, ids, any_size="batch").save(str(tmp_path / "served"))
    serve = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    (y,) = serve(**{f"ids_{name}": x[:3] for name, x in ids.items()}).values()
    tables = {name: x.numpy() for name, x in trained.embed.tables.items()}
    vectors = looked_up(tables, batch(0)[0], {})
    expected = np.sum(vectors["shown"] * vectors["mean"], axis=1)
    np.testing.assert_allclose(y.numpy(), expected[:3], rtol=1e-5, atol=1e-6)


@pytest.fixture
def embed():
    return layers.EmbeddingTables(mtf.Mesh(""), TABLES, FEATURES)


def test_wrong_features_are_refused(embed):
    ids = mtf.zeros(embed.tables["items"].mesh, "batch:4", "int32")
    with refuses(mtf.ArgumentError, "no feature 'shwn'. Did you mean shown", "from"):
        embed({"shwn": ids})
    with refuses(mtf.ArgumentError, "no feature 'other'", "user, shown"):
        embed({"shown": ids}, {"other": ids})


def test_wrong_ids_are_refused(embed):
    mesh = embed.tables["items"].mesh
    with refuses(mtf.DTypeError, "feature 'shown' are integers", "StringLookup"):
        embed({"shown": mtf.zeros(mesh, "batch:4")})
    with refuses(
        mtf.ShapeError, "'mean' is a bag along \"slot\"", r"ids \[..., slot\]"
    ):
        embed({"mean": mtf.zeros(mesh, "batch:4", "int32")})
    with refuses(mtf.ShapeError, "'shown' have the dimension \"d\"", "mtf.rename"):
        embed({"shown": mtf.zeros(mesh, "d:6", "int32")})


def test_wrong_weights_are_refused(embed):
    mesh = embed.tables["items"].mesh
    ids = mtf.zeros(mesh, "batch:4;slot:3", "int32")
    with refuses(mtf.ArgumentError, "'shown'", "multiply its vectors"):
        embed({"shown": ids}, {"shown": ids})
    with refuses(mtf.ArgumentError, "features of `ids`: shown, not the str 'mean'"):
        embed({"shown": ids}, {"mean": ids})
    with refuses(mtf.ShapeError, "weights of feature 'mean'", "mtf.broadcast"):
        embed({"mean": ids}, {"mean": mtf.ones(mesh, "slot:3")})
