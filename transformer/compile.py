"""Compiles a training step of any configuration of `transformer.train` for devices that
need not be there, and compares what XLA made of it with the forecast.

    python -m meshtf compile --for=h100:8                         # configs/lm_stdlib.gin
    python -m meshtf compile --gin_file=models/gpt2.gin --gin_file=layouts/fsdp.gin \\
        --gin_param='Mesh.axes = "data:8"' --for=h100:8 --hlo=step.hlo

It takes the gin files and settings of `python -m transformer.train`, and prints for one
device: the peak of memory, and the bytes that each kind of collective receives, as
planned and as compiled; then, by module, how much of the communication is exposed. Its times
are modelled from XLA's schedule and the profile of the devices, and not measured.

It needs the compiler of the devices (the package `jax-cuda12-pjrt` or `libtpu`), and no device.
Exit code: 0; 1: an error of the configuration or the program; 2: an error of usage.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from absl import flags

from transformer.cli import command_line

_TOPOLOGY = flags.DEFINE_string(
    "for",
    None,
    'The kind and the number of devices: "h100:8", "v5e:8", "v5p:16"; of TPUs also the '
    'grid, "v5e:2x4".',
)
_HLO = flags.DEFINE_string(
    "hlo", None, "A file to write the scheduled program of one device to, as text."
)
flags.adopt_module_key_flags(command_line)  # so that --help shows them
# The module and the package of the compiler; others of `jax_plugins` are told later.
_GPU_COMPILER = "jax_plugins", "jax-cuda12-pjrt"


def usage_error(argv: Sequence[str]) -> str:
    """Returns the error of a command line as text; "" without an error.

    `python -m meshtf` calls it before `main`, to report the error without TensorFlow.
    """
    if not _TOPOLOGY.value:
        return "--for=TOPOLOGY, the devices, is missing: --for=h100:8."
    is_tpu = _TOPOLOGY.value.startswith("v")
    module, package = ("libtpu", "libtpu") if is_tpu else _GPU_COMPILER
    if importlib.util.find_spec(module) is None:
        return (
            f"nothing here compiles for {_TOPOLOGY.value!r}.\n  Its compiler is the package "
            f"{package}, of the version of jax, which needs no devices: pip install {package}."
        )
    return command_line.usage_error(argv)


def main(argv: Sequence[str]) -> None:
    """Reads flags and configuration, compiles a step, and prints the comparison."""
    # Imports of TensorFlow are in functions, so that --help is fast.
    from transformer.data.atomic_files import atomic_file, check_writable

    with command_line.exit_on_user_errors():
        if _HLO.value:
            check_writable(_HLO.value, name="--hlo")
        # An abstract mesh has shapes and a layout, but no devices.
        command_line.configure_by_flags(argv, 'Mesh.devices = "abstract"')
        from transformer.training.training_run import Run

        comparison = Run().compile_for(_TOPOLOGY.value)
    print(comparison, flush=True)
    if _HLO.value:
        with atomic_file(_HLO.value) as temporary_path:
            temporary_path.write_text(comparison.compiled.hlo, encoding="utf-8")
