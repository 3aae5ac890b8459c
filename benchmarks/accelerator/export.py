"""Writes the training steps of the cases into a folder, with all that runs them.

    export_case(case, "build/accelerator", platform="cuda")

Of each case there are a StableHLO module, NAME.mlirbc, without initial values, and a
description, NAME.json: inputs and outputs, the forecast, and the settings from which
`jax_peer.py` makes the same model. The runner and `jax_peer.py` are copied beside them.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin

import meshtf as mtf
from benchmarks.accelerator.cases import Case
from meshtf.hardware import as_hardware
from transformer.cli import command_line
from transformer.training.training_run import Run

RUNNER = ("run.py", "timed_case.py", "jax_peer.py")
HARDWARE = ("h200", "h100", "a100")
_LEARNING_RATE = 1e-4
_CLIP_NORM = 1.0
_SETTINGS = (
    'Mesh.devices = "abstract"',
    'Mesh.axes = ""',
    'Mesh.layout = ""',
    "train.optimizer = @AdamW",
    f"train.clip_norm = {_CLIP_NORM}",
    f"AdamW.learning_rate = {_LEARNING_RATE}",
)


def export_all(cases: Sequence[Case], folder: str, platform: str) -> int:
    """Writes a folder with all cases and the runner; returns its size in bytes.

    Args:
      cases: the cases, in the order in which they will run.
      folder: the folder; files of an earlier export are replaced.
      platform: the devices that modules are for, such as "cuda".
    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for name in RUNNER:
        shutil.copyfile(Path(__file__).with_name(name), root / name)
    for case in cases:
        size, description = export_case(case, root, platform)
        forecast = description["forecast"]["h100"]
        print(
            f"{case.name:24}{size / 1024:8.0f} KiB{description['parameters'] / 1e6:8.0f} M "
            f"parameters{description['forecast_peak'] / 2**30:7.1f} GiB"
            f"{forecast['seconds'] * 1e3:8.0f} ms on an H100",
            flush=True,
        )
    names = [case.name for case in cases]
    (root / "cases.json").write_text(json.dumps(names))
    return sum(path.stat().st_size for path in root.iterdir() if path.is_file())


def export_case(case: Case, root: Path, platform: str) -> tuple[int, dict[str, Any]]:
    """Writes the module and the description of a case; returns the module's size in bytes,
    and the description.

    Args:
      case: the case.
      root: the folder.
      platform: the devices that the module is for.
    """
    gin.clear_config()
    params = [*_SETTINGS, f"train.batch_size = {case.batch}", *case.settings]
    command_line.configure([f"models/{case.model}.gin"], params)
    run = Run()
    exported = run.export("" if case.any_device else platform)
    description = _description(case, run, exported)
    (root / f"{case.name}.mlirbc").write_bytes(exported.module)
    (root / f"{case.name}.json").write_text(json.dumps(description, indent=1))
    return len(exported.module), description


def _description(case: Case, run: Run, exported: mtf.Export) -> dict[str, Any]:
    """Returns what the runner reads of a case."""
    architecture = run.model.architecture
    parameters = [port for port in exported.inputs if port.kind == "parameter"]
    forecasts = {name: run.explain(hardware=name, runtime="spmd") for name in HARDWARE}
    times = {}
    model_flops = 0.0
    for name, forecast in forecasts.items():
        if forecast.time is None:
            raise RuntimeError(f"{case.name}: {forecast.error}")
        times[name] = {"seconds": forecast.time.seconds, "mfu": forecast.time.mfu}
        peak = as_hardware(name).peak_flops(architecture.dtype)
        model_flops = forecast.time.mfu * forecast.time.seconds * peak
    return {
        "name": case.name,
        "model": case.model,
        "batch": case.batch,
        "platform": exported.platform,
        "stddev": case.stddev,
        "without_peer": case.without_peer,
        "parameters": sum(port.spec.shape.size for port in parameters),
        "model_flops": model_flops,
        "forecast": times,
        "forecast_peak": forecasts["h100"].memory.peak,
        "config": _config(run),
        "optimizer": _optimizer(run),
        "inputs": [_port(port) for port in exported.inputs],
        "results": [_port(port) for port in exported.results],
        "limits": _limits(run),
    }


def _config(run: Run) -> dict[str, Any]:
    """Returns the settings of the model, as `jax_peer` takes them."""
    config = dataclasses.asdict(run.model.architecture)
    del config["mixture"]
    config["kind"] = type(run.model).__name__
    if config["moe_every"]:
        config["experts"] = gin.query_parameter("MixtureOfExperts.experts")
        config["balance_weight"] = gin.query_parameter(
            "MixtureOfExperts.balance_weight"
        )
        config["z_weight"] = gin.query_parameter("MixtureOfExperts.z_weight")
        config["capacity"] = gin.query_parameter("Capacity.train")
    return config


def _optimizer(run: Run) -> dict[str, Any]:
    """Returns the settings of AdamW, as `jax_peer` takes them."""
    optimizer = run.trainer.optimizer
    assert isinstance(optimizer, mtf.optimizers.AdamW)
    variables = run.model.trainable_variables
    return {
        "learning_rate": _LEARNING_RATE,
        "clip_norm": _CLIP_NORM,
        "beta_1": optimizer.beta_1,
        "beta_2": optimizer.beta_2,
        "epsilon": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "decayed": [v.name for v in variables if optimizer.decay_mask(v)],
    }


def _limits(run: Run) -> dict[str, list[int]]:
    """Returns the range of random integers of each feature of a batch, [low, high)."""
    features = run.features()
    vocab = run.model.architecture.vocab
    length = features["tokens"].shape[1]
    return {
        "tokens": [1, vocab],  # id 0 is padding
        "targets": [1, vocab],
        "masked_ids": [1, vocab],
        "masked_positions": [0, length],
        "token_types": [0, 2],
        "next_sentence_labels": [0, 2],
    }


def _port(port: Any) -> dict[str, Any]:
    """Returns an input or result of a module: its name, kind, data type and sizes, and of a
    variable that is written the index of the output.
    """
    return {
        "name": port.name,
        "kind": port.kind,
        "dtype": port.spec.dtype,
        "sizes": list(port.spec.shape.sizes),
        "output": port.output,
    }
