"""Training of small models on live meshes and on one device, with all that tests compare.

    placed = train("BERT")
    live = train("BERT", devices="spmd:cpu", axes="data:8", layout="batch:data")
    check_equal(live, placed)

In a process of its own, or in several that `python -m meshtf launch --spmd` starts:

    python -m tests.transformer.live.training FILE BERT SETTINGS    # writes the results

SETTINGS are the arguments of `train` as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import meshtf as mtf
from tests.transformer.live.small_models import MODELS
from transformer.training.trainer import Trainer

STEPS = 50
TOLERANCE = 5e-5
_CURVE = "curve "  # before the names of curves in a file


class Training(NamedTuple):
    """What a training has computed.

    Attributes:
      curves: by name the loss, the norm of the gradients, and of each mixture of experts the
        loss, the loads of its experts and so on: each [steps, ...].
      variables: the variables of the model and its optimizer after it, by name.
    """

    curves: dict[str, np.ndarray]
    variables: dict[str, np.ndarray]


def train(
    model: str,
    options: dict[str, Any] | None = None,
    devices: str | None = None,
    axes: str = "",
    **settings: Any,
) -> Training:
    """Trains a model of `small_models`.

    With a smaller epsilon, Adam would turn a rounding error into a large step where a
    gradient is 0.

    Args:
      model: the name of the model.
      options: further arguments of the model.
      devices: the devices of the mesh.
      axes: the axes of the mesh.
      **settings: further arguments of the mesh.
    """
    mesh = mtf.Mesh(axes, devices=devices, **settings)
    built, batch = MODELS[model](mesh, **options or {})
    trainer = Trainer(
        built,
        lambda variables: mtf.optimizers.AdamW(
            variables, 3e-3, weight_decay=0.1, epsilon=1e-3
        ),
        seed=7,
    )
    steps = [_results(trainer, batch(step)) for step in range(STEPS)]
    curves = {
        name: np.stack([results[name].numpy() for results in steps])
        for name in steps[0]
    }
    return Training(curves, {name: v.numpy() for name, v in trainer.variables.items()})


def _results(trainer: Trainer, batch: dict[str, np.ndarray]) -> dict[str, mtf.Tensor]:
    """Returns the results of a step, by name."""
    loss, norm = trainer.step(batch)
    results = {"loss": loss, "norm": norm}
    for block, report in trainer.reports.items():
        results |= {f"{block} {name}": x for name, x in report._asdict().items()}
    return results


def check_equal(live: Training, placed: Training) -> None:
    """Compares a training with that on one device, relative to the size of each curve and
    variable.
    """
    assert live.curves.keys() >= {"loss", "norm"}
    loss = placed.curves["loss"]
    assert loss[-5:].mean() < 0.9 * loss[:5].mean()  # it has learned something
    for name, values in live.curves.items():
        np.testing.assert_allclose(
            values, placed.curves[name], rtol=TOLERANCE, atol=1e-6, err_msg=name
        )
    assert live.variables.keys() == placed.variables.keys()
    for name, value in placed.variables.items():
        scale = np.sqrt((value**2).mean())
        if _is_rounding(name):
            assert max(scale, np.abs(live.variables[name]).max()) < 1e-6, name
            continue
        np.testing.assert_allclose(
            live.variables[name],
            value,
            rtol=TOLERANCE,
            atol=TOLERANCE * scale,
            err_msg=name,
        )


def _is_rounding(name: str) -> bool:
    """Returns whether a variable is 0 but for rounding errors: the bias of keys adds the same
    to all scores of a query, so its gradient is 0.
    """
    return "key/bias" in name


def save(training: Training, path: Path) -> None:
    """Writes a training to a file."""
    curves = {_CURVE + name: values for name, values in training.curves.items()}
    np.savez(path, **curves, **training.variables)


def load(path: Path) -> Training:
    """Returns the training that a file has."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    curves = {
        name.removeprefix(_CURVE): arrays.pop(name)
        for name in file.files
        if name.startswith(_CURVE)
    }
    return Training(curves, arrays)


def main() -> None:
    """Trains, and writes the results; of several processes the first one writes."""
    path, model, settings = sys.argv[1:]
    training = train(model, **json.loads(settings))
    if mtf.cluster.processes().index == 0:
        save(training, Path(path))


if __name__ == "__main__":
    main()
