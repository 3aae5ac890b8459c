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


def serve(make: Callable[[str], Any]) -> None:
    """Answers requests until standard input ends: first with `runner.start`, then with the
    results of the runner's methods.

    A request is a line of JSON, {"method": argument}; so is each answer.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints goes to standard error
    runner = make(sys.argv[1])
    print(json.dumps(runner.start), file=answers, flush=True)
    for line in sys.stdin:
        ((request, argument),) = json.loads(line).items()
        print(json.dumps(getattr(runner, request)(argument)), file=answers, flush=True)
