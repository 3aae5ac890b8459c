"""A program that trains a Keras model on a mesh over several processes, and prints what it got.

python -m meshtf launch --workers=2 -- python -m tests.keras.processes.fit FOLDER {cluster}
python -m meshtf launch --spmd --workers=2 -- python -m tests.keras.processes.fit FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

import meshtf as mtf
from tests.keras.layer_settings.encoder import Small, adam, batch, encoder
from tests.keras.models import batches, compiled, transformer

AXES, LAYOUT = "data:2; model:2", "batch:data; heads:model; vocab:model"
OPTIMIZER = keras.optimizers.Adam


def results_of(
    devices: str | None, folder: str, on_mesh: bool = True
) -> dict[str, Any]:
    """Returns what `fit`, `evaluate`, `predict` and a file of the model have.

    Args:
        devices: Those of the mesh.
        folder: Where the model is saved.
        on_mesh: Whether there is a mesh.
    """
    keras.config.set_floatx("float64")
    mesh = mtf.Mesh(AXES, LAYOUT, devices=devices) if on_mesh else None
    x, y = batches(transformer, 8, 4)
    model = compiled(transformer, OPTIMIZER, mesh, metrics=["accuracy"])
    fit = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    results = dict(model.fit(x, y, validation_split=0.2, **fit).history)
    results["evaluated"] = model.evaluate(x, y, batch_size=8, verbose=0)
    results["predicted"] = model.predict(x, batch_size=8, verbose=0).tolist()
    model.save(f"{folder}/model.keras")
    loaded = keras.models.load_model(f"{folder}/model.keras")
    results["loaded"] = loaded.predict(x, batch_size=8, verbose=0).tolist()
    results["weights"] = [float(np.abs(w).sum()) for w in model.get_weights()]
    results["pipeline"] = losses_of_pipeline(devices, on_mesh)
    return results


def losses_of_pipeline(devices: str | None, on_mesh: bool) -> list[float]:
    """Returns the losses of a model whose equal layers are the stages of a pipeline.

    Args:
        devices: Those of the mesh.
        on_mesh: Whether there is a mesh.
    """
    model = compiled(lambda: encoder(Small), adam)
    if on_mesh:
        mesh = mtf.Mesh(
            "stage:2; data:2",
            "layers:stage; batch:data",
            devices=devices,
            microbatches=2,
        )
        mtf.keras.distribute(model, mesh, repeated=r"layer_\d")
    return [float(model.train_on_batch(*batch())) for _ in range(3)]


def refusals(index: int) -> list[str]:
    """Returns the messages of errors of processes that differ.

    Args:
        index: That of this process.
    """
    mesh = mtf.Mesh(AXES, LAYOUT, devices="spmd:cpu")
    x, y = batches(transformer, 8, 1)
    messages = []
    for seed, shift in ((index, 0), (0, index)):
        model = compiled(transformer, OPTIMIZER, mesh)
        keras.utils.set_random_seed(seed)
        model.layers[-1].bias.assign(np.random.normal(size=4))
        try:
            model.train_on_batch(x, (y + shift) % 4)
        except mtf.ClusterError as error:
            messages.append(str(error))
    return messages


def main() -> None:
    """Joins the other processes, trains, prints."""
    folder, *cluster = sys.argv[1:]
    if cluster:
        mtf.connect(cluster[0])
        results = results_of(None, folder)
    else:
        group = mtf.cluster.join_processes()
        results = results_of("spmd:cpu", folder)
        results["refusals"] = refusals(group.index)
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
