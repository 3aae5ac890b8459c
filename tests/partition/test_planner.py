"""The planner's rules, one node at a time: lazy, free, bytes; and what must not
be sharded.
"""

from __future__ import annotations

from meshtf.graph import Op, Role, Spec
from meshtf.mesh import Layout, Mesh, Partial, Placement
from meshtf.names import Shape
from meshtf.ops.linear.einsum import Einsum
from meshtf.ops.shapes.reshape import Reshape
from meshtf.ops.slicewise.slicewise import Slicewise
from meshtf.partition import plan_node

SUM = Partial("sum")


class Product(Op):
    """x[.., k] w[k, ..] summed over k."""

    linearity = "each"

    def output_specs(self, x, w):
        return (Spec(x.shape.without("k") + w.shape.without("k"), x.dtype),)

    def role(self, factor):
        return Role.SUM if factor == "k" else Role.MAP


class Map(Op):
    """An elementwise op; `linear` and roles are attributes."""

    lazy: str | None = None
    roles: tuple[tuple[str, Role], ...] = ()

    @property
    def linearity(self):
        return self.lazy

    def output_specs(self, *xs):
        return (xs[0],)

    def role(self, factor):
        return dict(self.roles).get(factor, Role.MAP)


def plan(op, mesh, shapes, states, layout=None):
    """Plans a node whose output prefers the layout's placement."""
    ins = [Spec(Shape(s), "float32") for s in shapes]
    outs = op.output_specs(*ins)
    layout = mesh.layout if layout is None else layout
    preferred = [mesh.place(y.shape, layout)[0] for y in outs]
    return plan_node(op, mesh, layout, ins, states, outs, preferred)


MESH = Mesh("data:2;model:2", "batch:data;d_ff:model")


def test_free_a_factor_that_shards_all_inputs_already():
    node_plan = plan(
        Product(),
        MESH,
        ("batch:8;k:4", "k:4;d:4"),
        [Placement("batch:data;k:model"), Placement("k:model")],
    )
    assert dict(node_plan.factor_axes) == {"batch": ("data",), "k": ("model",)}
    assert node_plan.targets == (
        Placement("batch:data;k:model"),
        Placement("k:model"),
    )
    assert node_plan.results == (Placement("batch:data", model=SUM),)
    assert node_plan.finals == (
        Placement("batch:data", model=SUM),
    )  # Replicated is preferred: the sum may wait
    large = plan(
        Product(),
        MESH,
        ("batch:8;k:4", "k:4;d_ff:256"),
        [Placement("batch:data;k:model"), Placement("k:model")],
    )
    assert dict(large.factor_axes) == {
        "batch": ("data",),
        "k": ("model",),
    }  # whatever the output's size


def test_a_partial_sum_is_scattered_where_sharded_is_preferred():
    node_plan = plan(
        Product(),
        MESH,
        ("batch:8;k:4", "k:4;d_ff:4"),
        [Placement("batch:data;k:model"), Placement("k:model")],
    )
    assert node_plan.results == (Placement("batch:data", model=SUM),)
    assert node_plan.finals == (Placement("batch:data;d_ff:model"),)


def test_lazy_sums_flow_through_linear_ops():
    (state,) = states = [Placement(model=SUM)]
    assert plan(Map("each"), MESH, ("k:4",), states).results == (state,)
    assert plan(Map(None), MESH, ("k:4",), states).targets == (Placement(),)
    two = [Placement(model=SUM), Placement(model=SUM)]
    assert plan(Map("joint"), MESH, ("k:4", "k:4"), two).results == (state,)
    assert plan(Map("each"), MESH, ("k:4", "k:4"), two).targets == (Placement(),) * 2
    one_of_two = [Placement(model=SUM), Placement()]
    assert (
        plan(Map("joint"), MESH, ("k:4", "k:4"), one_of_two).targets
        == (Placement(),) * 2
    )


class Widened(Map):
    """An op whose output is larger than its input."""

    def output_specs(self, x):
        return (Spec(x.shape + Shape("n:8"), x.dtype),)


def test_a_sparse_sum_is_not_reduced_before_it_grows():
    (state,) = states = [Placement(model=SUM)]
    assert plan(Widened("first"), MESH, ("k:4",), states).targets == (Placement(),)
    assert plan(Widened("sparse"), MESH, ("k:4",), states).results == (state,)
    second = [Placement(), Placement(model=SUM)]

    class OfTwo(Widened):
        def output_specs(self, x, _):
            return super().output_specs(x)

    targets = plan(OfTwo("sparse"), MESH, ("k:4", ""), second).targets
    assert targets[1] == Placement()


def test_a_sum_is_reduced_before_it_grows():
    states = [Placement(model=SUM), Placement()]
    grown = plan(Product(), MESH, ("k:4;m:2", "k:4;n:64"), states)
    assert grown.targets[0] == Placement()
    shrunk = plan(Product(), MESH, ("k:64;m:2", "k:64;n:4"), states)
    assert shrunk.results == (Placement(model=SUM),)


def test_only_sums_are_lazy():
    states = [Placement(model=Partial("max"))]
    assert plan(Map("each"), MESH, ("k:4",), states).targets == (Placement(),)


def test_bytes_the_smaller_tensor_is_resharded():
    mesh = Mesh("data:4", "batch:data")
    states = [Placement("batch:data"), Placement("k:data")]
    large_weight = plan(Product(), mesh, ("batch:4;k:64", "k:64;d:64"), states)
    assert large_weight.targets == (Placement("k:data"), Placement("k:data"))
    large_batch = plan(Product(), mesh, ("batch:4096;k:64", "k:64;d:64"), states)
    assert large_batch.targets == (Placement("batch:data"), Placement())


def test_work_is_sharded_where_the_output_prefers_it():
    node_plan = plan(
        Product(),
        MESH,
        ("batch:8;k:4", "k:4;d_ff:4"),
        [Placement(), Placement()],
    )
    assert dict(node_plan.factor_axes) == {"batch": ("data",), "d_ff": ("model",)}


def test_an_output_that_another_axis_is_to_shard_leaves_its_axis():
    node_plan = plan(
        Map(),
        MESH,
        ("batch:8",),
        [Placement("batch:data")],
        Layout("batch:model"),
    )
    assert node_plan.results == (Placement("batch:data"),)
    assert node_plan.finals == (Placement("batch:model"),)


def test_what_must_not_be_sharded_is_gathered():
    op = Map(roles=(("batch", Role.UNSHARDED),))
    node_plan = plan(op, MESH, ("batch:8;d:3",), [Placement("batch:data")])
    assert node_plan.targets == (Placement(),)
    assert node_plan.finals == (Placement("batch:data"),)


def test_another_factor_is_sharded_in_place_of_one_that_must_not_be():
    op = Map(roles=(("batch", Role.UNSHARDED),))
    node_plan = plan(op, MESH, ("batch:8;d:4",), [Placement("batch:data")])
    assert node_plan.targets == (Placement("d:data"),)  # all_to_all, and back
    assert node_plan.finals == (Placement("batch:data"),)
    sharded = plan(op, MESH, ("batch:8;d_ff:4",), [Placement("batch:data;d_ff:model")])
    assert sharded.targets == (Placement("d_ff:model"),)  # the other axis shards d_ff
    gathered = plan(op, MESH, ("batch:8;d:4",), [Placement("batch:data")], Layout(""))
    assert gathered.targets == (Placement(),)  # all need all of it: one all_gather


def test_results_by_role():
    for role, result in (
        (Role.MAX, Placement(data=Partial("max"))),
        (Role.SAME, Placement()),
        (Role.MAP, Placement("batch:data")),
    ):
        op = Map(roles=(("batch", role),))
        node_plan = plan(op, MESH, ("batch:8",), [Placement("batch:data")])
        assert node_plan.results == (result,)


def test_outputs_that_have_a_summed_factor_beside_others_that_lack_it_are_sharded():
    shapes = (Shape("batch:8;d:4"), Shape("d:4"))
    result_specs = tuple(Spec(shape, "float32") for shape in shapes)
    node_plan = plan(
        Slicewise(abs, result_specs, frozenset({"batch"})),
        MESH,
        ("batch:8;d:4",),
        [Placement("batch:data")],
    )
    assert node_plan.results == (
        Placement("batch:data"),
        Placement(data=Partial("sum")),
    )


def test_one_factor_is_not_sharded_by_two_axes_unless_the_layout_says_so():
    states = [Placement("batch:data"), Placement("batch:model")]
    node_plan = plan(Map(), MESH, ("batch:8", "batch:8"), states)
    assert dict(node_plan.factor_axes) == {"batch": ("data",)}
    assert node_plan.targets == (Placement("batch:data"),) * 2
    both = plan(
        Map(),
        MESH,
        ("batch:8",),
        [Placement("batch:data+model")],
        Layout("batch:data+model"),
    )
    assert both.axes_of("batch") == ("data", "model")


def test_an_axis_of_size_one_plans_nothing():
    mesh = Mesh("data:1;model:2", "batch:data;d_ff:model")
    node_plan = plan(Product(), mesh, ("batch:7;k:4", "k:4;d_ff:4"), [Placement()] * 2)
    assert dict(node_plan.factor_axes) == {"d_ff": ("model",)}


def test_equal_nodes_are_planned_once():
    states = [Placement()] * 2
    cached = plan(Product(), MESH, ("batch:8;k:4", "k:4;d_ff:4"), states)
    assert plan(Product(), MESH, ("batch:8;k:4", "k:4;d_ff:4"), states) is cached


def test_a_factor_that_does_not_divide_is_padded_where_the_op_allows_it():
    """Shards are equal on a strict mesh, and where elements meet, unless the op says what
    padding is. Here they meet along k.
    """
    shapes = ("batch:5;k:6", "k:6;d:4")
    states = [Placement("batch:data"), Placement()]
    for strict, sharded in ((False, {"batch": ("data",)}), (True, {})):
        mesh = Mesh("data:4", "batch:data", strict=strict)
        node_plan = plan(Product(), mesh, shapes, states)
        assert dict(node_plan.factor_axes) == sharded
    mesh = Mesh("data:4", "k:data")
    states = [Placement("k:data"), Placement("k:data")]
    assert "k" not in dict(plan(Product(), mesh, shapes, states).factor_axes)
    product = Einsum(("batch", "d"))
    assert dict(plan(product, mesh, shapes, states).factor_axes) == {"k": ("data",)}


def test_a_factor_of_several_sizes_is_not_padded():
    mesh = Mesh("data:2", "a:data")
    merge = Reshape(old=Shape("a:3;b:2"), new=Shape("a:6"))
    node_plan = plan(merge, mesh, ("a:3;b:2",), [Placement("a:data")])
    assert not node_plan.factor_axes


def test_layouts_with_equal_rules_for_an_op_share_its_plan():
    layouts = ["batch:data;d_ff:model", "batch:data;heads:model", "batch:data;d:model"]
    meshes = [Mesh("data:2;model:2", layout) for layout in layouts]
    states = [Placement()]
    first, equal, other = (
        plan(Map(), mesh, ["batch:4;d:4"], states) for mesh in meshes
    )
    assert equal is first
    assert other is not first


def test_an_op_takes_the_order_of_axes_that_most_elements_have():
    mesh = Mesh("x:2;y:2")
    placements = [Placement("k:y+x"), Placement("k:x+y")]
    large_first = plan(Map(), mesh, ("k:4;b:64", "k:4"), placements)
    assert large_first.targets == (Placement("k:y+x"),) * 2
    assert large_first.axes_of("k") == ("y", "x")
    large_last = plan(Map(), mesh, ("k:4", "k:4;b:64"), placements)
    assert large_last.results == (Placement("k:x+y"),)
