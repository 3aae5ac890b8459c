"""The ops of a forecast as rows, in the order in which they run.

    for row in op_rows(forecast, paths):
        row.kind, row.title, row.shapes, row.amount     # "op", "einsum", ...

Consecutive equal runs of ops, such as the layers of a deep model, are written once, between
a row "run" and a row "end".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from meshtf.display import Entry
from meshtf.forecast.report_data import (
    Collective,
    Computation,
    ForecastData,
    PlacedTensor,
    without_indices,
)
from meshtf.forecast.reports.totals import (
    Folded,
    fold,
    is_direct_call,
    op_key,
    redundant_flops,
)
from meshtf.forecast.reports.units import bytes_text, flops_text, seconds_text
from meshtf.forecast.reports.user_lines import line_text

MIN_SECONDS = 1e-10  # of what is written
RowKind: TypeAlias = Literal[
    "phase",  # before the first op of each phase, and before the results
    "module",  # before the first op of each module
    "call",  # before the first op of each line of the user: the line and what it calls
    "run",  # how often the rows up to "end" are repeated
    "end",
    "op",
    "collective",
]


class OpRow(NamedTuple):
    """A row of the op table.

    Attributes:
      kind: what the row is about.
      title: the phase, the module, the line, the name of the op, or the kind and axis of the
        collective.
      op_index: the index of the op.
      shapes: the outputs of the op; before and after the collective. Shapes are
        `PlacedTensor`s.
      amount: FLOPs, or bytes received.
      seconds: the time of one run; "" if it is not known.
      remarks: how often it runs, and how many devices compute the same.
    """

    kind: RowKind
    title: str = ""
    op_index: int = 0
    shapes: Entry = ""
    amount: str = ""
    seconds: str = ""
    remarks: tuple[str, ...] = ()


def op_rows(forecast: ForecastData, paths: Mapping[str, str]) -> Iterator[OpRow]:
    """Yields the rows of all ops, and of the reshards of the results.

    Args:
      forecast: the forecast.
      paths: the short paths of the user's files.
    """
    items = fold(list(map(op_key, forecast.ops)))
    yield from _Walk(forecast.ops, paths).rows_of(items)
    if forecast.results:
        yield OpRow("phase", "results")
        yield from map(_collective_row, forecast.results)


_NO_CALL = ("", "")  # no line of the user, no function


class _Walk:
    """Yields the rows of ops. Stores of the last op what a row before the next op tells if it
    changes: phase, module, and the user's line with the function that it calls.
    """

    def __init__(self, ops: Sequence[Computation], paths: Mapping[str, str]) -> None:
        self._ops = ops
        self._paths = paths
        self._phase = ""
        self._forget_place()

    def _forget_place(self) -> None:
        """Lets module and line be written again before the next op."""
        self._module = ""
        self._call = _NO_CALL

    def rows_of(self, items: Sequence[Folded]) -> Iterator[OpRow]:
        """Yields the rows of ops, given as indices and repeated runs."""
        for item in items:
            if isinstance(item, int):
                op = self._ops[item]
                yield from self._new_phase(op)
                yield from self._new_module(op)
                yield from self._new_call(op)
                yield _op_row(op)
                yield from map(_collective_row, op.collectives)
            else:
                times, body = item
                yield from self._run(times, body)

    def _run(self, times: int, body: Sequence[Folded]) -> Iterator[OpRow]:
        """Yields the rows of a run that is repeated `times` times."""
        ops = [self._ops[i] for i in _indices(body)]
        flops = sum(op.total for op in ops)
        received = sum(reshard.total for op in ops for reshard in op.collectives)
        yield from self._new_phase(ops[0])
        ops_text = "this op" if len(ops) == 1 else f"these {len(ops)} ops"
        costs = f"{flops_text(flops)} and {bytes_text(received)} received"
        yield OpRow("run", f"{times} times {ops_text}, each time {costs}")
        self._forget_place()
        yield from self.rows_of(body)
        self._forget_place()
        yield OpRow("end")

    def _new_phase(self, op: Computation) -> Iterator[OpRow]:
        """Yields the phase, if it changes."""
        if op.phase != self._phase:
            yield OpRow("phase", op.phase)
            self._phase = op.phase
            self._forget_place()

    def _new_module(self, op: Computation) -> Iterator[OpRow]:
        """Yields the module, if it changes."""
        module = without_indices(op.path)
        if module and module != self._module:
            yield OpRow("module", module)
        self._module = module

    def _new_call(self, op: Computation) -> Iterator[OpRow]:
        """Yields the user's line and the function that it calls, if they change.

        The function is left out if the user calls the op itself.
        """
        line = line_text(vars(op), self._paths)
        is_direct = is_direct_call(op)
        function = "" if is_direct else op.function
        last_line, last_function = self._call
        is_new_function = not is_direct and function != last_function
        if line != last_line or is_new_function:
            yield OpRow("call", f"{line} {function}" if line else function)
            self._call = line, function


def _op_row(op: Computation) -> OpRow:
    """Returns the row of an op."""
    remarks = _times_remark(op.times)
    if redundant_flops(op):
        remarks += (f"identical on {op.repeated}",)
    return OpRow(
        "op",
        op.title,
        op.index,
        shapes=_listed(op.outputs),
        amount=flops_text(op.flops),
        seconds=_seconds(op.seconds),
        remarks=remarks,
    )


def _collective_row(collective: Collective) -> OpRow:
    """Returns the row of a collective."""
    return OpRow(
        "collective",
        f"{collective.kind} {collective.axis}",
        shapes=(collective.tensor, " -> ", collective.after),
        amount=bytes_text(collective.bytes),
        seconds=_seconds(collective.seconds),
        remarks=_times_remark(collective.times),
    )


def _listed(tensors: Iterable[PlacedTensor]) -> Entry:
    """Returns tensors with commas between them."""
    items: list[object] = []
    for tensor in tensors:
        items += [", ", tensor]
    return tuple(items[1:])


def _seconds(seconds: float) -> str:
    """Returns the time of one run, "" if there is none."""
    return seconds_text(seconds) if seconds >= MIN_SECONDS else ""


def _times_remark(times: int) -> tuple[str, ...]:
    """Returns the remark about an op or collective that runs several times."""
    return (f"x {times}",) if times > 1 else ()


def _indices(items: Iterable[Folded]) -> Iterator[int]:
    """Yields the indices of ops; an op of a repeated run appears once for each time."""
    for item in items:
        if isinstance(item, int):
            yield item
        else:
            times, body = item
            for _ in range(times):
                yield from _indices(body)
