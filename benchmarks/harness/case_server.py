"""The worker's end of `benchmarks.harness.rounds`: one case, asked over standard input.

Example:

    serve(lambda text: Runner(Case.load(text)))      # text: what the process was started with
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def serve(make: Callable[[str], Any]) -> None:
    """Answers requests by a runner's methods until standard input ends; first by its
    `start`.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints goes to standard error
    runner = make(sys.argv[1])
    print(json.dumps(runner.start), file=answers, flush=True)
    for line in sys.stdin:
        ((request, argument),) = json.loads(line).items()
        print(json.dumps(getattr(runner, request)(argument)), file=answers, flush=True)
