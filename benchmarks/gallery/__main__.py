"""Writes docs/reference/layouts.md: the layouts of `configs/layouts/`, each with a picture
and its costs.

    python -m benchmarks.gallery

Pictures and costs are those of forecasts of a training step of `configs/lm_stdlib.gin`. So
no device is needed, and the page is the same on all machines;
tests/documentation/test_gallery.py checks that it is up to date.

A position is one of the virtual devices of a mesh: it has one shard of each tensor.
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

ROOT = Path(__file__).resolve().parents[2]  # the folder of the repository
PHASES = ("forward", "backward", "update", "all")


class Layout(NamedTuple):
    """The text about a layout.

    Attributes:
      title: the heading.
      use: when to use the layout, a paragraph.
    """

    title: str
    use: str


LAYOUTS = {
    "data_parallel": Layout(
        "Data parallel",
        """\
Use it as long as the model, its gradients and its optimizer state fit on one device. The bytes
received do not grow with the batch, so with larger batches they take a smaller share of the
time.""",
    ),
    "tensor_parallel": Layout(
        "Tensor parallel",
        """\
Use it if one layer is too large for a device, or the batch is too small to be sharded, and keep
the axis within a host: activations are reduced twice in each block in the forward pass and twice in
the backward pass, so the bytes received grow with the batch. The axis can be no longer than the
number of heads.""",
    ),
    "data_and_tensor": Layout(
        "Data and tensor parallel",
        """\
Use it for large models on many hosts: the model axis within a host (`Mesh.within_host`), the data
axis across hosts. Each axis divides the bytes that the other axis moves.""",
    ),
    "zero1": Layout(
        "ZeRO-1",
        """\
Use it in place of data parallelism if the optimizer has state, such as Adam's two moments of each
variable. The bytes received are the same: each all_reduce becomes a reduce_scatter before the
update and an all_gather after it. No position repeats the update of another one.""",
    ),
    "fsdp": Layout(
        "Fully sharded data parallel (FSDP, ZeRO-3)",
        """\
Use it if variables, gradients and optimizer state do not fit on one device together, but one layer
does. The bytes received are 1.5 times those of data parallelism.""",
    ),
    "hybrid_fsdp": Layout(
        "Hybrid sharded data parallel (a dimension over two axes)",
        """\
Use it in place of FSDP on several hosts, the inner axis within a host (`Mesh.within_host`):
variables are gathered there, and only the sums of gradients cross hosts. The rule `batch:data+fsdp`
shards the batch over both axes, the first being the major one: the order may be another than that
of the mesh. Variables over both axes, `d_model:data+fsdp`, are FSDP again.""",
    ),
    "uneven": Layout(
        "Sizes that an axis does not divide",
        """\
Use it rather than leave devices idle. Shards are as large as the largest, and the ends of the last
ones are padding, which is part of no result: here 18 examples are stored for 16, and 129
elements of the width of the model for 128. `Mesh(strict=True)` refuses it.""",
    ),
    "sequence": Layout(
        "Sequence parallel",
        """\
Use it for texts so long that the activations of one text do not fit, or if there are fewer texts
than positions. Keys and values are gathered in each block, so the bytes received grow with the
length and with the batch.""",
    ),
}

HEAD = """\
# Layouts

One model on four positions, or three, under the eight layouts of `configs/layouts/`. It is the
model of `configs/lm_stdlib.gin`: {size:,} parameters, {batch} windows of {length} bytes in a batch.
All layouts compute the same losses. To train under one, or to see all ops and collectives:

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
    """Returns the texts of the page and of its pictures, by the names of the files."""
    forecasts = {name: explain(f"layouts/{name}.gin") for name in LAYOUTS}
    one_device = explain(params=['Mesh.axes = ""', 'Mesh.layout = ""'])
    files = {
        f"layouts/{name}.svg": picture(forecast, LAYOUTS[name].title, rows(forecast))
        for name, forecast in forecasts.items()
    }
    # The first gather is that of the embeddings of tokens, [batch, length, d_model]; a
    # shape has pairs (name, size).
    embeddings = next(op.outputs[0] for op in one_device.ops if op.title == "gather")
    (_, batch), (_, length), _ = embeddings.shape
    num_parameters = int(one_device.memory.parameters // 4)  # float32: 4 bytes each
    lines = [
        HEAD.format(size=num_parameters, batch=batch, length=length),
        *_comparison(one_device, forecasts),
    ]
    for name, forecast in forecasts.items():
        lines += _section(name, forecast)
    return {"layouts.md": "\n".join(lines), **files}


def explain(*files: str, params: Iterable[str] = ()) -> Forecast:
    """Returns the forecast of a training step of lm_stdlib.gin.

    Args:
      *files: further gin files.
      params: further settings of gin, such as 'Mesh.axes = "data:4"'.
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
    """Returns the rows of the picture, one for each of five tensors."""
    variables_of_block = {}
    for variable in forecast.variables:
        _, _, path_in_block = variable.name.partition("block_0/")
        variables_of_block[path_in_block] = variable.tensor
    query = variables_of_block["attention/query/kernel"]
    kernel = variables_of_block["feed_forward/wi/kernel"]
    moment = variables_of_block["feed_forward/wi/kernel/m"]  # Adam's first moment
    # The residual stream: the activations between layers.
    stream = _first_output(forecast, ("batch", "length", "d_model"))
    hidden = _first_output(forecast, ("batch", "length", "d_ff"))
    return [
        Row(
            name="Stream",
            note="between the layers",
            tensor=stream,
            dims=("batch", "length", "d_model"),
            collectives=_collectives(forecast, stream),
        ),
        Row(
            name="Hidden layer",
            note="of a feed-forward",
            tensor=hidden,
            dims=("batch", "length", "d_ff"),
            collectives=_collectives(forecast, hidden),
        ),
        Row(
            name="Attention weight",
            note="of queries",
            tensor=query,
            dims=("heads", "d_model", "d_kv"),
            collectives=_collectives(forecast, query),
        ),
        Row(
            name="Feed-forward weight",
            note="into its hidden layer",
            tensor=kernel,
            dims=("d_model", "d_ff"),
            collectives=_collectives(forecast, kernel),
        ),
        Row(
            name="Its optimizer state",
            note="Adam's first moment",
            tensor=moment,
            dims=("d_model", "d_ff"),
        ),
    ]


def _first_output(forecast: Forecast, dims: tuple[str, ...]) -> PlacedTensor:
    """Returns the first output of an op that has these dimensions and is no partial sum."""
    for op in forecast.ops:
        for tensor in op.outputs:
            names = tuple(name for name, _ in tensor.shape)
            # `states` says for each mesh axis how the tensor is placed along it: sharded
            # along a dimension (its name), "replicated", or a partial sum ("sum").
            if names == dims and "sum" not in tensor.states:
                return tensor
    raise LookupError(f"no output has the dimensions {dims}")


def _collectives(forecast: Forecast, tensor: PlacedTensor) -> tuple[str, ...]:
    """Returns the phase and kind of each collective on tensors of this shape, such as
    "forward all_reduce".
    """
    descriptions = (
        f"{collective.phase} {collective.kind}"
        for collective in forecast.collectives
        if collective.tensor.shape == tensor.shape
    )
    return tuple(dict.fromkeys(descriptions))  # each of them once, in order


def _comparison(one_device: Forecast, forecasts: dict[str, Forecast]) -> Iterator[str]:
    """Yields the lines of the table that compares all layouts."""
    columns = ("parameters", "gradients", "optimizer state", "activations", "peak")
    headings = ["", *columns, "received", "FLOPs", "redundant"]
    yield _line(headings)
    yield "|---" + "|--:" * (len(headings) - 1) + "|"
    forecasts_by_link = {"one position": one_device}
    for name, forecast in forecasts.items():
        title = LAYOUTS[name].title
        forecasts_by_link[f"[{title}](#{_anchor(title)})"] = forecast
    for link, forecast in forecasts_by_link.items():
        memory_texts = []
        for column in columns:
            num_bytes = getattr(forecast.memory, column.replace(" ", "_"))
            memory_texts.append(bytes_text(num_bytes))
        yield _line(
            [
                link,
                *memory_texts,
                bytes_text(forecast.bytes_moved()),
                flops_text(forecast.flops()),
                f"{forecast.repeated_flops() / forecast.flops():.2%}",
            ]
        )
    yield ""


def _section(name: str, forecast: Forecast) -> Iterator[str]:
    """Yields the lines of the section about a layout."""
    text = (ROOT / "configs" / "layouts" / f"{name}.gin").read_text(encoding="utf-8")
    # The file starts with a comment: the name of the layout, a colon, and a description.
    comment, settings = text.split("\n\n", 1)
    comment_text = " ".join(line.removeprefix("# ") for line in comment.splitlines())
    _, _, description = comment_text.partition(": ")
    sentence = description[0].upper() + description[1:]
    paragraph = textwrap.fill(sentence, width=100)
    # Settings to "" only override those of lm_stdlib.gin.
    rules = [line for line in settings.splitlines() if not line.endswith('""')]
    yield f"## {LAYOUTS[name].title}\n\n{paragraph}\n"
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
    """Returns a line of a Markdown table."""
    return f"| {' | '.join(columns)} |"


def _anchor(title: str) -> str:
    """Returns the anchor that GitHub gives to a heading."""
    hyphenated = title.lower().replace(" ", "-")
    return "".join(
        character for character in hyphenated if character.isalnum() or character == "-"
    )


if __name__ == "__main__":
    main()
