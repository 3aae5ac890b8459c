"""The predicted step as a trace: a JSON file that Perfetto (ui.perfetto.dev) and
chrome://tracing draw. The format is Chrome's Trace Event Format.

Each pipeline stage has two tracks, one for what its devices compute and one for their
collectives. All devices of a stage do the same. A loop is drawn with its first iteration; a
block stands for the iterations after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from meshtf.forecast.report_data import TimelineSpan

_MICROSECONDS = 1e6  # the unit of a trace


def trace_json(name: str, spans: Sequence[TimelineSpan]) -> str:
    """Returns the trace of a function; `spans` are its steps, with their times."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": name}}
    ]
    stages = sorted({span.stage for span in spans})
    for stage in stages:
        devices = f"stage {stage}" if len(stages) > 1 else "device"
        for thread, unit in ((2 * stage, "ops"), (2 * stage + 1, "collectives")):
            events.append(
                {
                    "ph": "M",
                    "pid": 0,
                    "tid": thread,
                    "name": "thread_name",
                    "args": {"name": f"{devices}: {unit}"},
                }
            )
    events.extend(map(_event, spans))
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _event(span: TimelineSpan) -> dict[str, Any]:
    """Returns the event of a span."""
    is_collective = span.kind == "collective"
    title = span.title
    if span.kind == "loop":
        title = f"{span.title}, {span.runs:,} runs"
    return {
        "ph": "X",
        "pid": 0,
        "tid": 2 * span.stage + is_collective,
        "ts": span.start * _MICROSECONDS,
        "dur": (span.end - span.start) * _MICROSECONDS,
        "name": title,
        "cat": span.kind,
        "args": {"module": span.path, "line": span.line},
    }
