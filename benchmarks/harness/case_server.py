"""The worker's side of `benchmarks.harness.rounds`: answers requests about one case.

Example:

    serve(lambda text: Runner(Case.load(text)))      # text: the case as JSON
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def serve(make_runner: Callable[[str], Any]) -> None:
    """Writes answers to standard output until standard input ends: first the runner's
    attribute `start_costs`, then the answer to each request: the result of a method of the
    runner.

    A request is a line of JSON, {"method": argument}; each answer is a line of JSON as well.

    Args:
      make_runner: returns the runner of a case, given the case as JSON. A runner is an
        object with the methods that requests name, and with the attribute `start_costs`,
        the measured costs of its start.
    """
    # Only answers go to standard output: what libraries print there, to file descriptor 1,
    # is redirected to standard error, descriptor 2.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runner = make_runner(sys.argv[1])
    print(json.dumps(runner.start_costs), file=answers, flush=True)
    for line in sys.stdin:
        [(method, argument)] = json.loads(line).items()
        answer = getattr(runner, method)(argument)
        print(json.dumps(answer), file=answers, flush=True)
