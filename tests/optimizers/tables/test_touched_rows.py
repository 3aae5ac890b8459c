"""Updates of the rows of a table that a step looks up equal those of all rows, or are lazy."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.hardware import Hardware, Link
from meshtf.layers import initializers
from meshtf.partition import ReshardStep, WriteStep, walk
from meshtf.partition.cost import bytes_received, local_bytes

ROWS = 100  # not a multiple of three
MESHES = {
    "one position": {"axes": ""},
    "data": {"axes": "data:2", "layout": "batch:data"},
    "rows": {"axes": "data:2;model:2", "layout": "batch:data;vocab:model"},
    "rows that do not divide": {"axes": "model:3", "layout": "vocab:model"},
    "rows over two axes": {"axes": "data:2;model:2", "layout": "vocab:data+model"},
    "columns": {"axes": "data:2;model:2", "layout": "batch:data;d:model"},
    "FSDP": {"axes": "data:2", "layout": "batch:data", "variable_layout": "d:data"},
    "separate": {
        "axes": "data:2;model:2",
        "layout": "batch:data;vocab:model",
        "devices": "separate:4",
    },
    "live": {"axes": "", "devices": "spmd:cpu"},
    "live rows": {
        "axes": "data:2;model:2",
        "layout": "batch:data;vocab:model",
        "devices": "spmd:cpu",
    },
    "live columns": {"axes": "model:3", "layout": "d:model", "devices": "spmd:cpu"},
}
EXACT = {  # whose rules keep rows without gradient
    "sgd": lambda vs: optimizers.SGD(vs, 0.3),
    "adagrad": lambda vs: optimizers.Adagrad(vs, 0.1),
    "rowwise": lambda vs: optimizers.Adagrad(vs, 0.1, rowwise=True),
}
LAZY = {
    "momentum": lambda vs: optimizers.SGD(vs, 0.3, momentum=0.9, lazy=True),
    "nesterov": lambda vs: optimizers.SGD(vs, 0.3, 0.9, nesterov=True, lazy=True),
    "adam": lambda vs: optimizers.Adam(vs, 0.1, lazy=True),
    "ftrl": lambda vs: optimizers.FTRL(vs, 0.1, l1=0.01, lazy=True),
}


class Table:
    """A step that looks ids up in a table, and updates the table and a matrix.

    Args:
      optimizer: a function of variables.
      loss_of: a function of (table, matrix, ids) in place of one lookup.
      clip: the norm by which gradients are clipped; None: they are not.
      dtype: the data type of the table.
      mesh: arguments of the mesh.
    """

    def __init__(self, optimizer, loss_of=None, clip=None, dtype="float32", **mesh):
        self.mesh = mtf.Mesh(**{"axes": "", **mesh})
        self.table = mtf.Variable(
            self.mesh, f"vocab:{ROWS};d:6", initializers.normal(), "table", dtype=dtype
        )
        self.matrix = mtf.Variable(
            self.mesh, "d:6;k:4", initializers.normal(), "matrix", dtype=dtype
        )
        random = np.random.default_rng(0)
        for variable in self.variables:
            variable.assign(random.normal(size=variable.shape.sizes).astype("float32"))
        self.optimizer = optimizer(self.variables)
        loss_of = loss_of or one_lookup

        @mtf.function(mesh=self.mesh, ids="batch;length", step="")
        def function(ids, step):
            loss = loss_of(self.table, self.matrix, ids)
            grads = mtf.gradients([loss], self.variables)
            norm = optimizers.global_norm(grads)
            if clip is not None:
                grads, norm = optimizers.clip_by_global_norm(grads, clip)
            self.optimizer.apply_gradients(grads, self.variables, step)
            return loss, norm

        self.function = function

    @property
    def variables(self):
        return [self.table, self.matrix]

    def program(self):
        return self.function.lower(some_ids(0), np.int32(0)).program

    def updates(self):
        """Returns the names of the ops that write the table."""
        return [
            step.title
            for step in self.program().steps
            if isinstance(step, WriteStep) and self.table in step.writes
        ]

    def run(self, steps=3):
        """Returns losses and norms, and the values of the variables and slots."""
        results = [
            [float(x) for x in self.function(some_ids(i), np.int32(i))]
            for i in range(steps)
        ]
        variables = [*self.variables, *self.optimizer.variables]
        return results, {x.name: np.float32(x.numpy()) for x in variables}


def some_ids(step):
    """Returns ids [batch, length] of the first 30 rows, some of them twice."""
    ids = np.random.default_rng(step).integers(0, 30, (4, 3)).astype("int32")
    ids[0, 1] = ids[3, 2] = ids[1, 0]
    return ids


def one_lookup(table, matrix, ids):
    y = mtf.einsum([mtf.gather(table, ids, "vocab"), matrix], "batch;length;k")
    return mtf.reduce_mean(mtf.square(y - 1.0))


def with_dense_path(table, matrix, ids):
    """The same loss, with a term that makes the gradient of the table dense."""
    return one_lookup(table, matrix, ids) + 0.0 * mtf.reduce_sum(mtf.square(table))


def assert_equal(run, expected_run):
    (results, values), (expected_results, expected_values) = run, expected_run
    np.testing.assert_allclose(results, expected_results, rtol=1e-5)
    assert values.keys() == expected_values.keys()
    for name, expected in expected_values.items():
        np.testing.assert_allclose(
            values[name], expected, rtol=1e-4, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("optimizer", EXACT)
def test_updates_equal_those_of_all_rows(optimizer, mesh):
    dense = Table(EXACT[optimizer], with_dense_path)
    assert "rows" not in dense.updates()[0]
    by_rows = Table(EXACT[optimizer], clip=None, **MESHES[mesh])
    # A row that is sharded has a mean that no single device computes.
    is_dense = optimizer == "rowwise" and "d" in by_rows.table.placement.shards
    assert by_rows.updates() == [
        "write" if is_dense else f"{dense.updates()[0]} of rows"
    ]
    assert_equal(by_rows.run(), dense.run())


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("optimizer", LAZY)
def test_lazy_updates_are_the_rule_on_touched_rows(optimizer, mesh):
    """As if each step updated a table of the touched rows only."""
    step = Table(LAZY[optimizer], **MESHES[mesh])
    before = step.table.numpy()
    _, values = step.run(steps=2)
    _, expected = Table(LAZY[optimizer]).run(steps=2)
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-6)
    touched = np.unique([some_ids(0), some_ids(1)])
    others = np.setdiff1d(np.arange(ROWS), touched)
    np.testing.assert_array_equal(values["table"][others], before[others])
    assert (values["table"][touched] != before[touched]).any(axis=1).all()


@pytest.mark.parametrize("optimizer", LAZY)
def test_a_lazy_step_equals_the_dense_one_on_its_rows(optimizer):
    """Slots begin at zero, so the first step of both rules is one on rows that it touches."""
    _, lazy = Table(LAZY[optimizer]).run(steps=1)
    _, dense = Table(LAZY[optimizer], with_dense_path).run(steps=1)
    touched = np.unique(some_ids(0))
    np.testing.assert_allclose(
        lazy["table"][touched], dense["table"][touched], rtol=1e-5, atol=1e-5
    )


def two_lookups(table, matrix, ids):
    x = mtf.gather(table, ids, "vocab") * 0.5
    y = mtf.gather(table, mtf.reduce_max(ids, "length"), "vocab")
    return mtf.reduce_mean(mtf.square(mtf.einsum([x, y, matrix], "batch;length;k")))


def renamed_and_cast(table, matrix, ids):
    words = mtf.rename(table, {"vocab": "words", "d": "e"})
    x = mtf.rename(mtf.gather(words, ids, "words"), {"e": "d"})
    y = mtf.gather(mtf.cast(table, "float32"), ids, "vocab")
    return mtf.reduce_mean(mtf.square(mtf.einsum([x * y, matrix], "batch;length;k")))


def negative_ids(table, matrix, ids):
    x = mtf.gather(table, ids - 5, "vocab", zero_negative=True)
    return mtf.reduce_mean(mtf.square(mtf.einsum([x, matrix], "batch;length;k") - 1.0))


@pytest.mark.parametrize("mesh", ["one position", "rows", "columns", "live rows"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("loss_of", [two_lookups, renamed_and_cast, negative_ids])
def test_lookups_of_several_kinds(loss_of, optimizer, mesh):
    by_rows = Table(EXACT[optimizer], loss_of, **MESHES[mesh])
    assert "of rows" in by_rows.updates()[0]
    dense = Table(
        EXACT[optimizer],
        lambda *args: loss_of(*args) + 0.0 * mtf.reduce_sum(mtf.square(args[0])),
    )
    assert "of rows" not in dense.updates()[0]
    assert_equal(by_rows.run(), dense.run())


@pytest.mark.parametrize("mesh", ["one position", "rows", "columns", "live rows"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_the_norm_of_clipping_is_that_of_the_dense_gradient(optimizer, mesh):
    """Rows with one id are added up before they are squared."""
    by_rows = Table(EXACT[optimizer], clip=0.1, **MESHES[mesh])
    assert "of rows" in by_rows.updates()[0]
    # Equal ids are found once for the norm of the clipping and the update.
    titles = [step.title for step in by_rows.program().steps]
    assert titles.count("rowsums") == 1
    dense = Table(EXACT[optimizer], with_dense_path, clip=0.1)
    assert_equal(by_rows.run(), dense.run())


def test_half_floats_are_rounded_once():
    by_rows = Table(EXACT["sgd"], dtype="bfloat16")
    assert by_rows.updates() == ["descentupdate of rows"]
    _, values = by_rows.run(steps=1)
    _, expected = Table(EXACT["sgd"], with_dense_path, dtype="bfloat16").run(steps=1)
    np.testing.assert_allclose(values["table"], expected["table"], rtol=2**-7)


def test_without_a_function_updates_are_the_same():
    function = Table(LAZY["adam"])
    eager = Table(LAZY["adam"])
    for step in range(2):
        function.function(some_ids(step), np.int32(step))
        ids = mtf.asarray(eager.mesh, some_ids(step), "batch;length")
        loss = one_lookup(eager.table, eager.matrix, ids)
        grads = mtf.gradients([loss], eager.variables)
        index = mtf.asarray(eager.mesh, np.int32(step), "")
        eager.optimizer.apply_gradients(grads, eager.variables, index)
    np.testing.assert_allclose(eager.table.numpy(), function.table.numpy(), rtol=1e-5)


def test_many_ids_take_the_dense_update():
    def many(table, matrix, ids):
        return one_lookup(table, matrix, mtf.concat([ids] * 3, "length"))

    assert Table(EXACT["sgd"], many).updates() == [
        "descentupdate"
    ]  # 36 ids of 100 rows
    # What a lazy rule computes does not depend on the size of the batch.
    assert Table(LAZY["adam"], many).updates() == ["adamupdate of rows"]


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_no_step_computes_a_gradient_as_large_as_the_table(optimizer, clip):
    step = Table(EXACT[optimizer], clip=clip, **MESHES["rows"])
    read, *others = (
        value.spec.shape
        for s in step.program().steps
        for value in s.outputs
        if value.spec is not None and "vocab" in value.spec.shape
    )
    assert repr(read) == repr(step.table.shape)
    assert not others


@pytest.mark.parametrize(
    "layout, expected",
    [
        # ids int32 and vectors of 6 floats: of 12, each of two devices receives half.
        ("batch:data", 6 * 4 + 6 * 6 * 4),
        ("batch:data;vocab:model", 6 * 4 + 6 * 6 * 4),
        # The vectors lie by columns already.
        ("batch:data;d:model", 6 * 4 + 6 * 3 * 4),
    ],
)
def test_what_is_exchanged_is_in_proportion_to_the_ids(layout, expected):
    step = Table(EXACT["sgd"], axes="data:2;model:2", layout=layout)
    gathers = [
        s
        for s in step.program().steps
        if isinstance(s, ReshardStep)
        and s.reshard.kind == "all_gather"
        and "length" in s.src.spec.shape
    ]
    received = [
        bytes_received(
            s.reshard.kind, local_bytes(s.src.spec, s.src.placement, step.mesh), 2
        )
        for s in gathers
    ]
    assert sum(received) == expected


def test_forecasts_count_the_rows_that_an_update_touches():
    link = Link("all", None, 1e12, 0.0)
    hardware = Hardware("slow memory", {"float32": 1e15}, 1e9, (link,), fuses=False)

    def forecast(size):
        mesh = mtf.Mesh("model:2", "vocab:model", devices="abstract")
        table = mtf.Variable(mesh, f"vocab:{size};d:64", initializers.zeros, "table")
        optimizer = optimizers.Adagrad([table])

        def step(ids, step):
            loss = mtf.reduce_sum(mtf.gather(table, ids, "vocab") ** 2)
            optimizer.apply_gradients(mtf.gradients([loss], [table]), [table], step)

        ids = mtf.asarray(mesh, np.zeros(256, "int32"), "batch")
        index = mtf.asarray(mesh, np.int32(0), "")
        return mtf.explain(step, ids, index, hardware=hardware)

    small, large = forecast(2**12), forecast(2**20)
    assert large.time.seconds == pytest.approx(small.time.seconds)
    # The rows that are looked up, their gradients, and those that the update reads.
    small_rest, large_rest = (
        x.memory.peak - x.memory.parameters - x.memory.optimizer_state
        for x in (small, large)
    )
    assert large_rest == small_rest < 10 * 256 * 64 * 4


@pytest.mark.parametrize(
    "mesh",
    [
        {"axes": "data:2", "layout": "batch:data", "optimizer_layout": "d:data"},
        {"axes": ""},
    ],
)
def test_lazy_updates_that_cannot_be_by_rows_are_refused(mesh):
    dtype = "float32" if "layout" in mesh else "bfloat16"
    step = Table(LAZY["adam"], dtype=dtype, **mesh)
    with pytest.raises(
        mtf.PlanError, match="lazy update of variable 'table'(.|\n)*vocab"
    ):
        step.program()


@pytest.mark.parametrize("mesh", ["one position", "rows", "columns", "live rows"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_microbatches_have_the_rows_of_all(optimizer, mesh):
    def in_microbatches(loss_of, **mesh):
        table = Table(EXACT[optimizer], **mesh)

        @mtf.function(mesh=table.mesh, ids="batch;length", step="")
        def function(ids, step):
            loss, grads = optimizers.accumulate_gradients(
                lambda x: loss_of(table.table, table.matrix, x),
                table.variables,
                ids,
                dim="batch",
                microbatches=2,
            )
            grads, norm = optimizers.clip_by_global_norm(grads, 0.1)
            table.optimizer.apply_gradients(grads, table.variables, step)
            return loss, norm

        table.function = function
        return table

    by_rows = in_microbatches(one_lookup, **MESHES[mesh])
    assert "of rows" in by_rows.updates()[0]
    assert not [
        value
        for s, _ in walk(by_rows.program())
        for value in s.outputs
        if s.node is not None and value.spec is not None and "vocab" in value.spec.shape
    ]
    dense = in_microbatches(with_dense_path)
    assert "of rows" not in dense.updates()[0]
    assert_equal(by_rows.run(), dense.run())
