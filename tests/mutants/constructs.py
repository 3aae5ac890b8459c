"""Rules of users' gradients, carries, windows and indices, each with the tests that
must notice.

The fuzzer was tried on them as well: `python -m tests.mutants.fuzzed`.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.places import GRADIENTS

CUSTOM = "meshtf.ops.control.custom_gradient"
INDEX_BOUNDS = "meshtf.ops.indexing.index_bounds"
LOOP = "meshtf.graph.control_flow.loop"
WINDOW = "meshtf.ops.windows.sliding_window"
TEST_CUSTOM = ("tests/ops/control/test_custom_gradient.py",)
TEST_SCATTER = ("tests/ops/indexing/test_scatter.py",)
TEST_SEGMENTS = (
    "tests/ops/indexing/test_scatter.py",
    "tests/ops/indexing/test_gather.py",
)
TEST_CARRIES = (
    "tests/ops/loops/test_scan.py",
    "tests/ops/control/test_loop_cases.py",
)
TEST_CONVOLUTION = ("tests/ops/windows/test_convolution.py",)

CONSTRUCTS = (
    Mutant(
        "a user's gradient runs once for each result",
        GRADIENTS,
        "_BackwardPass.step",
        "all(dy is None for dy in dys) or node.gradient_rule in self.applied_rules",
        "all(dy is None for dy in dys)",
        TEST_CUSTOM,
    ),
    Mutant(
        "a user's gradient is forgotten in a second run",
        GRADIENTS,
        "_BackwardPass._recomputed_rule",
        "rules[rule], forward_node.result_index",
        "None",
        TEST_CUSTOM,
    ),
    Mutant(
        "arguments of a user's gradient alone have no cotangent",
        "meshtf.graph.control_flow.body",
        "dependencies",
        "(*tensors, *rule.inputs, *rule.intermediates)",
        "tensors",
        TEST_CUSTOM,
    ),
    Mutant(
        "cotangents of two arguments are exchanged",
        CUSTOM,
        "_cotangents",
        "dxs = list(dxs)",
        "dxs = list(dxs)[::-1]",
        TEST_CUSTOM,
    ),
    Mutant(
        "a gradient rule draws as if there were no microbatches",
        "meshtf.ops.control.seeds",
        "ForwardContext.again",
        "{name: getattr(self.context, name) for name in CAPTURED}",
        "{name: getattr(self.context, name) for name in set(CAPTURED) - {'microbatches'}}",
        ("tests/ops/random/test_drawn_again.py",),
    ),
    Mutant(
        "an output that has a summed dimension is a partial sum",
        "meshtf.partition.planner",
        "_Planner._output_state",
        "role is Role.MAP or any(factor not in out.shape for out in self.outs)",
        "role is Role.MAP",
        ("tests/ops/slicewise/test_slicewise.py",),
    ),
    Mutant(
        "two carries are exchanged",
        "meshtf.ops.control.nested_values",
        "next_carry",
        "pack(old, ordered)",
        "pack(old, ordered[::-1])",
        TEST_CARRIES,
    ),
    Mutant(
        "the loop of a gradient goes forwards",
        LOOP,
        "_BackwardLoop._run",
        "not self.loop.reverse",
        "self.loop.reverse",
        TEST_CARRIES,
    ),
    Mutant(
        "half of the odd padding is before",
        WINDOW,
        "_padding_elements",
        "(total // 2, total - total // 2)",
        "(total - total // 2, total // 2)",
        TEST_CONVOLUTION,
    ),
    Mutant(
        "windows of all shards begin alike",
        WINDOW,
        "SlidingWindow.shard_offsets",
        "start - elements.low(windows.low(start))",
        "0 * start - elements.low(windows.low(0))",
        ("tests/conformance/test_conformance.py::test_eager[convolution.Conv-3]",),
    ),
    Mutant(
        "the gradient of a roll rolls the same way",
        "meshtf.ops.windows.shift",
        "Roll.gradient",
        "Roll(self.dim, -self.by)",
        "Roll(self.dim, self.by)",
        ("tests/ops/windows/test_shift.py", "tests/ops/windows/test_halo.py"),
    ),
    Mutant(
        "all groups use the segments of the first",
        INDEX_BOUNDS,
        "_group_offsets",
        "tf.range(0, num_groups * num_segments, num_segments, dtype=tf.int64)",
        "tf.range(0, num_groups * num_segments, num_segments, dtype=tf.int64) * 0",
        TEST_SEGMENTS,
    ),
    Mutant(
        "indices are not counted from the first of a shard",
        INDEX_BOUNDS,
        "to_local_ids",
        "ids -= tf.cast(context.shard_offset(dim), tf.int64)",
        "pass",
        TEST_SEGMENTS,
    ),
    Mutant(
        "equal maxima do not share their cotangent",
        "meshtf.ops.indexing.gather",
        "Segment.gradient",
        "dy / maximum(count, 1.0)",
        "dy",
        TEST_SCATTER,
    ),
    Mutant(
        "the first of several updates stays",
        "meshtf.ops.indexing.scatter",
        "_last_updates",
        'Segment("max", dim, batch + output_shape.dim(dim))',
        'Segment("min", dim, batch + output_shape.dim(dim))',
        TEST_SCATTER,
    ),
)
