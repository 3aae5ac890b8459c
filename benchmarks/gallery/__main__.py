"""The layouts of `configs/layouts/`, each as a picture with what it costs: writes
docs/reference/layouts.md.

    python -m benchmarks.gallery

All of it comes from the forecasts of the main job's training step, so no device is
needed and the same page comes out everywhere; tests/documentation/test_gallery.py holds the page to
it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import gin

from benchmarks.gallery.layout_svg import Row, picture
from meshtf.forecast import Forecast, PlacedTensor
from meshtf.forecast.reports.totals import totals
from meshtf.forecast.reports.units import bytes_text, flops_text
from transformer.cli import command_line
from transformer.training import training_run

ROOT = Path(__file__).resolve().parents[2]
PHASES = ("forward", "backward", "update", "all")


class Layout(NamedTuple):
    """What is said of a layout."""

    title: str
    use: str


LAYOUTS = {
    "data_parallel": Layout(
        "Data parallel",
        """\
Take it first, as long as model, gradients and optimizer state fit on one device. What is moved does
not grow with the batch, so larger batches hide it; memory is what ends it.""",
    ),
    "tensor_parallel": Layout(
        "Tensor parallel",
        """\
Take it where one layer is too large for a device, or the batch too small to be sharded, and keep
the axis within a host: what is moved are activations, twice a block forward and twice backward, and
it grows with the batch. An axis can be no longer than there are heads.""",
    ),
    "data_and_tensor": Layout(
        "Data and tensor parallel",
        """\
Take it for large models on many hosts: the model axis within a host (`Mesh.within_host`), the data
axis across. Each axis divides what the other one moves.""",
    ),
    "zero1": Layout(
        "ZeRO-1",
        """\
Take it in place of data parallelism wherever an optimizer keeps state, as Adam does twice for each
variable: the bytes are the same, and an all_reduce becomes its two halves, with the update between
them. Updates are no longer done more than once.""",
    ),
    "fsdp": Layout(
        "Fully sharded data parallel (FSDP, ZeRO-3)",
        """\
Take it where variables, gradients and optimizer state do not fit together, but one layer does. It
moves half as much again as data parallelism, all of it known before it is needed.""",
    ),
    "sequence": Layout(
        "Sequence parallel",
        """\
Take it for texts so long that the activations of one do not fit, or where there are fewer texts
than positions. Keys and values are gathered in each block, so what is moved grows with the length
and with the batch.""",
    ),
}

HEAD = """\
# Layouts

One model on four positions, under the six layouts of `configs/layouts/`. It is the main job's,
`configs/lm_stdlib.gin`: {size:,} parameters, {batch} windows of {length} bytes in a batch. Each
layout trains it to the same numbers. To train under one, or to see the whole plan:

```sh
.venv/bin/python -m transformer.train --gin_file=lm_stdlib.gin --gin_file=layouts/fsdp.gin
.venv/bin/python -m meshtf explain --gin_file=lm_stdlib.gin --gin_file=layouts/fsdp.gin
```

This page is written by `make gallery`, from forecasts (`mtf.explain`). All numbers are of one
position and one step of training, with AdamW and gradients clipped by their norm. *Received* are
the bytes that come from other positions. *Redundant* is the share of FLOPs that other positions do
with equal results.
"""


def main() -> None:
    """Writes the page and its pictures."""
    for name, text in page().items():
        path = ROOT / "docs" / "reference" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


def page() -> dict[str, str]:
    """Returns the files of the page and what they hold."""
    forecasts = {name: explain(f"layouts/{name}.gin") for name in LAYOUTS}
    one_device = explain(params=['Mesh.axes = ""', 'Mesh.layout = ""'])
    files = {
        f"layouts/{name}.svg": picture(forecast, LAYOUTS[name].title, rows(forecast))
        for name, forecast in forecasts.items()
    }
    tokens = next(op.outputs[0] for op in one_device.ops if op.title == "gather").shape
    sizes = {
        "size": int(one_device.memory.parameters // 4),
        "batch": tokens[0][1],
        "length": tokens[1][1],
    }
    lines = [
        HEAD.format(**sizes),
        *_compared(one_device, forecasts),
        *(
            line
            for name, forecast in forecasts.items()
            for line in _section(name, forecast)
        ),
    ]
    return {"layouts.md": "\n".join(lines), **files}


def explain(*files: str, params: Iterable[str] = ()) -> Forecast:
    """Returns the forecast of a step of the main job with further files and
    settings.
    """
    gin.clear_config()
    command_line.configure(
        ["lm_stdlib.gin", *files], [*params, 'Mesh.devices = "abstract"']
    )
    try:
        return training_run.Run().explain()
    finally:
        gin.clear_config()


def rows(forecast: Forecast) -> list[Row]:
    """Returns the tensors of the picture."""
    variables_of_block = {
        v.name.partition("block_0/")[2]: v.tensor for v in forecast.variables
    }
    query, kernel, state = (
        variables_of_block[name]
        for name in (
            "attention/query/kernel",
            "feed_forward/wi/kernel",
            "feed_forward/wi/kernel/m",
        )
    )
    stream = _made(forecast, ("batch", "length", "d_model"))
    hidden = _made(forecast, ("batch", "length", "d_ff"))
    return [
        Row(
            "Stream",
            "between the layers",
            stream,
            ("batch", "length", "d_model"),
            _moved(forecast, stream),
        ),
        Row(
            "Hidden layer",
            "of a feed-forward",
            hidden,
            ("batch", "length", "d_ff"),
            _moved(forecast, hidden),
        ),
        Row(
            "Attention weight",
            "of queries",
            query,
            ("heads", "d_model", "d_kv"),
            _moved(forecast, query),
        ),
        Row(
            "Feed-forward weight",
            "into its hidden layer",
            kernel,
            ("d_model", "d_ff"),
            _moved(forecast, kernel),
        ),
        Row(
            "Its optimizer state",
            "Adam's first moment",
            state,
            ("d_model", "d_ff"),
        ),
    ]


def _made(forecast: Forecast, dims: tuple[str, ...]) -> PlacedTensor:
    """Returns the first tensor of some dimensions that is no partial sum."""
    return next(
        out
        for op in forecast.ops
        for out in op.outputs
        if tuple(name for name, _ in out.shape) == dims and "sum" not in out.states
    )


def _moved(forecast: Forecast, tensor: PlacedTensor) -> tuple[str, ...]:
    """Returns what is moved of tensors of this shape, in words."""
    return tuple(
        dict.fromkeys(
            f"{collective.phase} {collective.kind}"
            for collective in forecast.collectives
            if collective.tensor.shape == tensor.shape
        )
    )


def _compared(one_device: Forecast, forecasts: dict[str, Forecast]) -> Iterator[str]:
    columns = ("parameters", "gradients", "optimizer state", "activations", "peak")
    heads = ["", *columns, "received", "FLOPs", "redundant"]
    yield _line(heads)
    yield "|---" + "|--:" * (len(heads) - 1) + "|"
    named = {"one position": one_device} | {
        f"[{LAYOUTS[name].title}](#{_anchor(LAYOUTS[name].title)})": f
        for name, f in forecasts.items()
    }
    for name, forecast in named.items():
        memory = (
            bytes_text(getattr(forecast.memory, c.replace(" ", "_"))) for c in columns
        )
        yield _line(
            [
                name,
                *memory,
                bytes_text(forecast.bytes_moved()),
                flops_text(forecast.flops()),
                f"{forecast.repeated_flops() / forecast.flops():.2%}",
            ]
        )
    yield ""


def _section(name: str, forecast: Forecast) -> Iterator[str]:
    text = (ROOT / "configs" / "layouts" / f"{name}.gin").read_text(encoding="utf-8")
    comment, settings = text.split("\n\n", 1)
    words = " ".join(
        line.removeprefix("# ") for line in comment.splitlines()
    ).partition(": ")[2]
    said = textwrap.fill(words[0].upper() + words[1:], 100)
    rules = [line for line in settings.splitlines() if not line.endswith('""')]
    yield f"## {LAYOUTS[name].title}\n\n{said}\n"
    yield "```text\n" + "\n".join(rules) + "\n```\n"
    yield f"![What each position holds](layouts/{name}.svg)\n\n{LAYOUTS[name].use}\n"
    yield _line(["received, by kind and axis", "times", *PHASES])
    yield "|---" + "|--:" * 5 + "|"
    for collective in totals(forecast)["collectives"]:
        yield _line(
            [
                f"{collective['kind']} over {collective['axis']}",
                str(collective["times"]),
                *(bytes_text(collective[phase]) for phase in PHASES),
            ]
        )
    yield ""


def _line(columns: Iterable[str]) -> str:
    return f"| {' | '.join(columns)} |"


def _anchor(title: str) -> str:
    """Returns the link to a heading, as GitHub makes it."""
    return "".join(
        c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-"
    )


if __name__ == "__main__":
    main()
