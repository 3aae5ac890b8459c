"""The rules that are broken, each with the tests that stand nearest to it and must
notice.

The first five of `MISSED` once got past the nearest tests; a test was added for each.
"""

from __future__ import annotations

from tests.mutants.communication import COMMUNICATION, RESHARDS
from tests.mutants.constructs import CONSTRUCTS
from tests.mutants.forecasts import FORECASTS
from tests.mutants.mutant import Mutant
from tests.mutants.numbers import LOOPS, NUMBERS
from tests.mutants.objects import OBJECTS
from tests.mutants.places import (
    BITS,
    GRADIENTS,
    PLAN,
    PROGRAM,
    TEST_GRADIENTS,
    TEST_HALF_SUMS,
    TEST_MOVES,
    TEST_PLAN,
    TEST_PROGRAM,
    TEST_RANDOM,
    TEST_WINDOWS,
)

MISSED = (
    Mutant(
        "a round of the random mix dropped",
        BITS,
        "mix_high",
        "h *= _constant_for(h, 0x7FEB352D)",
        "pass",
        TEST_RANDOM,
    ),
    Mutant(
        "gradient ops without primals",
        GRADIENTS,
        "_BackwardPass.step",
        "(*inputs, *present_outputs)",
        "()",
        TEST_GRADIENTS,
    ),
    Mutant(
        "partial sums permuted",
        "meshtf.mesh.placement",
        "_can_become",
        "old is Varying or isinstance(new, Partial)",
        "old is Varying",
        TEST_MOVES,
    ),
    Mutant(
        "gathers of variables not gated",
        PROGRAM,
        "Builder._append_reshards",
        "self.control_dependencies.of_all_gather(placement)",
        "None",
        TEST_PROGRAM,
    ),
    Mutant(
        "window one short",
        "meshtf.runtime.placed.resharding",
        "ReshardExecutor._exchange_window",
        "start + length",
        "start + length - 1",
        TEST_WINDOWS,
    ),
)

PLANNING = (
    Mutant(
        "maxima flow through linear ops",
        PLAN,
        "_Planner._stays_partial",
        "all(s.kind == 'sum' for s in states if isinstance(s, Partial))",
        "True",
        TEST_PLAN,
    ),
    Mutant(
        "partial sums grow",
        PLAN,
        "_Planner._stays_partial",
        "output_size > limit",
        "False",
        TEST_PLAN,
    ),
    Mutant(
        "partial sums added to what is replicated",
        PLAN,
        "_Planner._stays_partial",
        "len(partial_sizes) == len(states)",
        "len(partial_sizes) > 0",
        TEST_PLAN,
    ),
    Mutant(
        "two partial sums multiplied",
        PLAN,
        "_Planner._stays_partial",
        "len(partial) == 1 and is_linear and not any_sharded",
        "True",
        TEST_PLAN,
    ),
    Mutant(
        "what must not be sharded is",
        PLAN,
        "_Planner._can_shard",
        "factor not in self.sizes or self.op.role(factor) is Role.UNSHARDED",
        "factor not in self.sizes",
        TEST_PLAN,
    ),
    Mutant(
        "all meshes pad, and all ops",
        PLAN,
        "_Planner._can_shard",
        "not self.mesh.pads or len(sizes) > 1",
        "False",
        TEST_PLAN,
    ),
    Mutant(
        "two axes shard one dimension",
        PLAN,
        "_Planner._can_shard",
        "len(axes) > 1 and not any(set(axes) <= allowed_axes for allowed_axes in "
        "self._axes_together(factor))",
        "False",
        TEST_PLAN,
    ),
    Mutant(
        "the largest transfer is chosen",
        PLAN,
        "_Planner._cheapest_factor",
        "min(choices, key=lambda factor: self._num_received(factor, axis))",
        "max(choices, key=lambda factor: self._num_received(factor, axis))",
        TEST_PLAN,
    ),
    Mutant(
        "a factor without a transfer is not seen",
        PLAN,
        "_Planner._choose_factors",
        "self._free_factor(axis, states)",
        "None",
        TEST_PLAN,
    ),
    Mutant(
        "a partial result is called complete",
        PLAN,
        "_Planner._output_state",
        "Partial(role.value)",
        "Replicated",
        TEST_PLAN,
    ),
    Mutant(
        "results of summed names are called sums of maxima",
        PLAN,
        "_Planner._output_state",
        "Partial(role.value)",
        "Partial('max')",
        TEST_PLAN,
    ),
    Mutant(
        "an output stays sharded though another axis shards it",
        "meshtf.mesh.placement",
        "Placement.filled_from",
        "shards.setdefault(dim, free_axes)",
        "shards.update({dim: free_axes})",
        ("tests/partition/test_planner.py", "tests/partition/test_build.py"),
    ),
    Mutant(
        "the farthest version is moved",
        PROGRAM,
        "Builder._append_reshards",
        "min(values, key=lambda p: self._cost(tensor.spec, p, target))",
        "max(values, key=lambda p: self._cost(tensor.spec, p, target))",
        TEST_PROGRAM,
    ),
    Mutant(
        "gathered variables are kept",
        PROGRAM,
        "Builder.available_values",
        "not is_backward or not is_freed(tensor)",
        "True",
        TEST_PROGRAM,
    ),
    Mutant(
        "cotangents lie where the layout says",
        "meshtf.partition.preferred_placement",
        "PreferredPlacement._placement",
        "node.primals and not isinstance(node.op, ReshardOp)",
        "False",
        ("tests/partition/test_build.py", "tests/graph/autodiff/test_gradients.py"),
    ),
    Mutant(
        "prints are left out",
        "meshtf.partition.build",
        "live_nodes",
        "(WriteOp, HostOp)",
        "(WriteOp,)",
        ("tests/ops/variables/test_print_and_summary.py",),
    ),
    Mutant(
        "writes are left out",
        "meshtf.partition.build",
        "live_nodes",
        "(WriteOp, HostOp)",
        "(HostOp,)",
        TEST_PROGRAM,
    ),
)

WALK = (
    Mutant(
        "a second cotangent replaces the first",
        "meshtf.graph.autodiff.cotangents",
        "Cotangents.add",
        "total + dx",
        "dx",
        TEST_GRADIENTS,
    ),
    Mutant(
        "a second read of a variable has no gradient",
        GRADIENTS,
        "_BackwardPass.cotangent_of",
        "dx is not None",
        "dx is not None and read is reads[0]",
        TEST_GRADIENTS,
    ),
    Mutant(
        "many half floats are added in their own type",
        "meshtf.graph.autodiff.cotangents",
        "Cotangents.add",
        "count > _MAX_ADDED_NARROW",
        "False",
        TEST_HALF_SUMS,
    ),
    Mutant(
        "a loop adds half floats in their own type",
        "meshtf.graph.control_flow.loop",
        "_BackwardLoop._record_backward",
        "cast_cotangent(dx, accumulation_dtype(x.dtype), x)",
        "dx",
        TEST_HALF_SUMS,
    ),
    Mutant(
        "recomputed at once",
        GRADIENTS,
        "_BackwardPass._recompute",
        "None if waits else dependency.at(forward_node.stage)",
        "None",
        ("tests/ops/control/test_slicewise_and_recompute.py",),
    ),
    Mutant(
        "recomputed from what the forward pass made",
        GRADIENTS,
        "_BackwardPass._recompute",
        "[self.recomputed.get(x, x) for x in forward_node.inputs]",
        "list(forward_node.inputs)",
        ("tests/ops/control/test_slicewise_and_recompute.py",),
    ),
)

MUTANTS = (
    *MISSED,
    *PLANNING,
    *RESHARDS,
    *WALK,
    *NUMBERS,
    *COMMUNICATION,
    *LOOPS,
    *CONSTRUCTS,
    *OBJECTS,
    *FORECASTS,
)
