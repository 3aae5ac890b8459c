"""Programs that are written node by node: what waits for what, what is taken over from
TensorFlow, and where results lie.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.runtime.placed.program import tensor_ops
from meshtf.runtime.placed.program.function_calls import trace
from meshtf.runtime.placed.program.nested_sections import in_section
from meshtf.runtime.placed.program.program_writer import ProgramWriter
from meshtf.runtime.placed.program.resource_order import ResourceOrder
from meshtf.runtime.tf_internals.call_options import ProgramFunction, plain_config
from meshtf.runtime.tf_internals.run_records import graph_of

FIRST = "/device:CPU:0"
SECOND = "/device:CPU:1"
FOUR = tf.TensorSpec([4])


@pytest.fixture(autouse=True)
def devices():
    mtf.logical_devices(8)


def run(program, results, args, devices=None):
    """Returns the results of a program as arrays, and its FunctionDef."""
    devices = devices or [FIRST] * len(results)
    definition = program.finish(results, devices)
    kept = program.functions
    function = ProgramFunction(
        definition, program.captured, devices, plain_config(), kept
    )
    outputs = function(args)
    for y, device in zip(outputs, devices, strict=True):
        assert y.backing_device.endswith(device)
    return [y.numpy() for y in outputs], definition


def ancestors(definition, name):
    """Returns the nodes that must have run before a node."""
    ops = {op.name: op for op in graph_of(definition).get_operations()}
    results = set()
    todo = [ops[name]]
    while todo:
        op = todo.pop()
        new = {*(x.op for x in op.inputs), *op.control_inputs} - results
        results |= new
        todo += new
    return {op.name for op in results}


def both(index, *args):
    """Returns what an op of `tensor_ops` gives at once and in a program."""
    name, *rest = args
    op = getattr(tensor_ops, name)
    xs = [tf.constant(np.arange(12, dtype="f").reshape(4, 3) + k) for k in range(index)]
    at_once = (
        op(*xs, *rest) if name == "binary" else op(xs if index > 1 else xs[0], *rest)
    )
    program = ProgramWriter()
    ys = [program.argument(tf.TensorSpec(x.shape, x.dtype)) for x in xs]
    written = op(ys if index > 1 else ys[0], *rest)
    results = written if isinstance(written, list) else [written]
    arrays, _ = run(program, results, xs, [SECOND] * len(results))
    for x, y, array in zip(tf.nest.flatten(at_once), results, arrays, strict=True):
        assert x.shape == y.shape == array.shape and x.dtype == y.dtype
        np.testing.assert_array_equal(x.numpy(), array)


@pytest.mark.parametrize(
    "index, name, args",
    [
        (1, "identity", ()),
        (3, "concat", (1,)),
        (3, "stack", ()),
        (1, "split", (2, 0)),
        (1, "split", ([1, 3], 0)),
        (1, "reshape", ([2, -1],)),
        (1, "reshape", ([-1],)),
        (1, "slice_of", ([1, 0], [2, 3])),
        (1, "pad", ([[1, 0], [0, 2]], -1.5)),
        (3, "add_n", ()),
    ],
)
def test_ops_between_devices_are_those_of_tensorflow(index, name, args):
    both(index, name, *args, SECOND)


@pytest.mark.parametrize("kind", ["AddV2", "Maximum", "Minimum"])
def test_ops_of_two_tensors(kind):
    x = tf.constant([1.0, 5.0])
    y = tf.constant([3.0, 2.0])
    program = ProgramWriter()
    a, b = (program.argument(tf.TensorSpec([2])) for _ in range(2))
    ((results,), _) = run(program, [tensor_ops.binary(kind, a, b, FIRST)], [x, y])
    np.testing.assert_array_equal(results, tensor_ops.binary(kind, x, y, FIRST).numpy())


def test_calls_share_constants_and_run_on_the_given_device():
    add = trace(
        lambda x, k: [x + tf.cast(k, tf.float32)], [FOUR, tf.TensorSpec([], "int32")]
    )
    program = ProgramWriter()
    x = program.argument(FOUR)
    ys = [
        program.call(add, [x, program.constant(3, device=device)], device)[0]
        for device in (FIRST, SECOND, SECOND)
    ]
    arrays, definition = run(program, ys, [tf.ones(4)], [FIRST, SECOND, SECOND])
    np.testing.assert_array_equal(arrays, np.full((3, 4), 4.0))
    assert [n.device for n in definition.node_def if n.op == "Const"] == [FIRST, SECOND]


def test_functions_that_a_function_calls_live_as_long_as_it():
    """TensorFlow deletes the branches of a `tf.cond` with the trace that they are from."""

    def clipped(x):
        is_large = tf.reduce_sum(x) > 3.0
        return [tf.cond(is_large, lambda: x * 0.5, lambda: x)]

    function = trace(clipped, [FOUR])
    gc.collect()
    program = ProgramWriter()
    x = program.argument(FOUR)
    (y,), _ = run(program, program.call(function, [x], FIRST), [tf.ones(4)])
    np.testing.assert_array_equal(y, np.full(4, 0.5))


def test_what_is_returned_may_be_an_argument_or_come_from_outside():
    program = ProgramWriter()
    x = program.argument(FOUR)
    captured_tensor = tf.constant([5.0] * 200)
    captured = program.capture(captured_tensor)
    assert program.capture(captured_tensor) is captured and len(program.captured) == 1
    (first, second), _ = run(program, [x, captured], [tf.ones(4)])
    np.testing.assert_array_equal(first, np.ones(4))
    np.testing.assert_array_equal(second, np.full(200, 5.0))


def test_what_is_made_in_a_block_waits():
    program = ProgramWriter()
    x = program.argument(FOUR)
    late = program.argument(FOUR)
    waited = tensor_ops.identity(late, FIRST)
    with program.after([waited, late]):  # of a node, and of an argument
        y = tensor_ops.add_n([x, x], FIRST)
        z = tensor_ops.add_n([y, y], FIRST)
        (inner,) = program.section(lambda xs: [tf.exp(xs[0])], [x])
    free = tensor_ops.add_n([x, x], FIRST)
    arrays, definition = run(program, [y, z, inner, free], [tf.ones(4), tf.ones(4)])
    np.testing.assert_allclose(arrays[2], np.exp(np.ones(4)), rtol=1e-6)
    for waits in (y, z, inner):
        assert waited.node in ancestors(definition, waits.node)
    assert waited.node not in ancestors(definition, free.node)
    (node,) = [n for n in definition.node_def if n.name == z.node]
    assert not any(
        name.startswith("^") for name in node.input
    )  # one of its inputs does


def test_sections_keep_structure_and_sharing():
    program = ProgramWriter()
    x = program.argument(FOUR)
    y = program.argument(FOUR)

    def body(inputs):
        (a, none, (b, c)) = inputs
        assert none is None and a is c and a is not b
        total = a + b
        return [total, None, (a, total)]

    outputs = in_section(program, body, [x, None, (y, x)])
    assert outputs[1] is None and outputs[2][0] is x and outputs[0] is outputs[2][1]
    (total,), definition = run(program, [outputs[0]], [tf.ones(4), tf.ones(4)])
    np.testing.assert_array_equal(total, np.full(4, 2.0))
    assert [n.op for n in definition.node_def] == ["AddV2"]  # none for the return


def test_sections_pass_lists_to_each_other():
    program = ProgramWriter()
    x = program.argument(FOUR)

    def fill(inputs):
        array = tf.TensorArray(tf.float32, 4, element_shape=[])
        return tf.while_loop(
            lambda i, a: i < 4,
            lambda i, a: (i + 1, a.write(i, inputs[i] * 2.0)),
            (tf.constant(0), array),
        )[1]

    array = in_section(program, fill, x)
    total = in_section(program, lambda inputs: inputs.stack() + inputs.read(1), array)
    (results,), _ = run(program, [total], [tf.range(4.0)])
    np.testing.assert_array_equal(results, [2.0, 4.0, 6.0, 8.0])


def test_variables_are_read_and_written_in_the_order_of_the_program():
    """Through sections, nodes and calls: each sees what the one before it wrote."""
    v = tf.Variable(tf.ones(4))
    program = ProgramWriter()

    def write(handle, x):
        tf.raw_ops.AssignAddVariableOp(resource=handle, value=x)
        return []

    handle = tf.TensorSpec([], tf.resource)
    add = trace(write, [handle, FOUR], stateful=True, writes=True)
    x = program.argument(FOUR)
    first = program.read_variable(v.handle, v.shape, v.dtype, FIRST)
    in_section(program, lambda inputs: v.assign_add(inputs, read_value=False) and [], x)
    (second,) = in_section(program, lambda _: [v.read_value()], [])
    program.call(add, [v.handle, x], FIRST)
    third = program.read_variable(v.handle, v.shape, v.dtype, FIRST)
    arrays, _ = run(program, [first, second, third], [tf.ones(4) * 10.0])
    assert [a[0] for a in arrays] == [1.0, 11.0, 21.0]
    np.testing.assert_array_equal(v.numpy(), np.full(4, 21.0))


def test_a_loop_that_reads_waits_for_the_write_before_it_and_not_for_other_loops():
    v = tf.Variable(tf.ones(4))
    program = ProgramWriter()
    x = program.argument(FOUR)

    def loop(inputs):
        return tf.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, y + v.read_value()),
            (tf.constant(0), inputs),
        )[1]

    in_section(program, lambda inputs: v.assign(inputs, read_value=False) and [], x)
    first, second = (in_section(program, loop, x) for _ in range(2))
    in_section(program, lambda inputs: v.assign(inputs * 9, read_value=False) and [], x)
    arrays, definition = run(program, [first, second], [tf.ones(4) * 2.0])
    np.testing.assert_array_equal(arrays, np.full((2, 4), 8.0))
    np.testing.assert_array_equal(v.numpy(), np.full(4, 18.0))
    loops = [n.name for n in definition.node_def if n.op in ("While", "StatelessWhile")]
    assert len(loops) == 2
    assert loops[0] not in ancestors(definition, loops[1])


def test_prints_run_in_order_though_nobody_takes_a_result(capfd):
    program = ProgramWriter()
    x = program.argument(FOUR)
    for k in range(5):
        in_section(
            program, lambda inputs, k=k: tf.print("print", k, inputs[0]) and [], x
        )
    _, definition = run(program, [x], [tf.ones(4)])
    lines = [s for s in capfd.readouterr().err.splitlines() if s.startswith("print")]
    assert lines == [f"print {k} 1" for k in range(5)]
    assert set(definition.control_ret) == set(definition.signature.control_output)
    assert len(definition.control_ret) == 5


def test_reads_wait_for_the_last_write_and_writes_for_all_reads_since():
    order = ResourceOrder()
    assert order.before(["v"], True) == []
    order.add(["write"], ["v", "w"], True)
    order.add(["read"], ["v"], False)
    order.add(["other"], ["v"], False)
    assert order.before(["v"], False) == ["write"]
    assert order.before(["v"], True) == ["write", "read", "other"]
    assert order.before(["w"], True) == ["write"]
    order.add(["again"], ["v"], True)
    assert order.before(["v"], True) == ["again"]


@pytest.mark.parametrize("switches", ["0", "1", "call_options", "register_function"])
def test_the_public_way_gives_the_same_on_the_same_devices(switches, monkeypatch):
    monkeypatch.setenv("MESHTF_PUBLIC_TENSORFLOW", switches)
    mesh = mtf.Mesh("data:4", "batch:data", devices="logical:4")
    w = mtf.Variable(mesh, "batch:4", mtf.layers.initializers.ones, "w")

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        w.assign(w + mtf.reduce_sum(x, "d"))
        return x * w, mtf.reduce_sum(w)

    x = np.arange(12, dtype="f").reshape(4, 3)
    for _ in range(2):
        y, total = step(x)
    expected = 1 + 2 * x.sum(1)
    np.testing.assert_array_equal(y.numpy(), x * expected[:, None])
    assert float(total.numpy()) == expected.sum()
    assert [v.backing_device[-1] for v in y.sharded_value.values] == [
        "0",
        "1",
        "2",
        "3",
    ]
