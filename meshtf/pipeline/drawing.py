"""Pipelines on paper: time lines and splits, as text for a terminal and as SVG.

>>> from meshtf.pipeline import gpipe, simulate
>>> print(timeline_text(simulate(gpipe(stages=2, microbatches=2)), width=45))
stage 0  F0--F1--            B1======B0======
stage 1      F0--F1--B1======B0======
time 9; idle 33.3 %; 1.33 times as fast as one stage; holds at most 2, 2

In a picture of several time lines all have one scale, so that predicted and measured
times can be compared:

    timeline_svg("GPipe", {"predicted": simulate(schedule, costs), "measured": measured})
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshtf.forecast.svg import MARGIN, document, text
from meshtf.forecast.text_report import bytes_text
from meshtf.names.arguments import (
    as_int,
    as_mapping,
    as_sequence,
    as_text,
    check_record,
)
from meshtf.pipeline.partition import Layer
from meshtf.pipeline.simulator import Span, Timeline

FILL = {"forward": "-", "recompute": "~", "backward": "="}
COLOUR = {"forward": "p0", "recompute": "p3", "backward": "p1"}
# Of pictures, in pixels.
LEFT = 96
MIDDLE = 810
WIDTH = 1000
ROW = 28
HEAD = 60

BAR = 20  # characters
LIGHT = """\
    .idle { fill: #7b8794; fill-opacity: .12 } .bar { stroke-width: .6 }
    .inside { fill: #ffffff; font-size: 11px }
"""


def timeline_text(timeline: Timeline, width: int = 100) -> str:
    """Returns a time line as text: F3 is microbatch 3's forward pass, B backward, R
    recompute.

    A task that is too short for its microbatch's index has only its letter.
    """
    check_record(Timeline, timeline=timeline)
    as_int("width", width)
    heads = [f"stage {stage}  " for stage in range(timeline.stages)]
    scale = (width - len(heads[-1])) / timeline.time
    rows = [[head.ljust(len(heads[-1]))] for head in heads]
    ends = [0] * timeline.stages
    for span in _in_time(timeline):
        stage = span.task.stage
        start = round((span.start - timeline.start) * scale)
        end = round((span.end - timeline.start) * scale)
        rows[stage].append(" " * (start - ends[stage]))
        rows[stage].append(_label(span, end - start))
        ends[stage] = end
    return "\n".join([*("".join(row) for row in rows), _summary(timeline)])


def _in_time(timeline: Timeline) -> list[Span]:
    return sorted(timeline.spans, key=lambda span: (span.start, span.end))


def _label(span: Span, width: int) -> str:
    """Returns the text of a span, filled or truncated to `width` characters."""
    letter = span.what[0].upper()
    label = letter + span.task.label[1:]
    if len(label) > width:
        label = letter
    return label.ljust(width, FILL[span.what])[:width]


def _summary(timeline: Timeline) -> str:
    peaks = ", ".join(f"{peak:g}" for peak in timeline.held())
    return (
        f"time {float(timeline.time):.6g}; idle {_percent(timeline.bubble)}; "
        f"{float(timeline.speed_up):.2f} times as fast as one stage; holds at most "
        f"{peaks}"
    )


def _percent(share: float) -> str:
    return f"{100 * float(share):.1f} %"


def timeline_svg(title: str, timelines: Mapping[str, Timeline]) -> str:
    """Returns time lines by their names, one below the other, as an SVG document."""
    as_text("title", title)
    for line in as_mapping("timelines", timelines, "timelines by name").values():
        check_record(Timeline, timelines=line)
    longest = max(line.time for line in timelines.values())
    scale = (WIDTH - LEFT - MARGIN) / longest
    body = []
    y = HEAD
    for name, line in timelines.items():
        body.append(text(MARGIN, y + 14, "name", name))
        body.extend(_lanes(line, y + 26, scale))
        y += 26 + ROW * line.stages + 34
    spans = [span for line in timelines.values() for span in line.spans]
    body.extend(_legend(y + 8, spans))
    return document(title, WIDTH, y + 28, body, LIGHT)


def _lanes(line: Timeline, y: float, scale: float) -> Iterator[str]:
    """Yields a lane for each stage, and the summary of the time line."""
    total_width = float(line.time) * scale
    for stage in range(line.stages):
        top = y + ROW * stage
        yield text(MARGIN, top + 16, "code", f"stage {stage}")
        yield _rect("idle", LEFT, top, total_width, ROW - 4)
    chunks = max(span.task.chunk for span in line.spans)
    for span in _in_time(line):
        x = LEFT + (span.start - line.start) * scale
        width = (span.end - span.start) * scale
        top = y + ROW * span.task.stage
        opacity = 1 - 0.45 * span.task.chunk / max(1, chunks)
        yield _rect(f"bar {COLOUR[span.what]}", x, top, width, ROW - 4, opacity)
        label = str(span.task.microbatch)
        if width > 7 * len(label) + 3:
            yield text(round(x + width / 2, 1), top + 16, "inside", label, "middle")
    yield text(LEFT, y + ROW * line.stages + 13, "note", _summary(line))


def _rect(
    kind: str, x: float, y: float, width: float, height: float, opacity: float = 1
) -> str:
    if opacity == 1:
        opacity_attribute = ""
    else:
        opacity_attribute = f' fill-opacity="{opacity:.2f}"'
    return (
        f'  <rect class="{kind}" x="{float(x):.1f}" y="{float(y):g}" '
        f'width="{float(width):.1f}" '
        f'height="{height:g}"{opacity_attribute}/>'
    )


def _legend(y: float, spans: Sequence[Span]) -> Iterator[str]:
    x = LEFT
    kinds = {span.what for span in spans}
    for kind in COLOUR:
        if kind not in kinds:
            continue
        yield _rect(f"bar {COLOUR[kind]}", x, y - 11, 14, 14)
        yield text(x + 20, y, "note", kind)
        x += 110
    chunks = ""
    if any(span.task.chunk for span in spans):
        chunks = "; a stage's later chunks are fainter"
    yield text(x, y, "note", f"Numbers are microbatches{chunks}.")


def split_text(layers: Sequence[Layer], sizes: Sequence[int]) -> str:
    """Returns a split as a table: the layers of each chunk, their share of the cost,
    their parameters, and the bytes of their activations.
    """
    layers, sizes = _as_split(layers, sizes)
    chunks = [*_chunks(layers, sizes)]
    largest_share = max(share for _, share in chunks) or 1
    rows = [["chunk", "", "layers", "cost", "", "parameters", "activations"]]
    for i, (chunk, share) in enumerate(chunks):
        rows.append(
            [
                str(i),
                str(len(chunk)),
                _names(chunk),
                _percent(share),
                "#" * round(BAR * share / largest_share),
                *_memory(chunk),
            ]
        )
    rows.append(["all", str(len(layers)), "", "", "", *_memory(layers)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(_aligned(row, widths) for row in rows)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Returns a row of the table: names and bars to the left, numbers to the right."""
    left_columns = {0, 2, 4}
    return "  ".join(
        entry.ljust(width) if i in left_columns else entry.rjust(width)
        for i, (entry, width) in enumerate(zip(row, widths))
    )


def _as_split(layers: Any, sizes: Any) -> tuple[Sequence[Layer], Sequence[int]]:
    """Returns the layers, and the number of layers of each chunk. Raises ArgumentError."""
    layers = as_sequence("layers", layers, "a list of layers")
    for layer in layers:
        check_record(Layer, layers=layer)
    sizes = as_sequence("sizes", sizes, "numbers of layers")
    return layers, [as_int("sizes", size) for size in sizes]


def _chunks(
    layers: Sequence[Layer], sizes: Sequence[int]
) -> Iterator[tuple[Sequence[Layer], float]]:
    """Yields the layers of each chunk and their share of the cost."""
    total = sum(layer.cost for layer in layers) or 1
    for start, end in itertools.pairwise([0, *itertools.accumulate(sizes)]):
        chunk = layers[start:end]
        yield chunk, sum(layer.cost for layer in chunk) / total


def _names(chunk: Sequence[Layer]) -> str:
    """Returns the names of the first and the last layer of a chunk."""
    if len(chunk) == 1:
        return chunk[0].name
    return f"{chunk[0].name} .. {chunk[-1].name}"


def _memory(layers: Sequence[Layer]) -> tuple[str, str]:
    """Returns the parameters and the activations of layers, as text."""
    return (
        f"{sum(layer.parameters for layer in layers):,}",
        bytes_text(sum(layer.activations for layer in layers)),
    )


def split_svg(title: str, layers: Sequence[Layer], sizes: Sequence[int]) -> str:
    """Returns a split as an SVG document: a bar of its layers for each chunk, with a
    length proportional to its cost.
    """
    as_text("title", title)
    layers, sizes = _as_split(layers, sizes)
    chunks = [*_chunks(layers, sizes)]
    largest_cost = max(sum(layer.cost for layer in chunk) for chunk, _ in chunks)
    scale = 420 / (largest_cost or 1)
    top = HEAD + 18
    body = [
        text(x, HEAD + 8, "note", word, anchor)
        for x, word, anchor in (
            (LEFT, "cost, layer by layer", "start"),
            (MIDDLE, "parameters", "end"),
            (WIDTH - MARGIN, "activations", "end"),
        )
    ]
    for i, (chunk, share) in enumerate(chunks):
        y = top + ROW * i
        body.append(text(MARGIN, y + 16, "code", f"chunk {i}"))
        body.extend(_bar(chunk, share, y, f"bar p{i % 4}", scale))
    height = top + ROW * len(chunks) + 16
    return document(title, WIDTH, height, body, LIGHT)


def _bar(
    chunk: Sequence[Layer], share: float, y: float, kind: str, scale: float
) -> Iterator[str]:
    """Yields the layers of a chunk side by side, their sums to the right."""
    x = float(LEFT)
    for layer in chunk:
        yield _rect(kind, x, y, layer.cost * scale, ROW - 4)
        x += layer.cost * scale
    count = f"{len(chunk)} layer{'s' * (len(chunk) > 1)}"
    yield text(round(x + 8, 1), y + 16, "note", f"{_percent(share)}, {count}")
    parameters, activations = _memory(chunk)
    yield text(MIDDLE, y + 16, "code", parameters, "end")
    yield text(WIDTH - MARGIN, y + 16, "code", activations, "end")
