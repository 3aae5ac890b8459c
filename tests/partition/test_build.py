"""Programs: how much communication well-known layouts need, and what is left out or
shared.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import optimizers
from meshtf.partition import Compute, ReadStep, ReshardStep, WriteStep, schedule


def ones(mesh, shape, name):
    """An initializer."""
    return mtf.ones(mesh, shape)


def traffic(compiled):
    """Returns how many moves of each kind a program makes along each axis; slices are
    free.
    """
    return Counter(
        f"{s.reshard.kind} {s.reshard.axes_text}"
        for s in compiled.program.steps
        if isinstance(s, ReshardStep) and s.reshard.kind != "slice"
    )


def placement_after(compiled):
    """Returns kind and shape of each move."""
    return [
        (s.reshard.kind, repr(s.src.spec.shape))
        for s in compiled.program.steps
        if isinstance(s, ReshardStep) and s.reshard.kind != "slice"
    ]


def ops(compiled):
    """Returns the ops that run, by title."""
    return Counter(
        s.node.op.display_name for s in compiled.program.steps if isinstance(s, Compute)
    )


class Mlp:
    """x[batch, d_model] through a hidden layer and back, large batches: weights are the
    smaller.
    """

    def __init__(self, axes, layout, variable_layout="", **settings):
        self.mesh = mtf.Mesh(axes, layout, variable_layout, **settings)
        self.variables = [
            mtf.Variable(self.mesh, "d_model:16;d_ff:32", ones, "w1"),
            mtf.Variable(self.mesh, "d_ff:32;d_model:16", ones, "w2"),
        ]

    def __call__(self, x):
        w1, w2 = self.variables
        return mtf.einsum(
            [mtf.relu(mtf.einsum([x, w1], "batch;d_ff")), w2], "batch;d_model"
        )

    def forward(self):
        """Returns the program of the forward pass."""
        return mtf.function(self, mesh=self.mesh, x="batch;d_model").lower(_zeros())

    def backward(self, to_x=True):
        """Returns the program of the backward pass: the forward product `y` itself is
        not needed.
        """

        @mtf.function(mesh=self.mesh, x="batch;d_model", dy="batch;d_model")
        def backward(x, dy):
            return mtf.gradients(
                [self(x)], [*[x] * to_x, *self.variables], grad_ys=[dy]
            )

        return backward.lower(_zeros(), _zeros())

    def train_step(self):
        """Returns the program of forward pass, backward pass and update."""
        optimizer = optimizers.SGD(self.variables, 0.1)

        @mtf.function(mesh=self.mesh, x="batch;d_model", step="")
        def train_step(x, step):
            loss = mtf.reduce_mean(mtf.square(self(x)))
            optimizer.apply_gradients(
                mtf.gradients([loss], self.variables), self.variables, step
            )
            return loss

        return train_step.lower(_zeros(), np.int32(0))


def _zeros():
    return np.zeros((512, 16), "float32")


def test_one_device_moves_nothing():
    assert not placement_after(Mlp("", "batch:data;d_ff:model").train_step())


def test_tensor_parallelism_sums_once_forward_and_once_backward():
    mlp = Mlp("data:2;model:2", "batch:data;d_ff:model")
    assert placement_after(mlp.forward()) == [("all_reduce", "[batch:512 d_model:16]")]
    assert traffic(mlp.forward()) == {"all_reduce model": 1}
    # backward: dx over model, and each weight's gradient over data
    assert traffic(mlp.backward()) == {"all_reduce model": 1, "all_reduce data": 2}
    assert traffic(mlp.backward(to_x=False)) == {"all_reduce data": 2}


def test_data_parallelism_sums_each_gradient_once():
    mlp = Mlp("data:4", "batch:data")
    assert not traffic(mlp.forward())
    assert Counter(placement_after(mlp.train_step())) == {
        ("all_reduce", "[d_model:16 d_ff:32]"): 1,
        ("all_reduce", "[d_ff:32 d_model:16]"): 1,
        ("all_reduce", "[]"): 1,
    }


@pytest.mark.parametrize(
    "keep, gathers",
    [
        (
            False,
            3,
        ),  # two for the forward pass; w2 again for the gradient of the hidden layer
        (True, 2),
    ],
)
def test_fsdp_gathers_weights_and_scatters_gradients(keep, gathers):
    mlp = Mlp(
        "data:4", "batch:data", variable_layout="d_model:data", keep_gathered=keep
    )
    assert traffic(mlp.forward()) == {"all_gather data": 2}
    found = Counter(placement_after(mlp.train_step()))
    assert found.pop(("all_reduce", "[]")) == 1  # the loss
    assert Counter(kind for kind, _ in found.elements()) == {
        "all_gather": gathers,
        "reduce_scatter": 2,
    }
    assert all(
        "batch" not in shape for _, shape in found
    )  # activations stay where they are


def test_gathered_variables_do_not_pile_up():
    mesh = mtf.Mesh("data:4", "batch:data", variable_layout="d:data")
    ws = [mtf.Variable(mesh, "d:8;e:8", ones, f"w{i}") for i in range(6)]

    @mtf.function(x="batch;d")
    def layers(x):
        for w in ws:
            x = mtf.rename(mtf.einsum([x, w], "batch;e"), "e", "d")
        return x

    program = layers.lower(np.zeros((64, 8), "float32")).program
    gathers = [s for s in program.steps if isinstance(s, ReshardStep)]
    users = [
        s.outs[0]
        for s in program.steps
        if isinstance(s, Compute) and s.node.op.display_name == "einsum"
    ]
    # At most two at once.
    assert [g.waits_for for g in gathers] == [(), (), *((user,) for user in users[:4])]
    assert sum(1 for s in schedule(program) if s.computes) == 3  # two each


def test_fsdp_and_tensor_parallelism_together():
    mlp = Mlp("data:4;model:2", "batch:data;d_ff:model", variable_layout="d_model:data")
    assert traffic(mlp.forward()) == {"all_gather data": 2, "all_reduce model": 1}


def test_small_activations_move_rather_than_large_weights():
    mesh = mtf.Mesh("data:4", "batch:data", variable_layout="d_in:data")
    w = mtf.Variable(mesh, "d_in:64;d_out:64", ones, "w")
    f = mtf.function(
        lambda x: mtf.einsum([x, w], "batch;d_out"), mesh=mesh, x="batch;d_in"
    )
    assert all(
        "batch" in shape
        for _, shape in placement_after(f.lower(np.zeros((4, 64), "float32")))
    )


@pytest.mark.parametrize(
    "layout, variable_layout",
    [("batch:data;vocab:data", ""), ("batch:data", "vocab:data")],
)
def test_embedding_ids_travel_and_the_table_stays(layout, variable_layout):
    mesh = mtf.Mesh("data:4", layout, variable_layout)
    table = mtf.Variable(mesh, "vocab:64;d_model:16", ones, "table")

    @mtf.function(mesh=mesh, ids="batch;length")
    def lookup(ids):
        x = mtf.gather(table, ids, "vocab")
        return x, mtf.gradients([x], [table])

    assert placement_after(lookup.lower(np.zeros((8, 2), "int32")))[:2] == [
        ("all_gather", "[batch:8 length:2]"),
        ("reduce_scatter", "[batch:8 length:2 d_model:16]"),
    ]
    assert not any(
        kind == "all_gather" and "vocab" in shape
        for kind, shape in placement_after(lookup.lower(np.zeros((8, 2), "int32")))
    )


def test_equal_moves_are_made_once():
    mesh = mtf.Mesh("model:4", "d:model")

    @mtf.function(mesh=mesh, x="batch;d")
    def f(x):  # both functions need all of d
        return mtf.slicewise(tf.sort, [x]), mtf.slicewise(tf.cumsum, [x])

    assert traffic(f.lower(np.zeros((2, 8), "float32"))) == {"all_gather model": 1}


def test_the_version_that_is_nearest_is_resharded():
    mesh = mtf.Mesh("data:4", "batch:data")

    @mtf.function(mesh=mesh, x="batch;d")
    def f(x):  # once x is replicated, a shard of d is a slice of it, and free
        return mtf.slicewise(lambda x: tf.cumsum(x, 0), [x]), mtf.shard(x, "d:data")

    assert traffic(f.lower(np.zeros((8, 8), "float32"))) == {"all_gather data": 1}


def test_no_move_whose_result_nobody_uses():
    mlp = Mlp("data:4", "", variable_layout="d_model:data")
    w = mlp.variables[0]
    program = mtf.function(lambda: w.assign(w * 2.0), mesh=mlp.mesh).lower().program
    assert not [s for s in program.steps if isinstance(s, ReshardStep)], (
        "an update of a sharded variable from itself needs no communication"
    )


def test_dead_nodes_are_dropped():
    mlp = Mlp("data:2", "batch:data")

    @mtf.function(mesh=mlp.mesh, x="batch;d_model")
    def f(x):
        mtf.exp(mlp(x))  # no result, no effect
        return mtf.tanh(x)

    compiled = f.lower(_zeros())
    assert sum(ops(compiled).values()) == 1
    assert not placement_after(compiled)
    assert sum(isinstance(s, ReadStep) for s in compiled.program.steps) == 1


def test_effects_are_kept_and_stay_in_order():
    mesh = mtf.Mesh("")
    v = mtf.Variable(mesh, "", ones, "v")

    @mtf.function(mesh=mesh)
    def f():
        first = v.tensor()
        v.assign(first + 1.0)
        second = v.tensor()
        v.assign(second * 10.0)
        return first, second, v.tensor()

    steps = f.lower().program.steps
    assert [type(s) for s in steps if isinstance(s, (ReadStep, WriteStep))].count(
        WriteStep
    ) == 2
    assert [float(y) for y in f()] == [1, 2, 20]
    assert float(v.numpy()) == 20


def test_a_variable_is_read_once_between_writes():
    mlp = Mlp("model:2", "d_ff:model")
    w = mlp.variables[0]
    compiled = mtf.function(
        lambda: mtf.reduce_sum(w) + mtf.reduce_max(w), mesh=mlp.mesh
    ).lower()
    assert sum(isinstance(s, ReadStep) for s in compiled.program.steps) == 1


def test_a_data_parallel_step_is_one_segment_before_the_sums():
    segments = schedule(Mlp("data:4", "batch:data").train_step().program)
    assert len([s for s in segments if s.computes]) == 1
    assert len(segments) == 2
    assert sum(isinstance(s, WriteStep) for s in segments[1].before) == 2


def test_tensor_parallel_layers_are_a_segment_between_sums():
    mlp = Mlp("model:4", "d_ff:model")

    @mtf.function(mesh=mlp.mesh, x="batch;d_model")
    def deep(x):
        for _ in range(3):
            x = mtf.tanh(mlp(x))
        return x

    compiled = deep.lower(_zeros())
    assert traffic(compiled) == {"all_reduce model": 3}
    assert len([s for s in schedule(compiled.program) if s.computes]) == 4


def test_a_plan_for_thousands_of_positions_has_the_steps_of_one_for_eight():
    def kinds(axes):
        program = Mlp(axes, "batch:data;d_ff:model").train_step().program
        return Counter(type(s).__name__ for s in program.steps), moved_kinds(program)

    def moved_kinds(program):
        return [
            (s.reshard.kind, s.reshard.axes_text)
            for s in program.steps
            if isinstance(s, ReshardStep)
        ]

    assert kinds("data:256;model:8") == kinds("data:4;model:2")


def test_partition_needs_no_tensorflow():
    code = """
      import importlib.machinery, sys, types
      meshtf = types.ModuleType("meshtf")          # the package without its vocabulary
      meshtf.__path__ = importlib.machinery.PathFinder.find_spec(
          "meshtf").submodule_search_locations
      sys.modules["meshtf"], sys.modules["tensorflow"] = meshtf, None
      import dataclasses
      from meshtf.graph import Graph, Op, Role, Spec, apply, executing
      from meshtf.mesh import Mesh, Partial, Sharded
      from meshtf.names import Shape
      from meshtf.partition import build, schedule

      @dataclasses.dataclass(frozen=True)
      class Make(Op):
        shape: Shape
        def output_specs(self): return (Spec(self.shape, "float32"),)

      @dataclasses.dataclass(frozen=True)
      class Total(Op):
        def output_specs(self, x): return (Spec(x.shape.without("d"), x.dtype),)
        def role(self, factor): return Role.SUM if factor == "d" else Role.MAP

      mesh = Mesh("data:64;model:32", "b:data;d:model")
      graph = Graph(mesh)
      with executing(graph):
        y = apply(Total(), apply(Make(Shape("b:64;d:32"))))
      program = build(graph.nodes, [y], mesh)
      print([type(s).__name__ for s in program.steps], len(schedule(program)))
      """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "['Compute', 'Compute', 'ReshardStep'] 2"
