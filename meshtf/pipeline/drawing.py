"""Drawings of pipelines: time lines and splits, as text for a terminal and as SVG.

>>> from meshtf.pipeline import gpipe, simulate
>>> print(timeline_text(simulate(gpipe(stages=2, microbatches=2)), width=45))
stage 0  F0--F1--            B1======B0======
stage 1      F0--F1--B1======B0======
time 9 units of cost; idle 33.3 %; 1.33 times as fast as one stage; holds at most 2, 2

Several time lines in one picture have the same scale, so that predicted and measured
times can be compared. A span is the time in which a stage works on a task, the forward or
backward pass of one microbatch through one chunk of layers:

    timeline_svg("GPipe", {"predicted": simulate(schedule, costs), "measured": measured})
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from meshtf.display import text_table
from meshtf.display.svg import MARGIN, document, text
from meshtf.forecast.reports.units import bytes_text, flops_text, seconds_text
from meshtf.names.arguments import (
    as_int,
    as_mapping,
    as_sequence,
    as_text,
    check_ints,
    check_record,
)
from meshtf.pipeline.partition import Layer
from meshtf.pipeline.simulator import Span, Timeline

# By kind of span: the character that fills a span of text, and the CSS class of its colour.
FILL_CHARACTERS = {"forward": "-", "recompute": "~", "backward": "="}
COLOUR_CLASSES = {"forward": "p0", "recompute": "p3", "backward": "p1"}
UNITS = "units of cost"  # the unit of times, where it is not known
# The sizes of pictures, in pixels.
WIDTH = 1000
BARS_LEFT = 96  # the x at which bars start
PARAMETERS_RIGHT = 810  # the x at which the column of parameters ends
RIGHT = WIDTH - MARGIN  # the x at which time lines and the last column end
LONGEST_BAR = 420  # the width of the bar of the chunk that costs most
ROW_HEIGHT = 28  # the distance from one row to the next
BAR_HEIGHT = ROW_HEIGHT - 4
BASELINE = 16  # the distance from the top of a row to the baseline of its text
TITLE_HEIGHT = 60  # the height of the title
NAME_HEIGHT = 26  # the height of the name above a time line
SUMMARY_HEIGHT = 34  # the height of the summary below a time line, with space after it
# The length of the longest bar in `split_text`, in characters.
LONGEST_TEXT_BAR = 20
STYLE = """\
    .idle { fill: #7b8794; fill-opacity: .12 } .bar { stroke-width: .6 }
    .inside { fill: #ffffff; font-size: 11px }
"""


def timeline_text(timeline: Timeline, width: int = 100, unit: str = UNITS) -> str:
    """Returns a time line as text, a line for each stage. F3 is the forward pass of
    microbatch 3, B3 its backward pass, R3 the recomputation before that.

    A task that is too short for the index of its microbatch has only its letter. The last
    line has the time of the batch, the idle fraction of all stages, and for each stage the
    most microbatches whose activations it stores at once.

    Args:
      timeline: the time line.
      width: the width of the text, in characters.
      unit: the unit of times: "FLOP", "s", or any other text.
    """
    check_record(Timeline, timeline=timeline)
    check_ints(width=width)
    unit = as_text("unit", unit)
    heads = [f"stage {stage}  " for stage in range(timeline.stages)]
    head_width = len(heads[-1])
    scale = (width - head_width) / timeline.time
    lines = [head.ljust(head_width) for head in heads]
    for span in _in_time_order(timeline):
        stage = span.task.stage
        start = round((span.start - timeline.start) * scale)
        end = round((span.end - timeline.start) * scale)
        line = lines[stage].ljust(head_width + start)
        lines[stage] = line + _label(span, end - start)
    lines.append(_summary(timeline, unit))
    return "\n".join(lines)


def _in_time_order(timeline: Timeline) -> list[Span]:
    """Returns the spans, sorted by their start and end."""
    return sorted(timeline.spans, key=lambda span: (span.start, span.end))


def _label(span: Span, width: int) -> str:
    """Returns the text of a span, filled or truncated to `width` characters."""
    letter = span.kind[0].upper()
    label = letter + span.task.label[1:]
    if len(label) > width:
        label = letter
    filled = label.ljust(width, FILL_CHARACTERS[span.kind])
    return filled[:width]


def _summary(timeline: Timeline, unit: str = UNITS) -> str:
    """Returns the last line of a drawing of a time line."""
    peaks = ", ".join(f"{peak:g}" for peak in timeline.peak_activations())
    return (
        f"time {_time_text(float(timeline.time), unit)}; idle {_percent(timeline.bubble)}; "
        f"{float(timeline.speed_up):.2f} times as fast as one stage; holds at most "
        f"{peaks}"
    )


def _time_text(time: float, unit: str) -> str:
    """Returns a time as text with its unit, see `timeline_text`."""
    if unit == "FLOP":
        return flops_text(time)
    if unit == "s":
        return seconds_text(time)
    return f"{time:.6g} {unit}"


def _percent(fraction: float) -> str:
    """Returns a fraction as text, such as "33.3 %"."""
    return f"{100 * float(fraction):.1f} %"


def timeline_svg(title: str, timelines: Mapping[str, Timeline]) -> str:
    """Returns an SVG document of time lines, one below the other, each with its name.

    Args:
      title: the title of the picture.
      timelines: {name: time line}.
    """
    title = as_text("title", title)
    timelines = as_mapping("timelines", timelines, "timelines by name")
    for timeline in timelines.values():
        check_record(Timeline, timelines=timeline)
    longest = max(timeline.time for timeline in timelines.values())
    scale = (RIGHT - BARS_LEFT) / longest
    body = []
    spans: list[Span] = []
    y = TITLE_HEIGHT
    for name, timeline in timelines.items():
        body.append(text(MARGIN, y + 14, kind="name", words=name))
        y += NAME_HEIGHT
        body.extend(_lanes(timeline, y, scale))
        y += ROW_HEIGHT * timeline.stages + SUMMARY_HEIGHT
        spans.extend(timeline.spans)
    body.extend(_legend(y + 8, spans))
    return document(title, WIDTH, height=y + 28, body=body, light=STYLE)


def _lanes(timeline: Timeline, y: float, scale: float) -> Iterator[str]:
    """Yields the elements of a time line whose first lane is at height `y`: a lane of bars
    for each stage, and a summary below. `scale` is the number of pixels for a unit of time.
    """
    total_width = float(timeline.time) * scale
    for stage in range(timeline.stages):
        top = y + ROW_HEIGHT * stage
        yield text(MARGIN, top + BASELINE, kind="code", words=f"stage {stage}")
        yield _rect("idle", BARS_LEFT, top, width=total_width, height=BAR_HEIGHT)
    last_chunk = max(span.task.chunk for span in timeline.spans)
    for span in _in_time_order(timeline):
        task = span.task
        x = BARS_LEFT + (span.start - timeline.start) * scale
        width = (span.end - span.start) * scale
        top = y + ROW_HEIGHT * task.stage
        # The later chunks of a stage are fainter, down to 0.55.
        opacity = 1.0
        if last_chunk:
            opacity -= 0.45 * task.chunk / last_chunk
        style = f"bar {COLOUR_CLASSES[span.kind]}"
        yield _rect(style, x, top, width=width, height=BAR_HEIGHT, opacity=opacity)
        label = str(task.microbatch)
        label_width = 7 * len(label) + 3
        if width > label_width:
            middle = round(x + width / 2, 1)
            yield text(
                middle, top + BASELINE, kind="inside", words=label, anchor="middle"
            )
    bottom = y + ROW_HEIGHT * timeline.stages
    yield text(BARS_LEFT, bottom + 13, kind="note", words=_summary(timeline))


def _rect(
    style: str, x: float, y: float, width: float, height: float, opacity: float = 1
) -> str:
    """Returns a rectangle as SVG; `style` are its CSS classes, and (x, y) is its upper left
    corner.
    """
    if opacity == 1:
        opacity_attribute = ""
    else:
        opacity_attribute = f' fill-opacity="{opacity:.2f}"'
    return (
        f'  <rect class="{style}" x="{float(x):.1f}" y="{float(y):g}" '
        f'width="{float(width):.1f}" '
        f'height="{height:g}"{opacity_attribute}/>'
    )


def _legend(y: float, spans: Sequence[Span]) -> Iterator[str]:
    """Yields the colours of the kinds of spans, and a note on the numbers in bars."""
    x = BARS_LEFT
    kinds = {span.kind for span in spans}
    for kind in COLOUR_CLASSES:
        if kind not in kinds:
            continue
        yield _rect(f"bar {COLOUR_CLASSES[kind]}", x, y - 11, width=14, height=14)
        yield text(x + 20, y, kind="note", words=kind)
        x += 110
    chunks = ""
    if any(span.task.chunk for span in spans):
        chunks = "; a stage's later chunks are fainter"
    yield text(x, y, kind="note", words=f"Numbers are microbatches{chunks}.")


class _Chunk(NamedTuple):
    """The layers of a chunk, and the fraction of the cost of all layers that they have."""

    layers: Sequence[Layer]
    cost_fraction: float

    @property
    def cost(self) -> float:
        """The total cost of the layers."""
        return sum(layer.cost for layer in self.layers)

    @property
    def names(self) -> str:
        """The names of the first and the last layer."""
        first_name = self.layers[0].name
        last_name = self.layers[-1].name
        if len(self.layers) == 1:
            return first_name
        return f"{first_name} .. {last_name}"


def split_text(layers: Sequence[Layer], sizes: Sequence[int]) -> str:
    """Returns a split as a table: for each chunk its layers, their fraction of the total
    cost, their parameters, and the bytes of their activations.

    Args:
      layers: the layers of the model, in order.
      sizes: the number of layers of each chunk.
    """
    layers, sizes = _as_split(layers, sizes)
    chunks = [*_chunks(layers, sizes)]
    # 1 if all layers cost 0: then all bars are empty.
    largest_fraction = max(chunk.cost_fraction for chunk in chunks) or 1
    columns = ("chunk", "", "layers", "cost", "", "parameters", "activations")
    rows = []
    for i, chunk in enumerate(chunks):
        bar_length = round(LONGEST_TEXT_BAR * chunk.cost_fraction / largest_fraction)
        row = [
            str(i),
            str(len(chunk.layers)),
            chunk.names,
            _percent(chunk.cost_fraction),
            "#" * bar_length,
            *_memory_texts(chunk.layers),
        ]
        rows.append(row)
    rows.append(["all", str(len(layers)), "", "", "", *_memory_texts(layers)])
    return text_table(columns, rows, align="<><><>>")


def _as_split(layers: Any, sizes: Any) -> tuple[Sequence[Layer], Sequence[int]]:
    """Returns the layers, and the number of layers of each chunk. Raises ArgumentError."""
    layers = as_sequence("layers", layers, "a list of layers")
    for layer in layers:
        check_record(Layer, layers=layer)
    sizes = as_sequence("sizes", sizes, "numbers of layers")
    return layers, [as_int("sizes", size) for size in sizes]


def _chunks(layers: Sequence[Layer], sizes: Sequence[int]) -> Iterator[_Chunk]:
    """Yields the chunks of a split."""
    total = sum(layer.cost for layer in layers) or 1
    # Chunk i has the layers [borders[i], borders[i + 1]).
    borders = [0, *itertools.accumulate(sizes)]
    for start, end in itertools.pairwise(borders):
        chunk_layers = layers[start:end]
        cost = sum(layer.cost for layer in chunk_layers)
        yield _Chunk(chunk_layers, cost / total)


def _memory_texts(layers: Sequence[Layer]) -> tuple[str, str]:
    """Returns the parameters and the activations of layers, as text."""
    parameters = sum(layer.parameters for layer in layers)
    activations = sum(layer.activations for layer in layers)
    return f"{parameters:,}", bytes_text(activations)


def split_svg(title: str, layers: Sequence[Layer], sizes: Sequence[int]) -> str:
    """Returns a split as an SVG document: a bar for each chunk, divided into its layers;
    the length is proportional to the cost.

    Args:
      title: the title of the picture.
      layers: the layers of the model, in order.
      sizes: the number of layers of each chunk.
    """
    title = as_text("title", title)
    layers, sizes = _as_split(layers, sizes)
    chunks = [*_chunks(layers, sizes)]
    largest_cost = max(chunk.cost for chunk in chunks) or 1
    scale = LONGEST_BAR / largest_cost
    y = TITLE_HEIGHT + 8
    body = [
        text(BARS_LEFT, y, kind="note", words="cost, layer by layer"),
        text(PARAMETERS_RIGHT, y, kind="note", words="parameters", anchor="end"),
        text(RIGHT, y, kind="note", words="activations", anchor="end"),
    ]
    y = TITLE_HEIGHT + 18
    for i, chunk in enumerate(chunks):
        body.append(text(MARGIN, y + BASELINE, kind="code", words=f"chunk {i}"))
        body.extend(_chunk_bar(chunk, y, f"bar p{i % 4}", scale))
        y += ROW_HEIGHT
    return document(title, WIDTH, height=y + 16, body=body, light=STYLE)


def _chunk_bar(chunk: _Chunk, y: float, style: str, scale: float) -> Iterator[str]:
    """Yields the layers of a chunk side by side, and to their right the fraction of the
    cost, the number of layers, the parameters and the activations of the chunk.
    """
    x = float(BARS_LEFT)
    for layer in chunk.layers:
        width = layer.cost * scale
        yield _rect(style, x, y, width=width, height=BAR_HEIGHT)
        x += width
    num_layers = len(chunk.layers)
    count = f"{num_layers} layer{'s' * (num_layers > 1)}"
    label = f"{_percent(chunk.cost_fraction)}, {count}"
    parameters, activations = _memory_texts(chunk.layers)
    baseline = y + BASELINE
    yield text(round(x + 8, 1), baseline, kind="note", words=label)
    yield text(PARAMETERS_RIGHT, baseline, kind="code", words=parameters, anchor="end")
    yield text(RIGHT, baseline, kind="code", words=activations, anchor="end")
