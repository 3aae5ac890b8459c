"""Published models, compiled by XLA for accelerators that are not there: its peak of memory and
its collectives beside the forecast.

    python -m benchmarks.spmd.compiled                # all rows: ten minutes
    python -m benchmarks.spmd.compiled --models=gpt2,llama2_7b
    python -m benchmarks.spmd.compiled --models=others       # further models
    python -m benchmarks.spmd.compiled --settings='Mesh.two_batch_overlap = True'

It needs the compiler of the devices, which is in the extra "cuda", and none of the devices.
Models are those of `configs/models/`. The table is that of docs/explain/spmd.md: it has the
peak of memory of one device, the bytes that it receives in a step by collectives of all
kinds, the share of these bytes that move while a matrix product runs, and the modelled time of
communication and the part of it that is exposed: neither is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import gin
from absl import flags

import meshtf as mtf
from transformer.cli import command_line
from transformer.cli.program import run_main
from transformer.training.training_run import Run

_ONLY = flags.DEFINE_list(
    "models",
    [],
    'The models to compile, names of files in configs/models/; "others": those of the '
    "second table; none: those of the first.",
)
_SETTINGS = flags.DEFINE_multi_string(
    "settings", [], 'Further settings of gin, such as "Mesh.two_batch_overlap = True".'
)

_MIB = 2**20
_TENSOR = "heads:model; d_ff:model; vocab:model"
_PIPELINE = "pipeline, data, tensor"
_SCANNED = "Architecture.scanned = True"


class Case(NamedTuple):
    """A model on devices.

    Attributes:
      model: the name of a file in `configs/models/`.
      layout: the name of the layout in the table.
      topology: the devices, such as "h100:8".
      axes: the axes of the mesh.
      batch: the examples of a batch, on all devices together.
      sharding: the layout of activations: all sharded dimensions with their axes.
      variable_layout: the sharded dimensions that only variables have, with their axes.
      settings: further settings of gin.
    """

    model: str
    layout: str
    topology: str
    axes: str
    batch: int
    sharding: str = "batch:data"
    variable_layout: str = ""
    settings: tuple[str, ...] = ()


def _three_layouts(model: str, *settings: str) -> list[Case]:
    """Returns a model under data parallelism, FSDP, and data and tensor parallelism."""
    data = Case(model, "data", "h100:8", "data:8", batch=64, settings=settings)
    fsdp = data._replace(layout="FSDP", variable_layout="d_model:data")
    tensor = data._replace(
        layout="data, tensor",
        axes="data:2; model:4",
        sharding=f"batch:data; {_TENSOR}",
    )
    return [data, fsdp, tensor]


CASES = [
    *_three_layouts("gpt2"),
    Case(
        "gpt2_xl",
        "FSDP",
        topology="h100:8",
        axes="data:8",
        batch=64,
        variable_layout="d_model:data",
    ),
    *_three_layouts("bert_base"),
    # XLA of jax 0.10.2 finds no tiles for a product over 8 x 114 tokens, which the model has.
    *_three_layouts("t5_base", "EncoderDecoderFeatures.targets = 128"),
    Case(
        "llama2_7b",
        "FSDP",
        topology="h100:8",
        axes="data:8",
        batch=16,
        variable_layout="d_model:data",
    ),
    Case(
        "llama2_7b",
        "FSDP, tensor",
        topology="h100:8",
        axes="data:4; model:2",
        batch=16,
        sharding=f"batch:data; {_TENSOR}",
        variable_layout="d_model:data",
    ),
    Case(
        "llama2_70b",
        "FSDP, tensor",
        topology="h100:64",
        axes="data:8; model:8",
        batch=16,
        sharding="batch:data; kv_heads:model; d_ff:model; vocab:model",
        variable_layout="d_model:data",
    ),
    Case(
        "gpt2",
        "pipeline, data",
        topology="h100:8",
        axes="stage:4; data:2",
        batch=64,
        sharding="layers:stage; vocab:stage; batch:data",
        settings=(_SCANNED,),
    ),
    Case(
        "llama2_70b",
        _PIPELINE,
        topology="h100:64",
        axes="stage:8; data:4; model:2",
        batch=128,
        sharding="layers:stage; batch:data; kv_heads:model; d_ff:model; vocab:model+stage",
    ),
    Case(
        "gpt3_175b",
        _PIPELINE,
        topology="h100:512",
        axes="stage:8; data:8; model:8",
        batch=1536,
        sharding="layers:stage; batch:data; heads:model; d_ff:model; length:stage; vocab:model",
        settings=(_SCANNED,),
    ),
]
# Models that were compiled only after the rules of the forecast were written.
OTHERS = [
    Case(
        "gpt2_medium",
        "ZeRO-1",
        topology="h100:8",
        axes="data:8",
        batch=32,
        settings=('Mesh.optimizer_layout = "d_model:data"',),
    ),
    Case(
        "bert_large",
        "FSDP, tensor",
        topology="h100:8",
        axes="data:4; model:2",
        batch=32,
        sharding=f"batch:data; {_TENSOR}",
        variable_layout="d_model:data",
    ),
    Case(
        "t5_1_1_base",
        "tensor",
        topology="h100:4",
        axes="model:4",
        batch=16,
        sharding=_TENSOR,
        settings=("EncoderDecoderFeatures.targets = 128",),
    ),
    Case(
        "mesh_lm_0.37b",
        "data, tensor",
        topology="h100:8",
        axes="data:4; model:2",
        batch=64,
        sharding=f"batch:data; {_TENSOR}",
    ),
    Case(
        "llama3_8b",
        "data, tensor",
        topology="h100:8",
        axes="data:2; model:4",
        batch=4,
        sharding="batch:data; kv_heads:model; d_ff:model; vocab:model",
        settings=("LanguageModelFeatures.length = 4096",),
    ),
]


class Row(NamedTuple):
    """What is in a row of the table. Bytes are those of one device.

    Attributes:
      case: the model on devices.
      planned_peak: the forecast of the peak of memory.
      compiled_peak: the peak of memory of XLA's program.
      planned_bytes: the forecast of the bytes received in a step.
      compiled_bytes: the bytes received in a step of XLA's program.
      overlapped: the fraction of these bytes that moves while a matrix product runs.
      communication: the modelled seconds of all collectives in a step.
      exposed: those in which kernels wait.
    """

    case: Case
    planned_peak: float
    compiled_peak: float
    planned_bytes: float
    compiled_bytes: float
    overlapped: float
    communication: float
    exposed: float


def selected(models: Sequence[str]) -> list[Case]:
    """Returns the cases of these models; without any, the table's. Exits if a model has no
    case.
    """
    if not models:
        return CASES
    cases = [*CASES, *OTHERS]
    known = {case.model for case in cases}
    chosen = set(models)
    if "others" in chosen:
        chosen.remove("others")
        chosen.update(case.model for case in OTHERS)
    for model in sorted(chosen - known):
        sys.exit(f"--models={model}: no row is of this model, but of {sorted(known)}.")
    return [case for case in cases if case.model in chosen]


def compile_case(case: Case) -> Row:
    """Returns the row of a case, for which XLA compiles a training step."""
    gin.clear_config()
    command_line.configure(
        [f"models/{case.model}.gin"],
        [
            'Mesh.devices = "abstract"',
            f'Mesh.axes = "{case.axes}"',
            f'Mesh.layout = "{case.sharding}"',
            f'Mesh.variable_layout = "{case.variable_layout}"',
            f"train.batch_size = {case.batch}",
            *case.settings,
        ],
    )
    comparison = Run().compile_for(case.topology)
    schedule = comparison.compiled.schedule
    return Row(
        case,
        planned_peak=comparison.forecast.memory.peak,
        compiled_peak=comparison.compiled.peak,
        planned_bytes=sum(comparison.planned_bytes.values()),
        compiled_bytes=sum(comparison.compiled_bytes.values()),
        overlapped=comparison.overlapped,
        communication=schedule.communication_seconds,
        exposed=schedule.exposed_seconds,
    )


_COLUMNS = [
    "model",
    "layout",
    "devices, mesh",
    "batch",
    "peak MiB, forecast",
    "XLA",
    "ratio",
    "received MiB, forecast",
    "XLA",
    "ratio",
    "hidden",
    "communication ms",
    "exposed ms",
]
HEADER = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def line(row: Row) -> str:
    """Returns a row of the table, in Markdown."""
    case = row.case
    cells = [
        case.model,
        case.layout,
        f"{case.topology}, {case.axes}",
        str(case.batch),
        f"{row.planned_peak / _MIB:,.0f}",
        f"{row.compiled_peak / _MIB:,.0f}",
        f"{row.planned_peak / row.compiled_peak:.2f}",
        f"{row.planned_bytes / _MIB:,.0f}",
        f"{row.compiled_bytes / _MIB:,.0f}",
        f"{row.planned_bytes / row.compiled_bytes:.2f}" if row.compiled_bytes else "-",
        f"{row.overlapped:.0%}",
        f"{row.communication * 1e3:,.1f}",
        f"{row.exposed * 1e3:,.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main(argv: list[str]) -> None:
    """Compiles, and prints the table."""
    del argv
    cases = selected(_ONLY.value)
    print(HEADER, flush=True)
    errors = []
    for case in cases:
        case = case._replace(settings=(*case.settings, *_SETTINGS.value))
        try:
            print(line(compile_case(case)), flush=True)
        except mtf.MeshtfError as error:
            errors.append(f"{case.model}, {case.layout}: {error}")
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    run_main(main)
