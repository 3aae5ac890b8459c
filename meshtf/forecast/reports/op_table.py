"""The op table of a forecast: every op with its outputs, FLOPs and reshards.

A shape shows which dimensions are sharded: in `[batch:64/data d_ff:2048/model] +pod`,
dimension batch of global size 64 is sharded along mesh axis `data`, and the tensor is a
partial sum along `pod`, not yet reduced. Consecutive equal runs of ops, such as the layers
of a deep model, are written once, with their count: `fold` returns the indices of ops, and
for a repeated run (times, items of one period).

    lines = list(op_lines(forecast))
"""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from meshtf.forecast.report_data import (
    Collective,
    Computation,
    ForecastData,
    PlacedTensor,
)
from meshtf.forecast.reports.totals import (
    Folded,
    fold,
    is_direct_call,
    op_key,
    redundant_flops,
)
from meshtf.forecast.reports.units import bytes_text, flops_text, seconds_text

WIDTH = 110
AMOUNT_WIDTH = 12  # of FLOPs and bytes
SECONDS_WIDTH = 10  # of the column of seconds, if the forecast has times
MIN_SECONDS = 1e-10  # of what is written
REMARK_WIDTH = 19  # "  identical on 2048"
SECONDS_LEGEND = "The last column is the predicted time of one run on one device."
LEGEND = """\
[batch:8/data] is sharded along axis data; +model: a partial sum along model (also max, min).
<- a reshard of an input, before the op runs; identical on 4: four devices compute the same."""


def op_lines(forecast: ForecastData) -> Iterator[str]:
    """Yields the lines of the op table."""
    if forecast.ops or forecast.results:
        yield "  ops"
        yield from textwrap.indent(LEGEND, "    ").split("\n")
        if forecast.time:
            yield f"    {SECONDS_LEGEND}"
    table = _OpTable(forecast)
    items = fold(list(map(op_key, forecast.ops)))
    indent = "    "
    yield from table.lines_of(items, indent)
    if forecast.results:
        yield f"{indent}results"
        for collective in forecast.results:
            yield from table.collective(collective, indent)


_NO_CALL = ("", "")  # no line of the user, no function


class _OpTable:
    """Writes the lines of the op table.

    A line with the phase comes before the first op of each phase, and a line with the
    user's line and function before the first op of each line, so both are stored from op
    to op.
    """

    def __init__(self, forecast: ForecastData) -> None:
        self._ops = forecast.ops
        self._paths = short_paths(forecast)
        self._axes = [axis for axis, _ in forecast.axes]
        self._phase = ""  # the phase of the last op
        self._call = _NO_CALL  # the user's line of the last op, and the called function
        longest_title = max((len(op.title) for op in self._ops), default=0)
        self._title_width = min(24, longest_title) + 2
        self._seconds_width = SECONDS_WIDTH if forecast.time else 0

    def lines_of(self, items: Sequence[Folded], indent: str) -> Iterator[str]:
        """Yields the lines of ops, given as indices and repeated runs."""
        for item in items:
            if isinstance(item, int):
                yield from self._op(item, indent)
            else:
                times, body = item
                yield from self._folded(times, body, indent)

    def _folded(self, times: int, body: Sequence[Folded], indent: str) -> Iterator[str]:
        """Yields the lines of a run that is repeated `times` times, within a margin."""
        first_op = self._ops[next(_indices(body))]
        yield from self._new_phase(first_op, indent)
        yield f"{indent}  {times} times {self._sums(body)}"
        # So that the user's line is written again within the margin, and after it.
        self._call = _NO_CALL
        yield from self.lines_of(body, indent + "  |")
        self._call = _NO_CALL

    def _sums(self, body: Sequence[Folded]) -> str:
        """Returns the number of ops of a run, their FLOPs and their bytes received."""
        count = 0
        flops = 0.0
        received = 0.0
        for i in _indices(body):
            op = self._ops[i]
            count += 1
            flops += op.total
            received += sum(collective.total for collective in op.collectives)
        ops_text = "this op" if count == 1 else f"these {count} ops"
        costs = f"{flops_text(flops)} and {bytes_text(received)} received"
        return f"{ops_text}, each time {costs}"

    def _op(self, index: int, indent: str) -> Iterator[str]:
        """Yields the lines of an op and of its collectives, and the lines before them."""
        op = self._ops[index]
        yield from self._new_phase(op, indent)
        yield from self._new_call(op, indent)
        shapes = ", ".join(shape_text(out, self._axes) for out in op.outputs)
        title = f"{indent}    {op.title:<{self._title_width}}"
        remark = _times_text(op.times)
        if redundant_flops(op):
            remark += f"  identical on {op.repeated}"
        yield from _wrapped(
            title,
            shapes,
            amounts=self._amounts(flops_text(op.flops), op.seconds),
            remark=remark,
        )
        for collective in op.collectives:
            yield from self.collective(collective, indent)

    def _amounts(self, amount: str, seconds: float) -> str:
        """Returns the columns on the right: an amount and, if there are times, seconds."""
        seconds_column = seconds_text(seconds) if seconds >= MIN_SECONDS else ""
        return f"{amount:>{AMOUNT_WIDTH}}{seconds_column:>{self._seconds_width}}"

    def _new_phase(self, op: Computation, indent: str) -> Iterator[str]:
        """Yields the phase, if it changes."""
        if op.phase != self._phase:
            yield indent + op.phase
            self._phase = op.phase
            self._call = _NO_CALL

    def _new_call(self, op: Computation, indent: str) -> Iterator[str]:
        """Yields the user's line and the function that it calls, if they change.

        The function is left out if the user calls the op itself.
        """
        line = f"{self._paths[op.file]}:{op.line}" if op.file else ""
        is_direct = is_direct_call(op)
        function = "" if is_direct else op.function
        last_line, last_function = self._call
        is_new_function = not is_direct and function != last_function
        if line != last_line or is_new_function:
            yield f"{indent}  {line} {function}" if line else f"{indent}  {function}"
            self._call = line, function

    def collective(self, collective: Collective, indent: str) -> Iterator[str]:
        """Yields the lines of one collective."""
        shapes = shape_text(collective.tensor, self._axes)
        # The result of an all_gather or all_reduce is clear from the input.
        if collective.kind not in ("all_gather", "all_reduce"):
            shapes += f" -> {shape_text(collective.after, self._axes)}"
        yield from _wrapped(
            f"{indent}      <- ",
            f"{collective.kind} {collective.axis}  {shapes}",
            amounts=self._amounts(bytes_text(collective.bytes), collective.seconds),
            remark=_times_text(collective.times),
        )


def count_ops(items: Iterable[Folded]) -> int:
    """Returns the number of ops; an op of a repeated run counts once for each time."""
    return sum(1 for _ in _indices(items))


def _times_text(times: int) -> str:
    """Returns the remark for an op or collective that runs several times."""
    return f"  x {times}" if times > 1 else ""


def _indices(items: Iterable[Folded]) -> Iterator[int]:
    """Yields the indices of ops; an op of a repeated run appears once for each time."""
    for item in items:
        if isinstance(item, int):
            yield item
        else:
            times, body = item
            for _ in range(times):
                yield from _indices(body)


def _wrapped(left: str, middle: str, amounts: str, remark: str = "") -> Iterator[str]:
    """Yields a line of the op table with columns and a remark.

    Args:
      left: the left column; its "|" signs are repeated on continued lines.
      middle: the middle column; long text continues on the next lines.
      amounts: the columns on the right.
      remark: the text after the columns.
    """
    width = max(24, WIDTH - len(left) - len(amounts) - REMARK_WIDTH)
    wrapped = textwrap.wrap(
        middle, width, break_long_words=False, break_on_hyphens=False
    )
    start, *continued = wrapped or [""]
    yield f"{left}{start:<{width}}{amounts}{remark}"
    margin = "".join("|" if character == "|" else " " for character in left)
    for line in continued:
        yield margin + line


def shape_text(tensor: PlacedTensor, axes: Iterable[str]) -> str:
    """Returns a shape and how it is sharded, such as "[batch:64/data d_ff:8] +model"."""
    axes = tuple(axes)
    dim_texts = {}
    for name, size in tensor.shape:
        sharding_axes = tensor.axes_of(name, axes)
        dim_texts[name] = "/".join((f"{name}:{size}", *sharding_axes))
    partial_text = ""
    signs = {"sum": "+", "max": "max ", "min": "min "}
    for axis, state in zip(axes, tensor.states):
        if state in signs and state not in dim_texts:
            partial_text += f" {signs[state]}{axis}"
    return f"[{' '.join(dim_texts.values())}]{partial_text}"


def short_paths(forecast: ForecastData) -> dict[str, str]:
    """Returns a short path for each of the user's files: the shortest end of the path that
    no other file has.
    """
    files = {op.file for op in forecast.ops if op.file}
    counts: collections.Counter[str] = collections.Counter()
    for file in files:
        counts.update(_path_ends(file))

    def shortest(file: str) -> str:
        *ends, full_path = _path_ends(file)
        return next((end for end in ends if counts[end] == 1), full_path)

    return {file: shortest(file) for file in sorted(files)}


def _path_ends(file: str) -> list[str]:
    """Returns ["c.py", "b/c.py", "a/b/c.py"] for "a/b/c.py"."""
    names = PurePath(file).parts
    return ["/".join(names[-k:]) for k in range(1, len(names) + 1)]
