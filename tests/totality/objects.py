"""Legal calls of the constructors of `meshtf` itself, and of the methods of what they
make.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

import meshtf as mtf
from tests.totality.calls import Call, call, fresh_folder


def names(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of dimensions, shapes, layouts and meshes."""
    shape = t.x.shape
    layout = mtf.Layout("batch:data")
    mesh = t.mesh
    return {
        "Dimension": call("a", 3),
        "Shape": call("a:3"),
        "Shape.dim": call("d", on=shape),
        "Shape.get": call("d", on=shape),
        "Shape.index": call("d", on=shape),
        "Shape.only": call(["d"], on=shape),
        "Shape.rename": call({"d": "e"}, on=shape),
        "Shape.resize": call("d", 3, on=shape),
        "Shape.union": call(shape, on=shape),
        "Shape.without": call("d", on=shape),
        "Layout": call("batch:data"),
        "Layout.axes": call("batch", on=layout),
        "Layout.changes": call("batch:", on=layout),
        "Layout.items": call(on=layout),
        "Layout.override": call("d:model", on=layout),
        "Layout.then": call("d:model", on=layout),
        "Mesh": call("data:2", "batch:data"),
        "Mesh.group_size": call("data", on=mesh),
        "Mesh.groups": call("data", on=mesh),
        "Mesh.has": call(mesh.replicated, on=mesh),
        "Mesh.layout_in": call(layout, on=mesh),
        "Mesh.place": call(shape, on=mesh),
        "Mesh.states": call(mesh.replicated, on=mesh),
    }


def values(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of tensors, variables and modules."""
    spare = mtf.Variable(t.mesh, "d:6", t.init, "spare")
    array = {"value": "array"}
    methods = {
        f"{kind}.{method}": call(*args, on=x)
        for kind, x in (("Tensor", t.x), ("Variable", t.v))
        for method, args in {
            "sum": ("d",),
            "mean": ("d",),
            "max": ("d",),
            "min": ("d",),
            "astype": ("int32",),
        }.items()
    }
    return methods | {
        "Tensor.numpy": call(on=t.x),
        "Variable": call(t.mesh, "d:6", t.init, "w"),
        "Variable.numpy": call(on=t.v),
        "Variable.assign": call(t.b.tensor(), on=spare, takes=array),
        "Variable.assign_add": call(
            t.b.tensor(), on=spare, takes={"increment": "int float array"}
        ),
        "Variable.assign_sub": call(
            t.b.tensor(), on=spare, takes={"decrement": "int float array"}
        ),
        "Variable.initialize": call(on=spare),
        "Variable.move_to_stage": call(0, on=spare),
        "Variable.slots_by_region": call(on=t.v),
        "Variable.read": call(on=t.v),
        "Variable.load": call(lambda region: tf.ones([6]), on=spare),
        "Variable.regions": call(on=t.v),
        "Variable.slots": call(on=t.v),
        "Variable.use_slots": call(spare.slots(), on=spare),
        "Variable.tensor": call(on=t.v),
        "Module": call("m"),
        "Module.scope": call(on=mtf.Module("m")),
        "Module.outer_scope": call(on=mtf.Module("m")),
        "Module.summary": call(on=mtf.Module("m")),
        "Module.clone": call("n", on=mtf.Module("m"), takes={"name": "none"}),
        "Function.__call__": call(t.x, on=t.function, own=("args",)),
        "Function.lower": call(t.x, on=t.function, own=("args",)),
        "Function.explain": call(t.x, on=t.function, own=("args",)),
        "Function.export": call(t.x, on=t.function, own=("args",)),
    }


def written(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of what is written to files, or read from datasets."""
    forecast = mtf.explain(t.function, t.x)
    export = mtf.export(t.function, t.x)
    model = mtf.export_saved_model(t.function, t.x)
    counts = ("bytes_moved", "flops", "repeated_flops", "as_dict")
    page = os.path.join(t.folder, "page")
    timed = mtf.explain(t.function, t.x, hardware="h100")

    def build(mesh):
        return mtf.function(mtf.relu, mesh=mesh, x="batch;d")

    rows_of_zeros = np.zeros([4, 6], "float32")
    result = mtf.search(build, rows_of_zeros, devices=2, hardware="h100")

    def rows(region, shards):
        return (
            tf.data.Dataset.range(4 // shards)
            .map(lambda i: {"a": i})
            .batch(4 // shards)
        )

    return {f"Forecast.{name}": call(on=forecast) for name in counts} | {
        "Forecast.by_module": call(2, on=forecast),
        "Forecast.text": call(2, on=forecast),
        "Forecast.save_html": call(page, on=forecast),
        "Forecast.save_json": call(page, on=forecast),
        "Forecast.save_trace": call(page, on=timed),
        "search": call(
            build,
            rows_of_zeros,
            devices=2,
            hardware="h100",
            own=("args",),
            takes={"storage": "list", "layout": "text", "axes": "text"},
        ),
        "SearchResult.why_not": call("batch:data", on=result),
        "SearchResult.distinct_sizes": call(2, on=result),
        "SearchResult.measured": call(
            "logical:2", on=result, takes={"mesh_devices": "none text list"}
        ),
        "Export.manifest": call(on=export),
        "Export.save": call(fresh_folder(t), on=export),
        "SavedModel": call(),
        "SavedModel.save": call(os.path.join(t.folder, "model"), on=model),
        "SavedModel.add": call("other", t.function, t.x, on=model, own=("args",)),
        "HostReader": call(t.mesh, {"a": "batch"}, 4, rows, then=next),
    }
