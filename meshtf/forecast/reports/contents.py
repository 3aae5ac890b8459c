"""What the reports of a forecast say, as sections for the text and for the HTML page.

    for section in contents(forecast, totals(forecast), short_paths(forecast), [3]):
        print("\\n".join(section_lines(section, show)))

Shapes in tables are `PlacedTensor`s, which each report shows in its way. Labels of rows begin
with spaces where text has a margin.
"""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from meshtf.display import Entry, Section, Table
from meshtf.forecast.memory_advice import advice, verdict
from meshtf.forecast.report_data import (
    PHASES,
    ForecastData,
    LiveTensors,
    Pipeline,
    StepTime,
)
from meshtf.forecast.reports.modules import (
    DEFAULT_DEPTH,
    ModuleCosts,
    has_modules,
    module_costs,
)
from meshtf.forecast.reports.op_table import WIDTH
from meshtf.forecast.reports.totals import received_by_phase
from meshtf.forecast.reports.units import bytes_text, flops_text, seconds_text
from meshtf.forecast.reports.user_lines import (
    call_text,
    line_text,
    seconds_by_line,
)

MAX_STAGES = 16  # of a drawing of a pipeline
MAX_ROWS = 8  # of a list of lines
MAX_LIVE = 10  # rows of tensors that are live at the peak
MAX_MODULES = 24  # rows of modules
PLURALS: dict[str, str] = {
    "parameter": "parameters",
    "optimizer state": "optimizer state",
    "other variable": "other variables",
    "argument": "arguments",
    "gradient": "gradients",
    "activation": "activations",
    "temporary": "temporaries",
}
_GATHERED = "{times} x {dim} over {axis}, for {call}"
_REDUNDANT = "{call}: identical on {positions} devices"


def contents(
    forecast: ForecastData,
    sums: Mapping[str, Any],
    paths: Mapping[str, str],
    module_depths: Sequence[int],
) -> Iterator[Section]:
    """Yields the sections of a forecast that both reports have.

    Args:
      forecast: the forecast.
      sums: the result of `totals`.
      paths: the short paths of the user's files.
      module_depths: how many names of a module path make a row: a table for each number.
    """
    yield _costs(sums)
    if forecast.time is not None:
        yield _time(forecast, forecast.time, paths)
    yield _memory(forecast)
    if forecast.device_memory is not None:
        yield _device_memory(forecast)
    if forecast.live:
        yield _live_tensors(forecast, paths)
    if forecast.stages:
        yield _stages(forecast)
    for pipeline in forecast.pipelines:
        yield _pipeline(pipeline, paths)
    if module_depths and has_modules(forecast):
        yield _modules(forecast, module_depths, paths)
    if forecast.overlap:
        yield _list("overlap", "Communication beside computations.", forecast.overlap)
    if forecast.kernels:
        yield _list("kernels", "What computes attention.", forecast.kernels)
    if forecast.notes:
        yield _list("notes", "Legal, but probably not intended.", forecast.notes)
    if sums["gathers"]:
        title = "gathered dimensions"
        yield _by_line(title, _GATHERED, bytes_text, sums["gathers"], paths)
    if repeated := sums["repeated"]:
        yield _by_line("redundant FLOPs", _REDUNDANT, flops_text, repeated, paths)


def page_contents(
    forecast: ForecastData, sums: Mapping[str, Any], paths: Mapping[str, str]
) -> Iterator[Section]:
    """Yields the sections that only a page has; arguments as in `contents`."""
    if sums["lines"]:
        yield _by_line("bytes received", "{call}", bytes_text, sums["lines"], paths)
    if forecast.variables:
        yield _variables(forecast)


def head(forecast: ForecastData) -> Section:
    """Returns the name of the function, the mesh and the layouts."""
    layouts = {"layout": forecast.layout}
    if forecast.variable_layout != forecast.layout:
        layouts["variable_layout"] = forecast.variable_layout
    if forecast.optimizer_layout != forecast.variable_layout:
        layouts["optimizer_layout"] = forecast.optimizer_layout
    mesh = "; ".join(f"{axis}:{size}" for axis, size in forecast.axes)
    rows = [("mesh", mesh or "(one device)")]
    for name, rules in layouts.items():
        rows.append((name, rules or "(shards nothing)"))
    plural = "s" if forecast.positions != 1 else ""
    devices = f"{forecast.positions} device{plural}"
    title = f"{forecast.name} on {devices}, costs per device and call"
    tables = (Table((title,), (), "{}"), Table((), rows, "  {:<18}{}"))
    return Section("", "", tables)


def error_title(forecast: ForecastData, paths: Mapping[str, str]) -> str:
    """Returns after which op an error ended the recording."""
    last_op_text = "before the first op"
    if forecast.ops:
        op = forecast.ops[-1]
        last_op_text = f"after op {op.index}, {call_text(vars(op), paths)}"
    return f"the plan ends here, {last_op_text}:"


def _costs(sums: Mapping[str, Any]) -> Section:
    """Returns FLOPs and bytes received, with a column for each phase."""
    columns = (*PHASES, "all")

    def row(
        label: str, amounts: Mapping[str, Any], to_text: Callable[[float], str]
    ) -> tuple[str, ...]:
        return label, *(_or_dash(to_text(amounts[column])) for column in columns)

    rows = [
        row("FLOPs", sums["flops"], flops_text),
        row("  redundant FLOPs", sums["repeated_flops"], flops_text),
        row("bytes received per device", received_by_phase(sums), bytes_text),
    ]
    for collective in sums["collectives"]:
        # collective[phase] are its bytes in a phase, beside "times", "kind" and "axis".
        label = f"  {collective['times']} x {collective['kind']} {collective['axis']}"
        rows.append(row(label, collective, bytes_text))
    return Section(
        "Costs",
        "For one device and one call. Redundant FLOPs are computed identically by "
        "several devices.",
        (Table(("", *columns), rows, "  {:<32}" + "{:>14}" * len(columns)),),
    )


def _time(forecast: ForecastData, time: StepTime, paths: Mapping[str, str]) -> Section:
    """Returns the predicted time of a step: by kind of work, and the slowest lines."""
    uncertain = ""
    if time.uncertainty > 0.01:
        uncertain = f" +- {time.uncertainty:.0%}"
    headline = (
        f"{seconds_text(time.seconds)}{uncertain}, MFU {time.mfu:.1%}, "
        f"{time.peak_share:.1%} of peak FLOPs"
    )
    columns = (f"time on {time.hardware}", headline)
    tables = [Table(columns, _time_rows(time), "  {:<32}{:>10}")]
    if time.source:
        source = _wrapped(f"    rates of matmuls: {time.source}")
        tables.append(Table((source,), (), "{}"))
    slowest = _slowest_lines(forecast, paths)
    tables.append(Table(("the slowest lines", ""), slowest, "    {:>12}  {}"))
    return Section("Time of a step", "As predicted for one device.", tuple(tables))


def _time_rows(time: StepTime) -> list[tuple[str, str]]:
    """Returns rows (label, seconds or share): what a device does in a step, one kind a row."""
    rows = [
        ("  matmuls", seconds_text(time.matmuls)),
        ("  other ops", seconds_text(time.other_ops)),
    ]
    for axes, seconds in time.collectives:
        rows.append((f"  collectives {axes}", seconds_text(seconds)))
    if time.collectives:
        rows.append(("  waiting for collectives", seconds_text(time.exposed)))
    if time.bubble:
        rows.append(("  idle in the pipeline", f"{time.bubble:.1%}"))
    return rows


def _slowest_lines(
    forecast: ForecastData, paths: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Returns rows (seconds, line): the lines of the user's program whose ops and collectives
    take the most time of a device.
    """
    sums = seconds_by_line(forecast, paths)
    slowest = sorted(sums, key=sums.__getitem__, reverse=True)[:MAX_ROWS]
    return [(seconds_text(sums[line]), line) for line in slowest if sums[line]]


def _memory(forecast: ForecastData) -> Section:
    """Returns the bytes of each kind."""
    sizes = vars(forecast.memory)
    rows = []
    for name, size in sizes.items():
        rows.append((f"  {name.replace('_', ' ')}", bytes_text(size)))
    largest = max(sizes.values()) or 1  # not 0: sizes are divided by it
    bars = [size / largest for size in sizes.values()]
    return Section(
        "Memory",
        "On one device. Each row is the peak of its kind; they are not reached at the "
        "same time. The last row is the peak of all live bytes.",
        (Table(("memory", ""), rows, "  {:<20}{:>12}", bars=bars),),
    )


def _device_memory(forecast: ForecastData) -> Section:
    """Returns whether the peak fits on a device, and advice if it does not."""
    rows = []
    if forecast.fits is False:  # None: the memory of a device is not known
        rows = [(_wrapped(f"    - {line}."),) for line in advice(forecast)]
    table = Table((f"  {verdict(forecast)}",), rows, "{}")
    note = (
        "Whether the peak fits on a device, and what would save memory if it does not."
    )
    return Section("Memory of a device", note, (table,))


def _live_tensors(forecast: ForecastData, paths: Mapping[str, str]) -> Section:
    """Returns what is live at the peak of memory: bytes by kind, and the largest tensors."""
    summary = _wrapped(
        f"  at the peak of {bytes_text(forecast.memory.peak)}, under the "
        f"{forecast.runtime} runtime: {_sums_by_kind(forecast)}",
        indent="    ",
    )
    rows = [_live_row(live, paths) for live in forecast.live]
    template = "    {:>10}  {}\n" + " " * 16 + "{}"
    return Section(
        "Largest tensors at the peak of memory",
        "What is live at the peak, equal tensors in one row. Activations are kept for "
        "the backward pass; temporaries are all other computed tensors.",
        (Table((summary,), (), "{}"), Table((), rows, template, MAX_LIVE)),
    )


def _sums_by_kind(forecast: ForecastData) -> str:
    """Returns the bytes of each kind of live tensors: "activations 3 GiB, parameters ..."."""
    sums: dict[str, float] = collections.defaultdict(float)
    for live in forecast.live:
        sums[live.kind] += live.total
    largest_first = sorted(sums, key=sums.__getitem__, reverse=True)
    return ", ".join(
        f"{PLURALS[kind]} {bytes_text(sums[kind])}"
        for kind in largest_first
        if sums[kind]
    )


def _live_row(live: LiveTensors, paths: Mapping[str, str]) -> tuple[Entry, ...]:
    """Returns the bytes of equal tensors, their kind and shape, and the op, the module and
    the line that compute them.
    """
    kind = f"{live.count} x {live.kind}" if live.count > 1 else live.kind
    label: Entry = kind
    # Tuples of small tensors, such as statistics, have no type of their own.
    if live.tensor.dtype:
        label = (f"{kind}  ", live.tensor, f" {live.tensor.dtype}")
    title = "" if live.title in ("variable", "argument") else live.title
    line = line_text(vars(live), paths)
    origin = [text for text in (title, live.path, line) if text]
    return bytes_text(live.total), label, ", ".join(origin)


def _stages(forecast: ForecastData) -> Section:
    """Returns FLOPs and memory of each pipeline stage."""
    columns = ("stages", "FLOPs", "parameters", "activations", "peak")
    rows = []
    for i, stage in enumerate(forecast.stages):
        sizes = (stage.parameters, stage.activations, stage.peak)
        rows.append((f"  {i}", flops_text(stage.flops), *map(bytes_text, sizes)))
    table = Table(columns, rows, "  {:<18}" + "{:>14}" * 4)
    return Section("Stages", "Of one device at each pipeline stage.", (table,))


def _pipeline(pipeline: Pipeline, paths: Mapping[str, str]) -> Section:
    """Returns what the stages of a pipeline compute in each tick."""
    repeats = f"{pipeline.repeats} x " if pipeline.repeats > 1 else ""
    columns = (
        f"pipeline over {'+'.join(pipeline.axes)}",
        f"{pipeline.stages} stages x {repeats}{pipeline.layers} {pipeline.dim}, "
        f"{pipeline.microbatches} microbatches",
    )
    head = f"{pipeline.ticks} ticks, {pipeline.bubble:.1%} bubble"
    rows = [(head, call_text(vars(pipeline), paths))]
    is_small = pipeline.stages <= MAX_STAGES and pipeline.ticks <= WIDTH
    drawing = [(line,) for line in str(pipeline).splitlines()] if is_small else []
    tables = (
        Table(columns, rows, "  {:<32}{}"),
        Table((), drawing, "    {}"),
    )
    note = (
        "The microbatches that stages compute (#; with repeats their number), in the forward "
        "pass. The backward pass has as many ticks."
    )
    return Section("Pipeline", note, tables)


def _modules(
    forecast: ForecastData, depths: Sequence[int], paths: Mapping[str, str]
) -> Section:
    """Returns a table of costs by module path for each depth; pages show one of them unfolded."""
    shown_depth = min(DEFAULT_DEPTH, max(depths))
    tables = []
    for depth in depths:
        plural = "s" if depth > 1 else ""
        columns = (
            f"modules, {depth} name{plural} deep",
            "FLOPs",
            "received",
            "at the peak",
            "most FLOPs at",
        )
        rows = [_module_row(costs, paths) for costs in module_costs(forecast, depth)]
        template = "  {:<42}{:>13}{:>13}{:>13}  {}"
        folded = depth != shown_depth
        tables.append(Table(columns, rows, template, MAX_MODULES, folded))
    note = 'Sums by module path; "_*" stands for the indices of equal modules.'
    return Section("Modules", note, tuple(tables))


def _module_row(costs: ModuleCosts, paths: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the row of a module in the table of modules."""
    count = f" ({costs.count})" if costs.count > 1 else ""
    return (
        f"  {costs.path}{count}",
        _or_dash(flops_text(costs.flops)),
        _or_dash(bytes_text(costs.received)),
        _or_dash(bytes_text(costs.live)),
        line_text(vars(costs), paths),
    )


def _list(title: str, description: str, texts: Sequence[str]) -> Section:
    """Returns a section of texts, with what they are."""
    rows = [(f"    {_wrapped(text, width=WIDTH - 4)}",) for text in texts]
    table = Table((f"  {title}",), rows, "{}")
    return Section(title.capitalize(), description, (table,))


def _by_line(
    title: str,
    label: str,
    amount_text: Callable[[float], str],
    sums: Sequence[Mapping[str, Any]],
    paths: Mapping[str, str],
) -> Section:
    """Returns a section of amounts by the user's line.

    Args:
      title: the title.
      label: the format of a row's label, filled with the fields of the sum and "call".
      amount_text: returns the text of bytes or FLOPs.
      sums: a list of the result of `totals`.
      paths: the short paths of the user's files.
    """
    rows = []
    for line in sums:
        text = label.format(call=call_text(line, paths), **line)
        rows.append((amount_text(line["all"]), text))
    table = Table((title, ""), rows, "  {:>12}  {}", MAX_ROWS)
    note = "By the line of the program that calls the ops; the largest first."
    return Section(title[0].upper() + title[1:], note, (table,))


def _variables(forecast: ForecastData) -> Section:
    """Returns the variables of the program."""
    rows = []
    for variable in forecast.variables:
        tensor = variable.tensor
        size = bytes_text(tensor.bytes)
        rows.append((variable.name, (tensor,), size, variable.role))
    columns = (f"{len(rows):,} variables", "shape", "bytes", "role")
    table = Table(columns, rows, "{} {} {} {}", folded=True)
    return Section("Variables", "With the bytes of one shard.", (table,))


def _or_dash(amount: str) -> str:
    """Returns the text of an amount, "-" for nothing."""
    return "-" if amount == "0" else amount


def _wrapped(text: str, indent: str = " " * 6, width: int = WIDTH) -> str:
    """Returns a long line as several lines, with an indent from the second line on."""
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)
