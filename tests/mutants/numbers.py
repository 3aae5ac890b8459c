"""Rules of numbers that ops compute, and of loops, each with the tests that must notice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.places import BITS, TEST_LOOPS, TEST_RANDOM

NUMBERS = (
    Mutant(
        "dimensions hash equally",
        BITS,
        "_distinct_indices",
        "_GOLDEN_RATIO * dim_index",
        "0 * dim_index",
        TEST_RANDOM,
    ),
    Mutant(
        "seeds added up",
        BITS,
        "random_key",
        "_avalanche(_as_uint32(seed) + key) ^ np.uint32(0x85EBCA6B)",
        "_as_uint32(seed) + key",
        TEST_RANDOM,
    ),
    Mutant(
        "the last multiplication of the mix dropped",
        BITS,
        "mix_high",
        "h *= _constant_for(h, 0x846CA68B)",
        "pass",
        TEST_RANDOM,
    ),
    Mutant(
        "the middle shift of the mix dropped",
        BITS,
        "mix_high",
        "h ^= _shift_right(h, 15)",
        "pass",
        TEST_RANDOM,
    ),
    Mutant(
        "the first shift of the mix dropped",
        BITS,
        "mix_high",
        "h ^= a",
        "h = a * np.uint32(1)",
        TEST_RANDOM,
    ),
    Mutant(
        "the last shift of the mix dropped",
        BITS,
        "mix",
        "h ^= _shift_right(h, 16)",
        "pass",
        TEST_RANDOM,
    ),
    Mutant(
        "words mixed once",
        BITS,
        "_array_words",
        "_avalanche(index + key)",
        "index",
        TEST_RANDOM,
    ),
    Mutant("one word for each index", BITS, "mix_high", "h += b", "pass", TEST_RANDOM),
    Mutant(
        "recorded words without their salt",
        BITS,
        "_tensor_words",
        "hashes + tf.reverse(key, [0]) + _SALT",
        "hashes + tf.reverse(key, [0])",
        TEST_RANDOM,
    ),
    Mutant(
        "shards hash from index 0",
        BITS,
        "_shard_indices",
        "context.num_shards(name) > 1",
        "False",
        TEST_RANDOM,
    ),
    Mutant(
        "last bits differ at the end",
        BITS,
        "by_packets",
        "not padding",
        "True",
        TEST_RANDOM,
    ),
)
LOOPS = (
    Mutant(
        "a reversed loop goes forwards",
        "meshtf.runtime.lowering.control_flow",
        "_Loop._index",
        "self.num_iterations - 1 - iteration",
        "iteration",
        TEST_LOOPS,
    ),
    Mutant(
        "sums of a loop are its last terms",
        "meshtf.runtime.lowering.control_flow",
        "_Loop._accumulated",
        "variable + x",
        "x + 0 * variable",
        TEST_LOOPS,
    ),
    Mutant(
        "what others read is added to a sum in place, too",
        "meshtf.partition.steps.sums_in_place",
        "added_in_place",
        "readers[term] == 1",
        "True",
        ("tests/partition/steps/test_sums_in_place.py",),
    ),
    Mutant(
        "a pipeline waits for nothing",
        "meshtf.partition.steps.before_pipelines",
        "_sums_for",
        "sums.extend(values)",
        "None",
        ("tests/partition/steps/test_before_pipelines.py",),
    ),
    Mutant(
        "what varies is taken out of loops",
        "meshtf.partition.loops_and_branches",
        "hoist_invariant_steps",
        "any(v in varying for v in step.needs)",
        "all(v in varying for v in step.needs)",
        TEST_LOOPS,
    ),
)
