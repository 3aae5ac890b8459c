"""A small campaign of faults; `MESHTF_FAULTS=50` in the environment makes it a large
one.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.faults import campaign

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="workers close their ports on Linux"
    ),
]


@pytest.mark.sampled(3, together="several processes")
def test_what_was_disturbed_ends_bit_for_bit_as_what_was_not(seed):
    results = campaign.run(
        int(os.environ.get("MESHTF_FAULTS", "2")), steps=60, seed=seed
    )
    print(results)
    assert not results.wrong, "\n".join(results.wrong)
    assert results.survived == results.faults.total() > 0
