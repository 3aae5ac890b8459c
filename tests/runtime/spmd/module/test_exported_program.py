"""The SPMD runtime: where it refuses to run, what XLA cannot compile, and what an
export holds.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import layers
from meshtf.graph import Spec
from meshtf.mesh import Placement
from meshtf.names import Shape
from meshtf.runtime.spmd.module.exported_program import Port, _port_json

X = np.arange(32, dtype="float32").reshape(8, 4)


def test_where_tensorflow_cannot_run_it_a_call_is_refused():
    mesh = mtf.Mesh("data:4", "batch:data")

    @mtf.function(mesh=mesh, runtime="spmd", x="batch;d")
    def total(x):
        return mtf.reduce_sum(x)

    with pytest.raises(
        mtf.PlanError, match='(?s)on CPUs.*CPU:0.*runtime="placed".*mtf.export'
    ):
        total(X)
    assert mtf.explain(total, X).bytes_moved("all_reduce") == 6
    assert mtf.export(total, X).results[0].spec.shape == mtf.Shape("")
    with pytest.raises(
        mtf.ArgumentError, match="takes one of 'placed', 'spmd', not the str 'spdm'"
    ):
        mtf.function(total, runtime="spdm")


def test_what_xla_cannot_compile_is_refused_by_name_and_line():
    mesh = mtf.Mesh("data:4", "batch:data")

    def words(x):
        return tf.strings.to_number(tf.strings.as_string(x))

    step = mtf.function(
        lambda x: mtf.slicewise(words, [mtf.exp(x)], shardable="batch"),
        mesh=mesh,
        x="batch;d",
    )
    with pytest.raises(
        mtf.PlanError,
        match=r"(?s)AsString, which slicewise runs.*mtf.slicewise, "
        r"\S*test_exported_program.py:\d+.*\[batch:8 d:4\]",
    ):
        mtf.export(step, X)


def test_inputs_and_outputs_in_order(tmp_path):
    mesh = mtf.Mesh(
        "data:2;model:2", "batch:data;e:model", variable_layout="d:data", seed=3
    )
    normal = layers.initializers.normal(1.0)
    w = mtf.Variable(mesh, "d:4;e:6", normal, "w")
    b = mtf.Variable(mesh, "e:6", normal, "b")
    captured_tensor = mtf.asarray(mesh, np.ones(8, "float32"), "batch")

    @mtf.function(x="batch;d")
    def step(x):
        y = mtf.einsum([x, w], "batch;e") + mtf.outer(b, captured_tensor)
        w.assign(w * 2.0)
        return y, mtf.reduce_sum(y)

    export = mtf.export(step, X)
    assert [(i.name, i.kind, i.output) for i in export.inputs] == [
        ("w", "parameter", 2),
        ("b", "parameter", None),
        ("a tensor", "argument", None),
        ("x", "argument", None),
    ]
    assert [r.spec.shape for r in export.results] == [
        mtf.Shape("batch:8;e:6"),
        mtf.Shape(""),
    ]
    port = export.inputs[0]
    slices = port.shard(export.values["w"], mesh)
    assert [s.shape for s in slices] == [(2, 3)] * 4
    np.testing.assert_array_equal(port.gather(slices, mesh), w.numpy())
    export.save(str(tmp_path / "step"))
    export.save(str(tmp_path / "step"))  # in place of the one before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step"]
    manifest = json.loads((tmp_path / "step" / "manifest.json").read_text())
    assert manifest == json.loads(json.dumps(export.manifest()))
    assert manifest["inputs"][0] == {
        "name": "w",
        "kind": "parameter",
        "dtype": "float32",
        "shape": [["d", 4], ["e", 6]],
        "sharding": ["d", "e"],
        "output": 2,
    }
    assert (tmp_path / "step" / "module.mlirbc").read_bytes() == export.module
    np.testing.assert_array_equal(
        np.load(tmp_path / "step" / "values.npz")["b"], b.numpy()
    )


def test_an_abstract_mesh_exports_the_same_program():
    def module(devices, size):
        mesh = mtf.Mesh(f"data:{size}", "batch:data", devices=devices)
        w = mtf.Variable(mesh, "d:4;e:6", layers.initializers.zeros, "w")
        step = mtf.function(
            lambda x: mtf.reduce_sum(mtf.einsum([x, w], "batch;e")),
            mesh=mesh,
            x="batch;d",
        )
        return mtf.export(step, tf.TensorSpec([2048, 4], tf.float32))

    real = module(None, 8)
    abstract = module("abstract", 8)
    large = module("abstract", 2048)
    assert abstract.values == {} and set(real.values) == {"w"}
    assert (
        abs(len(real.module) - len(abstract.module)) < 100
    )  # names of functions differ
    assert (
        len(large.module) - len(real.module) < 2048 * 8 + 1000
    )  # one table of replicas


def test_inputs_of_one_name_get_a_suffix_and_partial_sums_are_refused():
    mesh = mtf.Mesh("data:2", "batch:data")
    one, two = (mtf.asarray(mesh, X * k, "batch;d") for k in (1, 2))
    step = mtf.function(lambda pair: pair[0] + pair[1] + one * two, mesh=mesh)
    export = mtf.export(step, [one, two])
    assert [i.name for i in export.inputs] == [
        "a tensor",
        "a tensor_1",
        "pair_0",
        "pair_1",
    ]
    np.testing.assert_array_equal(export.values["a tensor"], X)
    np.testing.assert_array_equal(export.values["a tensor_1"], X * 2)
    partial = mtf.reduce_sum(one, "batch")
    assert partial.sharded_value.placement == Placement(data=mtf.Partial("sum"))
    with pytest.raises(mtf.PlanError, match=r"(?s)partial result.*mtf.replicate\(x\)"):
        mtf.export(mtf.function(lambda x: x * partial, mesh=mesh), one)
    exported = mtf.export(
        mtf.function(lambda x: x * 2.0, mesh=mesh), partial
    )  # by the host
    assert exported.manifest()["inputs"][0]["partial"] == ("sum",)
    with pytest.raises(mtf.PlanError, match="Give each replica its term"):
        exported.inputs[0].shard(X[0], mesh)


def module_size(length):
    """Returns the size of the module of a program with an attention mask and random numbers
    of constant seeds, in bytes.
    """
    mesh = mtf.Mesh("data:2", "batch:data")

    @mtf.function(mesh=mesh, x="batch;query;memory")
    def f(x):
        query = mtf.range(mesh, f"query:{length}")
        memory = mtf.range(mesh, f"memory:{length}")
        is_visible = mtf.outer(query, memory, mtf.greater_equal)
        bias = mtf.where(is_visible, 0.0, -1e9)
        noise = mtf.random_normal(mesh, bias.shape, seed=3)
        return x + bias + mtf.dropout(noise, 0.5, seed=4)

    return len(mtf.export(f, np.ones([2, length, length], "float32")).module)


def test_what_depends_on_nothing_is_computed_on_the_devices():
    """Masks and random numbers would be in the module, if TensorFlow computed them."""
    assert module_size(256) < module_size(16) + 1000


def test_a_manifest_says_the_order_of_axes():
    mesh = mtf.Mesh("x:2;y:2")
    spec = Spec(Shape("b:8"), "float32")
    placement = Placement("b:y+x")
    assert _port_json(Port("x", "argument", spec, placement), mesh)["order"] == (1, 0)
    same_as_mesh = Placement("b:x+y")
    assert "order" not in _port_json(Port("x", "argument", spec, same_as_mesh), mesh)
