"""A step of training as a StableHLO module, for any configuration of
`transformer.train`.

    python -m meshtf export --stablehlo=step                      # configs/lm_stdlib.gin
    python -m meshtf export --gin_file=lm_stdlib.gin --gin_file=layouts/fsdp.gin --stablehlo=step
    python -m meshtf export --gin_param='Mesh.axes = "data:256;model:8"' --stablehlo=step

It takes the gin files and settings of `python -m transformer.train` and writes a
folder: the program of one replica (module.mlirbc), what a host must know to run it
(manifest.json), and the first values of all variables (values.npz). It needs no devices
and reads no text: docs/explain/spmd.md says how any PJRT host runs the module. Exit code: 0, or
1 if there is an error; then nothing is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import gin
from absl import flags

import meshtf as mtf
from transformer.cli import command_line
from transformer.data.atomic_files import check_writable
from transformer.training import training_run

_FOLDER = flags.DEFINE_string(
    "stablehlo", None, "The folder to write; one of an earlier export is replaced."
)
flags.adopt_module_key_flags(command_line)  # so that --help shows them


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, and writes a step as a module."""
    with command_line.leaving_plainly():
        if not _FOLDER.value:
            raise command_line.ConfigError(
                "the folder to write is not named: --stablehlo=FOLDER."
            )
        check_writable(_FOLDER.value, "--stablehlo", folder=True)
        exported = _run(argv, 'Mesh.devices = "abstract"').export()
        exported = dataclasses.replace(exported, values=_first_values(argv, exported))
    try:
        exported.save(_FOLDER.value)
    except OSError as error:
        command_line.leave(f"cannot write {_FOLDER.value}: {error.strerror}.")
    print(_told(exported), flush=True)


def _run(argv: Sequence[str], *more: str) -> training_run.Run:
    gin.clear_config()
    command_line.configure_by_flags(argv, *more)
    return training_run.Run()


def _first_values(argv: Sequence[str], exported: mtf.Export) -> dict[str, Any]:
    """Returns the variables of a run on one position: no mesh changes them, and one is
    quick.
    """
    one = _run(
        argv,
        *(
            f'Mesh.{name} = ""'
            for name in ("axes", "layout", "variable_layout", "optimizer_layout")
        ),
        "Mesh.devices = None",
        "Mesh.within_host = ()",
    )
    return {
        port.name: one.trainer.variables[port.name].numpy()
        for port in exported.inputs
        if port.kind != "argument"
    }


def _told(exported: mtf.Export) -> str:
    size = sum(value.nbytes for value in exported.values.values())
    arguments = ", ".join(
        f"{port.name} {port.spec.shape!r}"
        for port in exported.inputs
        if port.kind == "argument"
    )
    return "\n".join(
        [
            f"replicas   {exported.mesh.size} ({exported.mesh!r})",
            f"module     {len(exported.module) / 1024:,.1f} KiB",
            f"variables  {len(exported.values)}, {size / 2**20:,.1f} MiB in all",
            f"arguments  {arguments}",
            f"folder     {_FOLDER.value}: module.mlirbc, manifest.json, values.npz",
        ]
    )
