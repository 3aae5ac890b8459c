"""Workers do what they are asked in that order: nothing is read before it is there."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cluster.processes.launched import Launched


@pytest.mark.sampled(3, together="several processes")
@pytest.mark.slow
def test_functions_see_the_values_that_were_given_just_before():
    command = [sys.executable, "-m", "tests.cluster.processes.order"]
    with Launched(command, "--workers=2", "--devices_each=1") as launched:
        assert launched.wait() == 0, launched.text
    message = next(line for line in launched.lines if line.startswith("{"))
    assert json.loads(message) == {"variables": [], "readers": 0}
