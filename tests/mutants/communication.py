"""Rules of reshards and collectives, each with the tests that must notice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.places import (
    COST,
    HIERARCHY,
    MOVES,
    PROGRAM,
    RING,
    TEST_COLLECTIVES,
    TEST_HIERARCHY,
    TEST_MOVES,
    TEST_PLACED,
    TEST_WINDOWS,
)

RESHARDS = (
    Mutant(
        "axes of two sizes exchange their states",
        MOVES,
        "_permute",
        "axes[a] == axes[b]",
        "True",
        TEST_MOVES,
    ),
    Mutant(
        "a permute though a third axis shards the dimension",
        MOVES,
        "_permute",
        "not any(s in states and s != Whole for c in axes if c not in (a, b) for s in "
        "(before[c], after[c]))",
        "True",
        TEST_MOVES,
    ),
    Mutant(
        "major axes gathered first",
        MOVES,
        "_steps",
        "reversed(axes)",
        "axes",
        TEST_MOVES,
    ),
    Mutant(
        "slices before the gather they wait for",
        MOVES,
        "_steps",
        "enter[a] not in waiting",
        "True",
        TEST_MOVES,
    ),
    Mutant(
        "equal trailing axes count as unchanged",
        MOVES,
        "_leaving",
        "old[same] == new[same]",
        "True",
        TEST_MOVES,
    ),
    Mutant(
        "an all-to-all of two dimensions at once",
        MOVES,
        "_steps",
        "_alone(a, leave, enter)",
        "True",
        TEST_MOVES,
    ),
    Mutant(
        "partial sums sliced",
        MOVES,
        "_cut",
        "'reduce_scatter' if isinstance(before, Pending) else 'slice'",
        "'slice'",
        TEST_MOVES,
    ),
    Mutant(
        "an all-reduce at half its bytes",
        COST,
        "bytes_received",
        "2 * share",
        "share",
        TEST_MOVES,
    ),
)
COMMUNICATION = (
    Mutant("windows do not wrap", COST, "spans", "not wrap", "True", TEST_WINDOWS),
    Mutant(
        "windows filled with zeros",
        PROGRAM,
        "Builder._windowed",
        "window_of(node.op, i, dim)",
        "(w := window_of(node.op, i, dim)) and w._replace(fill=0.0)",
        (
            "tests/ops/shapes/test_slice.py",
            "tests/ops/windows/test_pooling.py",
            "tests/ops/windows/test_shift.py",
        ),
    ),
    Mutant(
        "one slice that reads its own is enough",
        COST,
        "reads_own",
        "all((window.low(j * each), window.high((j + 1) * each)) == (j * rows, (j + 1) "
        "* rows) for j in range(parts))",
        "any((window.low(j * each), window.high((j + 1) * each)) == (j * rows, (j + 1) "
        "* rows) for j in range(parts))",
        TEST_MOVES,
    ),
    Mutant(
        "minima instead of maxima",
        "meshtf.runtime.placed.collectives.primitives",
        "combine",
        "binary('Maximum' if kind == 'max' else 'Minimum', x, y, device)",
        "binary('Minimum', x, y, device)",
        TEST_COLLECTIVES,
    ),
    Mutant(
        "the ring goes the other way",
        RING,
        "share_pieces",
        "(j + step + 1) % number",
        "(j - step - 1) % number",
        TEST_COLLECTIVES,
    ),
    Mutant(
        "an all-to-all joined along the sharded axis",
        RING,
        "all_to_all",
        "tf.concat(came, join)",
        "tf.concat(came, cut)",
        TEST_COLLECTIVES,
    ),
    Mutant(
        "pieces of hosts in order of hosts",
        HIERARCHY,
        "_gathered",
        "order == sorted(order)",
        "True",
        TEST_HIERARCHY,
    ),
    Mutant(
        "a slice for the next position",
        "meshtf.runtime.placed.resharding",
        "Mover._slice",
        "piece(x, cut, coord[i], parts, device)",
        "piece(x, cut, (coord[i] + 1) % parts, parts, device)",
        (
            "tests/runtime/placed/test_executor.py::test_each_position_slices_its_own_piece",
        ),
    ),
    Mutant(
        "groups of other tensors share a result",
        "meshtf.runtime.placed.resharding",
        "Mover._grouped",
        "id(y)",
        "0",
        TEST_PLACED,
    ),
)
