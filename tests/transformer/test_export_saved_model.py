"""Trained models as SavedModels: without meshtf they give the same logits and the same
ids.
"""

from __future__ import annotations

import subprocess
import sys

import gin
import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.test_decode import configured, pairs, run
from transformer.export_saved_model import export
from transformer.inference.decoder import Decoder

__all__ = ["pairs", "run"]  # fixtures

SERVE = """
import sys
sys.modules["meshtf"] = None
import numpy as np, tensorflow as tf
served = tf.saved_model.load(sys.argv[1])
arrays = dict(np.load(sys.argv[2]))
inputs = {"inputs": arrays["inputs"]} if "inputs" in arrays else {}
outputs = {**served.signatures["logits"](tokens=arrays["tokens"], **inputs),
           **served.signatures["generate"](tokens=arrays["prompts"], **inputs)}
np.savez(sys.argv[3], **{name: x.numpy() for name, x in outputs.items()})
"""


@pytest.fixture(autouse=True)
def clean_gin():
    yield
    gin.clear_config()


def run_saved_model(saved_model, folder, **arrays):
    """Returns the outputs of a model in a process that cannot import meshtf."""
    saved_model.save(str(folder / "served"))
    np.savez(folder / "arrays.npz", **arrays)
    subprocess.run(
        [
            sys.executable,
            "-c",
            SERVE,
            *(str(folder / x) for x in ("served", "arrays.npz", "outputs.npz")),
        ],
        check=True,
        timeout=300,
    )
    return np.load(folder / "outputs.npz")


@pytest.mark.sampled(1, together="SavedModels of models")
@pytest.mark.slow
def test_a_language_model_generates_without_meshtf(run, tmp_path):
    trained = configured(run)
    prompts = np.full([1, 16], -1, "int32")
    prompts[0, :4] = list(b"def ")
    tokens = np.arange(16, dtype="int32")[None]
    # One example is computed at once, and a batch may have any size.
    outputs = run_saved_model(
        export(trained), tmp_path, tokens=tokens, prompts=np.repeat(prompts, 3, 0)
    )
    (completion,) = Decoder(trained.model, 12, 4, batch_size=1)([prompts[0, :4]])
    assert len(outputs["ids"]) == 3
    for row in outputs["ids"].tolist():
        end = row.index(0) if 0 in row else 16
        assert row[:4] == list(b"def ") and row[4:end] == completion.ids[: end - 4]
    batch = mtf.asarray(trained.model.mesh, np.repeat(tokens, 4, 0), "batch;length")
    np.testing.assert_allclose(
        outputs["logits"], trained.model(batch).numpy()[:1], rtol=1e-4, atol=1e-5
    )


@pytest.mark.sampled(1, together="SavedModels of models")
@pytest.mark.slow
def test_an_encoder_decoder_generates_without_meshtf(pairs, tmp_path):
    trained = configured(pairs)
    inputs = np.zeros([2, 24], "int32")
    inputs[0, :5] = range(100, 105)
    inputs[1, :9] = range(90, 99)
    length = trained.data.features(1)["tokens"].shape[1]
    prompts = np.full([2, length], -1, "int32")
    prompts[:, 0] = 0
    outputs = run_saved_model(
        export(trained, batch_size=2, num_beams=2),
        tmp_path,
        tokens=np.abs(prompts),
        prompts=prompts,
        inputs=inputs,
    )
    decoder = Decoder(
        trained.model, length - 1, 24, batch_size=2, eos_id=1, num_beams=2
    )
    for ids, prompt, score in zip(
        outputs["ids"], (inputs[0, :5], inputs[1, :9]), outputs["scores"]
    ):
        (completion,) = decoder([prompt])
        assert ids[1 : 1 + len(completion.ids)].tolist() == completion.ids
        assert score == pytest.approx(completion.score, rel=1e-4)
