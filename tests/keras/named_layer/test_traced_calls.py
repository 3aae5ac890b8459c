"""A model with a function of named tensors is saved and loaded, without the function's Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import meshtf as mtf
from tests.documentation.test_house import ROOT
from tests.keras.named_layer.nets import FIT, Hidden, X, Y, trained

LOADS = """
import sys
import keras
import numpy as np
import meshtf as mtf

keras.config.set_floatx("float64")
mtf.keras
path, data, out = sys.argv[1:]
model = keras.models.load_model(path, safe_mode=False)
x, y = np.load(data).values()
before = model.predict(x, verbose=0)
fit = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
losses = model.fit(x, y, **fit).history["loss"]
model.save(path + ".again.keras")
np.savez(out, before=before, losses=losses)
"""


def saved(tmp_path: Path, model: Any) -> Any:
    """Returns the model of a file, into which a model is saved."""
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras", safe_mode=False)


def layer_of(fn: Any, **options: Any) -> Any:
    return mtf.keras.Layer(fn, "batch; d_model", **options)


def test_another_process_loads_it_and_goes_on(tmp_path: Path) -> None:
    net = Hidden(mtf.Mesh(""))
    model, _ = trained(layer_of(net))
    path, data, out = (str(tmp_path / name) for name in ("m.keras", "d.npz", "o.npz"))
    model.save(path)
    np.savez(data, x=X, y=Y)
    before = model.predict(X, verbose=0)
    losses = model.fit(X, Y, **FIT).history["loss"]
    folders = [
        os.environ.get("PYTHONPATH", ""),
        str(ROOT),
    ]  # the first has Keras' versions
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    command = [sys.executable, "-c", LOADS, path, data, out]
    subprocess.run(command, check=True, env=environment)
    results = np.load(out)
    np.testing.assert_allclose(results["before"], before, 1e-12)
    np.testing.assert_allclose(results["losses"], losses, 1e-9)
    again = keras.models.load_model(f"{path}.again.keras", safe_mode=False)
    again.layers[1].write_back(net)
    trained_here = model.layers[1].weights[1].numpy()
    np.testing.assert_allclose(net.w.numpy(), trained_here, 1e-7)
    with pytest.raises(mtf.ArgumentError, match="no variable of this path"):
        again.layers[1].write_back()


def test_keras_asks_before_it_loads_a_graph(tmp_path: Path) -> None:
    model, _ = trained(layer_of(Hidden(mtf.Mesh(""))))
    model.save(tmp_path / "m.keras")
    with pytest.raises(mtf.PlanError, match="safe_mode=False"):
        keras.models.load_model(tmp_path / "m.keras")


def test_a_configuration_alone_has_no_graph() -> None:
    model, _ = trained(layer_of(Hidden(mtf.Mesh(""))))
    config = keras.saving.serialize_keras_object(model)
    shell = keras.saving.deserialize_keras_object(config, safe_mode=False)
    assert shell.count_params() == model.count_params()
    with pytest.raises(mtf.PlanError, match="has no graph"):
        shell(X)


def test_a_clone_has_weights_of_its_own() -> None:
    model, _ = trained(layer_of(Hidden(mtf.Mesh(""))))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone(X), model(X))
    clone.layers[1].weights[1].assign(np.zeros([8, 16]))
    assert not np.allclose(clone(X), model(X))


def test_a_file_has_the_call_in_training_before_it_trains(tmp_path: Path) -> None:
    layer = layer_of(Hidden(mtf.Mesh(""), 0.5), seed=1)
    start = keras.Input([8])
    loaded = saved(tmp_path, keras.Model(start, layer(start)))
    dropped = np.asarray(loaded(X, training=True)) == 0.0
    assert 0.3 < np.mean(dropped) < 0.7
    np.testing.assert_allclose(loaded(X), layer(X), 1e-12)


def test_sizes_that_a_file_lacks_are_told(tmp_path: Path) -> None:
    def by_length(x: mtf.Tensor) -> mtf.Tensor:
        return x - mtf.reduce_mean(x, "length")

    layer = mtf.keras.Layer(by_length, "batch; length; d_model")
    start = keras.Input([4, 8])
    loaded = saved(tmp_path, keras.Model(start, layer(start))).layers[1]
    x = np.ones([2, 4, 8])
    np.testing.assert_array_equal(loaded(x), 0 * x)
    with pytest.raises(mtf.ShapeError, match=r"\(2, 5, 8\)(.*\n)*.*\(None, 4, 8\)"):
        loaded(np.ones([2, 5, 8]))


def test_what_needs_a_whole_batch_is_saved_for_its_size(tmp_path: Path) -> None:
    shift = mtf.asarray(mtf.Mesh(""), np.arange(8.0), "d_model")

    def centered(x: mtf.Tensor) -> mtf.Tensor:
        return x - mtf.reduce_mean(x, "batch") + shift

    start = keras.Input([8], batch_size=4)
    model = keras.Model(start, layer_of(centered)(start))
    loaded = saved(tmp_path, model)
    expected = X[:4] - X[:4].mean(0) + np.arange(8.0)
    np.testing.assert_allclose(loaded(X[:4]), expected)
    with pytest.raises(mtf.ShapeError, match="no call of these sizes"):
        loaded.layers[1](X[:5])


def test_a_model_is_exported(tmp_path: Path) -> None:
    model, _ = trained(layer_of(Hidden(mtf.Mesh(""))))
    model.export(str(tmp_path / "served"), verbose=False)
    served = keras.layers.TFSMLayer(str(tmp_path / "served"), call_endpoint="serve")
    np.testing.assert_allclose(served(X), model.predict(X), 1e-12)
