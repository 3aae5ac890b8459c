"""Searches the mesh and the layout with the least predicted time of a training step.

    python -m meshtf search --gin_file=models/llama2_7b.gin --devices=256 --hardware=h100
    python -m meshtf search --gin_file=lm_stdlib.gin --devices=8 --hardware=cpu --save=best.gin
    python -m meshtf search ... --why_not='batch:data; heads:model'     # why is it not the best?
    python -m meshtf search ... --rules='batch:data; heads:model; d_ff:model'   # only sizes
    python -m meshtf search ... --measure=5 --mesh_devices=spmd:cpu:8   # runs the first five

It takes the gin files and settings of `python -m transformer.train`, but ignores their mesh. It
tries all sizes of up to three axes, all sets of dimensions that an axis can shard, replicated
variables, sharded slots (ZeRO-1), sharded variables (FSDP), recomputation and microbatches; with
--stages, pipelines of the blocks, too: Architecture.scanned = True, and the rule layers:stage. It
prints the best ten of those that fit into memory: time, memory, share of peak FLOPs that the
model uses (MFU), bytes received, time that devices wait. Without --measure it needs no devices
and runs no step.

Exit code: 0; 1: nothing fits, or an error of the configuration; 2: an error of usage.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import flags

from transformer.cli import command_line, hardware_flags, measure_flags

_MAX_AXES = flags.DEFINE_integer(
    "max_axes", 3, "The largest number of axes of the mesh.", lower_bound=1
)
_AXES = flags.DEFINE_string(
    "axes",
    None,
    'Axes to be kept as they are, such as "data:8;model:4".',
    allow_override=True,
)
_RULES = flags.DEFINE_string(
    "rules", None, 'Layout rules to be kept as they are, such as "batch:data".'
)
_STORAGE = flags.DEFINE_list(
    "storage",
    ["replicated", "slots", "variables"],
    "How variables are stored: replicated, slots (ZeRO-1: the optimizer's slots are sharded "
    "along the axes of examples) or variables (FSDP: the variables, too).",
)
_MICROBATCHES = flags.DEFINE_list(
    "microbatches",
    None,
    "The counts of microbatches to try, of a step or of a pipeline; by default all powers of two "
    "that divide the batch.",
)
_STAGES = flags.DEFINE_list(
    "stages",
    ["1"],
    "The numbers of pipeline stages to try; above 1 sets Architecture.scanned = True.",
)
_RECOMPUTE = flags.DEFINE_enum(
    "recompute",
    "both",
    ["both", "yes", "no", "keep"],
    "Whether activations are computed again in the backward pass (Architecture.recompute); "
    "both: yes, no, and those of attention or of feed-forward layers alone; keep: as the "
    "configuration says.",
)
_WHY_NOT = flags.DEFINE_string(
    "why_not",
    None,
    "Layout rules: says which rule of the program they break, or by how much they are slower.",
)
_MEASURE = flags.DEFINE_integer(
    "measure",
    0,
    "How many of the first choices run for a few steps, to choose by their measured times; "
    "with --mesh_devices.",
    lower_bound=0,
)
flags.adopt_module_key_flags(command_line)  # so that --help shows them
flags.adopt_module_key_flags(hardware_flags)
flags.adopt_module_key_flags(measure_flags)


def usage_error(argv: Sequence[str]) -> str:
    """Returns the error of a command line as text; "" without an error.

    `python -m meshtf` calls it before `main`, to report the error without TensorFlow.
    """
    if measure_flags.DEVICES.value is None or hardware_flags.HARDWARE.value is None:
        return "--devices=N and --hardware=NAME say what to search for."
    if _MEASURE.value and measure_flags.MESH_DEVICES.value is None:
        return "--measure needs --mesh_devices, such as --mesh_devices=spmd:cpu:8."
    return command_line.usage_error(argv)


def flag_error(error: flags.Error) -> str:
    """Returns a message about flags that absl cannot parse; `python -m meshtf` calls it."""
    return command_line.flag_error(error)


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, searches, and prints and saves the result."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    import meshtf as mtf
    from transformer.data.atomic_files import check_writable
    from transformer.training import searched_step

    with command_line.exit_on_user_errors():
        if measure_flags.SAVE.value is not None:
            check_writable(measure_flags.SAVE.value, name="--save")
        settings = [*searched_step.ABSTRACT_MESH]
        stages = [int(count) for count in _STAGES.value]
        if max(stages) > 1:
            settings.append(searched_step.SCANNED)
        command_line.configure_by_flags(argv, *settings)
        if _MEASURE.value:
            # As in a training program. Reading the data starts TensorFlow: the devices must
            # exist before.
            mtf.configure_process()
            axes = f"device:{measure_flags.DEVICES.value}"
            mesh = mtf.Mesh(axes, devices=measure_flags.MESH_DEVICES.value)
            mtf.zeros(mesh, "").numpy()
        result = mtf.search(
            searched_step.build,
            *searched_step.arguments(with_values=bool(_MEASURE.value)),
            devices=measure_flags.DEVICES.value,
            hardware=hardware_flags.HARDWARE.value,
            memory=measure_flags.MEMORY.value,
            max_axes=_MAX_AXES.value,
            axes=_AXES.value,
            layout=_RULES.value,
            storage=_STORAGE.value,
            choices={
                "recompute": _RECOMPUTE_CHOICES[_RECOMPUTE.value],
                "microbatches": _microbatches(),
            },
            stages=stages,
            progress=_Progress(),
        )
        if _MEASURE.value:
            result = result.measured(measure_flags.MESH_DEVICES.value, _MEASURE.value)
        print(result, flush=True)
        if _WHY_NOT.value is not None:
            print(f"\nWhy not {_WHY_NOT.value}?")
            print(result.why_not(_WHY_NOT.value), flush=True)
        if measure_flags.SAVE.value is not None:
            with command_line.output_file(measure_flags.SAVE.value) as file:
                file.write(gin_text(result.best[0], is_scanned=max(stages) > 1))


_PROGRESS_SECONDS = 5.0
_RECOMPUTE_CHOICES = {
    "both": (False, True, "attention", "feed_forward"),
    "yes": (True,),
    "no": (False,),
    "keep": (None,),
}


def _microbatches() -> list[int]:
    """Returns the numbers of microbatches to try."""
    from transformer.training import searched_step

    if _MICROBATCHES.value is None:
        return searched_step.all_microbatches()
    return [int(count) for count in _MICROBATCHES.value]


class _Progress:
    """Prints how many plans are done to standard error, every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PROGRESS_SECONDS
        # When the first plan was done; the seconds before it are no part of later plans.
        self._first: float | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
        if now < self._next or done < 2:
            return
        self._next = now + _PROGRESS_SECONDS
        # Faster layouts that are found later make plans needless.
        maximum = (now - self._first) / (done - 1) * (total - done)
        print(
            f"{done:,} of at most {total:,} plans, at most {maximum:,.0f} s remaining",
            file=sys.stderr,
            flush=True,
        )


def gin_text(candidate: Any, is_scanned: bool) -> str:
    """Returns a candidate as settings of gin.

    Args:
      candidate: the candidate.
      is_scanned: whether its blocks are scanned, whatever the configuration says.
    """
    from transformer.training.searched_step import SCANNED

    lines = [
        f"# {candidate.seconds:.4g} s a step, predicted for "
        f"{candidate.problem.devices} x {candidate.problem.hardware.name}.",
        "",
    ]
    for name, value in candidate.mesh_settings.items():
        lines.append(f"Mesh.{name} = {value!r}")
    lines.append(f"train.microbatches = {candidate.choices.get('microbatches', 1)}")
    recompute = candidate.choices.get("recompute")
    if recompute is not None:
        lines.append(f"Architecture.recompute = {recompute!r}")
    if is_scanned:
        lines.append(SCANNED)
    return "\n".join(lines) + "\n"
