"""Writes docs/reference/models.md: the published models of `configs/models/` on meshes of up
to 2,048 positions (a position is one of the virtual devices of a mesh).

    python -m benchmarks.gallery.published_models

All costs are forecasts, so no device is needed, and the page is the same on all machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import gin

import meshtf as mtf
from meshtf.forecast.reports.units import bytes_text, flops_text
from transformer.cli import command_line
from transformer.training import training_run

ROOT = Path(__file__).resolve().parents[2]  # the folder of the repository


class Published(NamedTuple):
    """A published model.

    Attributes:
      parameters: the number of parameters, as it was published.
      grids: the meshes in the table, data x model, separated by spaces.
    """

    parameters: str
    grids: str


MODELS = {
    "gpt2": Published(parameters="124M", grids="1x1 16x4"),
    "gpt2_medium": Published("355M", "64x8 256x8"),
    "gpt2_large": Published("774M", "8x1 16x4"),
    "gpt2_xl": Published("1.5B", "16x4 64x8"),
    "gpt3_175b": Published("175B", "64x8 256x8"),
    "bert_base": Published("110M", "1x1 8x1 16x4"),
    "bert_large": Published("340M", "64x8 256x8"),
    "bert_large_lamb": Published("340M", "256x8 128x16"),
    "t5_small": Published("60M", "1x1 64x8"),
    "t5_base": Published("220M", "8x1 16x4"),
    "t5_large": Published("770M", "64x8 128x16"),
    "t5_3b": Published("2.8B", "16x4 16x32"),
    "t5_11b": Published("11B", "16x32 128x16"),
    "t5_1_1_small": Published("77M", "1x1 8x1"),
    "t5_1_1_base": Published("250M", "8x1 16x4"),
    "t5_1_1_large": Published("800M", "16x4 64x8"),
    "t5_1_1_xl": Published("3B", "16x4 64x8"),
    "t5_1_1_xxl": Published("11B", "64x8 256x8"),
    "llama2_7b": Published("7B", "16x4 64x8"),
    "llama2_13b": Published("13B", "16x4 256x8"),
    "llama2_70b": Published("70B", "16x4 64x8 256x8"),
    "llama3_8b": Published("8B", "64x8 256x8"),
    "mesh_lm_0.14b": Published(".14B", "1x1 8x1"),
    "mesh_lm_0.22b": Published(".22B", "8x1 16x4"),
    "mesh_lm_0.37b": Published(".37B", "8x1 16x4"),
    "mesh_lm_0.67b": Published(".67B", "16x4 64x8"),
    "mesh_lm_1.28b": Published("1.28B", "16x4 64x8"),
    "mesh_lm_2.48b": Published("2.48B", "64x8 16x32"),
    "mesh_lm_4.90b": Published("4.90B", "16x32 256x8"),
    "mesh_translation_0.15b": Published(".15B", "1x1 8x1"),
    "mesh_translation_0.24b": Published(".24B", "8x1 16x4"),
    "mesh_translation_0.42b": Published(".42B", "8x1 16x4"),
    "mesh_translation_0.77b": Published(".77B", "16x4 64x8"),
    "mesh_translation_1.48b": Published("1.48B", "16x4 16x32"),
    "mesh_translation_2.89b": Published("2.89B", "16x32 128x16"),
}

HEAD = """\
# Published models

`configs/models/` has models as they were published, each a gin file that says where its sizes come
from, and `configs/layouts/grids/` has meshes for them, called data x model. To see a training step
of one on a mesh, with every op and every collective, before there is any device:

```sh
.venv/bin/python -m meshtf explain --gin_file=models/llama2_7b.gin --gin_file=layouts/grids/64x8.gin
```

A grid shards batches along its first axis, and variables at rest as well (FSDP); along its second
heads, hidden layers and vocabulary. Heads or batches that an axis does not divide are a
`LayoutError`; GPT-2 XL (25 heads) and T5 1.1 small (6) leave attention replicated. Vocabularies
are padded to a multiple of 128 (`Architecture.vocab_multiple`): GPT-2's 50,257 to
50,304 and BERT's 30,522 to 30,592. The ids that pad it are never predicted, and are not counted
below.

Batches have the published size; where a position would have more than 1/128 of one, it
accumulates gradients over microbatches (`train.microbatches`). Activations are bfloat16, variables
float32, blocks one traced body (`Architecture.scanned`), so each of these forecasts takes about a
second. The six other layouts of `configs/layouts/` fit these models, too. The files have no data
(`ShapesOnly`): to train, bind `train.data`.

This page is written by `python -m benchmarks.gallery.published_models`, from forecasts
(`mtf.explain`). All but the parameters is of one position and one step: *lasting* are
parameters and optimizer state, *peak* is the most memory at one time, *received* are
the bytes that come from other positions.
tests/transformer/models/test_published.py holds all counts to formulas, and all meshes
to having neither error nor note.

| model | parameters | published | mesh | positions | lasting | peak | received | flops |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def main() -> None:
    """Writes the page."""
    path = ROOT / "docs" / "reference" / "models.md"
    lines = [line for name in MODELS for line in rows(name)]
    path.write_text(HEAD + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(path.relative_to(ROOT))


def rows(name: str) -> Iterator[str]:
    """Yields a line of the table for each mesh of a model."""
    # Without padding of the vocabulary, as the published numbers are counted.
    model = run(name, params=["Architecture.vocab_multiple = 1"]).trainer.model
    num_parameters = sum(variable.shape.size for variable in model.trainable_variables)
    model_columns = [f"`{name}`", f"{num_parameters:,}", MODELS[name].parameters]
    for grid in MODELS[name].grids.split():
        yield f"| {' | '.join(model_columns)} {costs(grid, run(name, grid).explain())}"
        model_columns = ["", "", ""]  # only the first line of a model names it


def costs(grid: str, forecast: mtf.Forecast) -> str:
    """Returns the columns of a line about a mesh.

    Args:
      grid: the mesh, data x model, such as "16x4".
      forecast: the forecast of a training step on the mesh.
    """
    memory = forecast.memory
    columns = [
        grid,
        f"{forecast.positions:,}",
        bytes_text(memory.parameters + memory.optimizer_state),
        bytes_text(memory.peak),
        bytes_text(forecast.bytes_moved()),
        flops_text(forecast.flops()),
    ]
    return f"| {' | '.join(columns)} |"


def run(
    name: str, grid: str | None = None, params: Iterable[str] = ()
) -> training_run.Run:
    """Returns a run of a model on a mesh without devices. Gin keeps the settings of the run.

    Args:
      name: the name of the model.
      grid: the mesh, data x model; None: the mesh of the model's file.
      params: further settings of gin.
    """
    gin.clear_config()
    files = [f"models/{name}.gin"]
    if grid is not None:
        files.append(f"layouts/grids/{grid}.gin")
    command_line.configure(
        files, [*params, 'Mesh.devices = "abstract"', "Mesh.strict = True"]
    )
    return training_run.Run()


if __name__ == "__main__":
    main()
