"""Trained models as SavedModels: without meshtf they give the same logits, and write
the same.
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
given = dict(np.load(sys.argv[2]))
more = {"inputs": given["inputs"]} if "inputs" in given else {}
found = {**served.signatures["logits"](tokens=given["tokens"], **more),
         **served.signatures["write"](texts=given["texts"], **more)}
np.savez(sys.argv[3], **{name: x.numpy() for name, x in found.items()})
"""


@pytest.fixture(autouse=True)
def clean_gin():
    yield
    gin.clear_config()


def served(saved, folder, **given):
    """Returns what a model gives in a process that cannot import meshtf."""
    saved.save(str(folder / "served"))
    np.savez(folder / "given.npz", **given)
    subprocess.run(
        [
            sys.executable,
            "-c",
            SERVE,
            *(str(folder / x) for x in ("served", "given.npz", "found.npz")),
        ],
        check=True,
        timeout=300,
    )
    return np.load(folder / "found.npz")


@pytest.mark.slow
def test_a_language_model_writes_without_meshtf(run, tmp_path):
    trained = configured(run)
    texts = np.full([1, 16], -1, "int32")
    texts[0, :4] = list(b"def ")
    tokens = np.arange(16, dtype="int32")[None]
    found = served(export(trained), tmp_path, tokens=tokens, texts=texts)
    (written,) = Decoder(trained.model, 12, 4, batch_size=1)([texts[0, :4]])
    ids = found["ids"][0].tolist()
    end = ids.index(0) if 0 in ids else 16
    assert ids[:4] == list(b"def ") and ids[4:end] == written.ids[: end - 4]
    rows = mtf.asarray(trained.model.mesh, np.repeat(tokens, 4, 0), "batch;length")
    np.testing.assert_allclose(
        found["logits"], trained.model(rows).numpy()[:1], rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_an_encoder_decoder_answers_without_meshtf(pairs, tmp_path):
    trained = configured(pairs)
    inputs = np.zeros([2, 24], "int32")
    inputs[0, :5], inputs[1, :9] = range(100, 105), range(90, 99)
    length = trained.data.features(1)["tokens"].shape[1]
    texts = np.full([2, length], -1, "int32")
    texts[:, 0] = 0
    found = served(
        export(trained, batch_size=2, beams=2),
        tmp_path,
        tokens=np.abs(texts),
        texts=texts,
        inputs=inputs,
    )
    decoder = Decoder(trained.model, length - 1, 24, batch_size=2, eos_id=1, beams=2)
    for row, prompt, score in zip(
        found["ids"], (inputs[0, :5], inputs[1, :9]), found["scores"]
    ):
        (written,) = decoder([prompt])
        assert row[1 : 1 + len(written.ids)].tolist() == written.ids
        assert score == pytest.approx(written.score, rel=1e-4)
