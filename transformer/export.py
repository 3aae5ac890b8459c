"""Exports a training step of any configuration of `transformer.train` as a StableHLO
module.

    python -m meshtf export --stablehlo=step                      # configs/lm_stdlib.gin
    python -m meshtf export --gin_file=lm_stdlib.gin --gin_file=layouts/fsdp.gin --stablehlo=step
    python -m meshtf export --gin_param='Mesh.axes = "data:256;model:8"' --stablehlo=step

It takes the gin files and settings of `python -m transformer.train`, and writes a folder:
the program of one replica (module.mlirbc), its inputs and outputs (manifest.json), and the
initial values of all variables (values.npz). It needs no devices and reads no data.
docs/explain/spmd.md says how any PJRT host runs the module. Exit code: 0, or 1 if there is
an error; then nothing is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gin
from absl import flags

from transformer.cli import command_line

if TYPE_CHECKING:
    import meshtf as mtf
    from transformer.training import training_run

_FOLDER = flags.DEFINE_string(
    "stablehlo", None, "The folder to write; a previous export in it is replaced."
)
_PLATFORM = flags.DEFINE_enum(
    "platform",
    "",
    ["", "cpu", "cuda", "tpu"],
    "The devices that the module is for, whose kernels it may call, such as those for attention; "
    "by default any devices.",
)
flags.adopt_module_key_flags(command_line)  # so that --help shows them


def usage_error(argv: Sequence[str]) -> str:
    """Returns the error of a command line as text; "" without an error.

    `python -m meshtf` calls it before `main`, to report the error without TensorFlow.
    """
    return command_line.usage_error(argv)


def flag_error(error: flags.Error) -> str:
    """Returns a message about flags that absl cannot parse; `python -m meshtf` calls it."""
    return command_line.flag_error(error)


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and writes a training step as a StableHLO module."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    from transformer.data.atomic_files import check_writable

    with command_line.exit_on_user_errors():
        if not _FOLDER.value:
            raise command_line.ConfigError(
                "--stablehlo=FOLDER, the folder to write, is missing."
            )
        check_writable(_FOLDER.value, name="--stablehlo", folder=True)
        # An abstract mesh has no devices, so the variables of this run have no values.
        abstract_run = _make_run(argv, 'Mesh.devices = "abstract"')
        exported = abstract_run.export(_PLATFORM.value)
        initial_values = _initial_values(argv, exported)
        exported = dataclasses.replace(exported, values=initial_values)
    try:
        exported.save(_FOLDER.value)
    except OSError as error:
        command_line.exit_with_message(
            f"cannot write {_FOLDER.value}: {error.strerror}."
        )
    print(_summary(exported), flush=True)


def _make_run(argv: Sequence[str], *extra_params: str) -> training_run.Run:
    """Returns a training run with the settings of the flags.

    Args:
      argv: the command line after the flags were parsed.
      *extra_params: further settings, bound last, such as 'Mesh.axes = "data:8"'.
    """
    from transformer.training import training_run

    gin.clear_config()
    command_line.configure_by_flags(argv, *extra_params)
    return training_run.Run()


def _initial_values(argv: Sequence[str], exported: mtf.Export) -> dict[str, Any]:
    """Returns the initial values of the variables, by the name of their input.

    They are computed on one device: initial values do not depend on the mesh.

    Args:
      argv: the command line after the flags were parsed.
      exported: the exported step. Its inputs, the *ports*, are variables of the model and
        the optimizer, and the arguments of the step, such as a batch.
    """
    single_device_run = _make_run(
        argv,
        'Mesh.axes = ""',
        'Mesh.layout = ""',
        'Mesh.variable_layout = ""',
        'Mesh.optimizer_layout = ""',
        "Mesh.devices = None",
        "Mesh.within_host = ()",
    )
    variables = single_device_run.trainer.variables
    return {
        port.name: variables[port.name].numpy()
        for port in exported.inputs
        if port.kind != "argument"
    }


def _summary(exported: mtf.Export) -> str:
    """Returns lines with the sizes of an export."""
    num_bytes = sum(value.nbytes for value in exported.values.values())
    arguments = ", ".join(
        f"{port.name} {port.spec.shape!r}"
        for port in exported.inputs
        if port.kind == "argument"
    )
    return "\n".join(
        [
            f"replicas   {exported.mesh.size} ({exported.mesh})",
            f"module     {len(exported.module) / 1024:,.1f} KiB",
            f"variables  {len(exported.values)}, {num_bytes / 2**20:,.1f} MiB in total",
            f"arguments  {arguments}",
            f"folder     {_FOLDER.value}: module.mlirbc, manifest.json, values.npz",
        ]
    )
