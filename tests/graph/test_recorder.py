"""Recording: nodes carry the user's line and the region, and go to whoever is in
charge.
"""

from __future__ import annotations

import threading

import meshtf as mtf
from meshtf.graph import Graph, current_executor, executing
from meshtf.mesh import Layout


def test_nodes_are_recorded_with_their_line_and_region():
    mesh = mtf.Mesh("data:2", "batch:data")
    graph = Graph()
    with executing(graph):
        x = mtf.ones(mesh, "batch:4;d:4")
        with mtf.layout("batch:; d:data"):
            y = mtf.exp(x)
    assert [n.op.display_name for n in graph.nodes] == [
        x.node.op.display_name,
        y.node.op.display_name,
    ]
    assert graph.mesh is mesh and x.sharded_value is None
    assert (x.node.layout, y.node.layout) == (Layout("batch:data"), Layout("d:data"))
    assert y.node.source.function == "exp" and y.node.source.file == __file__
    with open(__file__, encoding="utf-8") as file:
        assert (
            file.read().split("\n")[y.node.source.line - 1].strip() == "y = mtf.exp(x)"
        )


def test_a_region_has_its_own_layout():
    mesh = mtf.Mesh("data:2", "batch:data")
    with mtf.layout("batch:; d:data"):
        y = mtf.exp(mtf.ones(mesh, "batch:3;d:4"))  # size 3: only legal in this region
    assert set(y.placement.shards) == {"d"}
    assert (
        mtf.function(lambda y: y * 2.0)(
            mtf.ones(mesh, "batch:4")
        ).sharded_value.placement
        == mesh.place(mtf.Shape("batch:4"))[0]
    )


def test_the_executor_of_one_thread_is_not_that_of_another():
    seen = []
    graph = Graph()
    with executing(graph):
        thread = threading.Thread(target=lambda: seen.append(current_executor()))
        thread.start()
        thread.join()
        assert current_executor() is graph
    assert seen[0] is not graph and current_executor() is seen[0]


def test_a_read_is_recorded_once_until_a_write():
    mesh = mtf.Mesh("")
    v = mtf.Variable(mesh, "d:2", lambda mesh, s, name: mtf.ones(mesh, s), "v")
    with executing(Graph(mesh)):
        first_read = v.tensor()
        second_read = v.tensor()
        v.assign(first_read * 2.0)
        assert second_read is first_read and v.tensor() is not first_read


def test_tensors_print_what_they_are():
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, "d:2")
    assert "float32 [d:2]" in repr(x) and "1." in repr(x)
    with executing(Graph(mesh)):
        assert repr(mtf.exp(x)) == "<mtf.Tensor float32 [d:2]>"
