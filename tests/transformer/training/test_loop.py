"""The training loop: microbatches, evaluations during training, and nonfinite losses."""

from __future__ import annotations

import gin
import numpy as np
import pytest

import meshtf as mtf
from transformer import data
from transformer.data import ByteText, Corpus
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.models.language_model import LanguageModel
from transformer.training import training_run
from transformer.training.loop import Loop
from transformer.training.reporting import metrics

SMALL = Architecture(d_model=16, d_ff=32, heads=2, d_kv=8, blocks=1)


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    gin.bind_parameter("sample.max_new_tokens", 3)
    yield
    gin.clear_config()


def text():
    letters = np.frombuffer(b"def f(x):\n  return x + 1\n" * 60, np.uint8)
    return ByteText(
        lambda: Corpus("letters", letters[:-400], letters[-400:], ("a",), ("b",)), 16
    )


def small(mesh):
    return LanguageModel(mesh, SMALL)


def train(
    folder,
    model=small,
    axes="data:2",
    layout="batch:data",
    steps=6,
    devices=None,
    save_every=3,
    **settings,
):
    training_run.train(
        str(folder),
        data=text(),
        mesh=mtf.Mesh(axes, layout, devices=devices),
        model=model,
        batch_size=8,
        steps=steps,
        report_every=2,
        save_every=save_every,
        **settings,
    )
    return metrics.read(folder)


def test_microbatches_give_the_losses_of_the_full_batch(tmp_path):
    whole = [line["loss"] for line in train(tmp_path / "whole") if "loss" in line]
    parts = [
        line["loss"]
        for line in train(tmp_path / "parts", microbatches=4)
        if "loss" in line
    ]
    np.testing.assert_allclose(parts, whole, rtol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("devices", "started"),
    [(None, [1, 2, 4, 5, 6, 8]), ("spmd:cpu", [1, 4, 5, 5, 8, 8])],
)
def test_results_are_read_while_later_steps_run(
    tmp_path, monkeypatch, devices, started
):
    reads = []
    read = Loop._read

    def recorded_read(self, results, saver):
        reads.append((results[-1].step_index + 1, self.trainer.steps_done))
        return read(self, results, saver)

    monkeypatch.setattr(Loop, "_read", recorded_read)
    lines = train(tmp_path, steps=8, save_every=5, devices=devices)
    # Reports are after steps 1 and 5, which are first and saved, and every two steps.
    steps = [1, 2, 4, 5, 6, 8]
    assert reads == list(zip(steps, started, strict=True))
    assert [line["step"] for line in lines if "loss" in line] == steps


def test_evaluations_during_training_are_written(tmp_path, capsys):
    lines = train(tmp_path, evaluate_every=2)
    results = {
        line["step"]: line["held_out_loss"] for line in lines if "held_out_loss" in line
    }
    assert list(results) == [0, 2, 4, 6]
    assert results[6] < results[0]
    assert "held_out_accuracy" in capsys.readouterr().out


def test_scores_of_a_run_that_goes_on_are_those_of_its_step(tmp_path, capsys):
    train(tmp_path, steps=4)
    assert "held out before training: loss" in capsys.readouterr().out
    train(tmp_path, steps=6)
    output = capsys.readouterr().out
    assert "held out at step 4: loss" in output
    assert "before training" not in output


class Bad(Model):
    """A model whose loss becomes NaN once its weight, which falls by 1 a step, is below
    zero.
    """

    features = LanguageModel.features

    def __init__(self, mesh):
        super().__init__(mesh, SMALL, "bad")
        self.w = mtf.Variable(
            mesh, "d:4", mtf.layers.initializers.constant(3.5), name="w"
        )

    def loss_and_reports(self, batch, training=False):
        scale = mtf.reduce_mean(mtf.cast(batch["tokens"], "float32")) * 0.0 + 1.0
        root = mtf.sqrt(self.w * scale)  # the line that is told
        return mtf.reduce_sum(root), {}

    def measure(self, batch):
        one = mtf.ones(self.mesh, "")
        return {"nats": one, "correct": one, "tokens": one}


def test_a_nonfinite_loss_stops_the_run_and_names_the_tensor(tmp_path, capsys):
    def optimizer(variables):
        return mtf.optimizers.SGD(variables, learning_rate=8.0, momentum=0.0)

    with pytest.raises(
        mtf.NumericsError,
        match=r"sqrt output NaN, 4 of 4(.|\n)*\[d:4\](.|\n)*"
        r"mtf.sqrt, .*test_loop.py:\d+",
    ):
        train(tmp_path, Bad, steps=50, optimizer=optimizer, clip_norm=0.25)
    output = capsys.readouterr().out
    assert (
        "loss nan" in output and "to find the first tensor that is not finite" in output
    )
    saved = mtf.checkpoints.latest(str(tmp_path))
    assert saved is not None
    restored = Bad(mtf.Mesh(""))
    mtf.checkpoints.restore(saved[1], {v.name: v for v in restored.variables})
    assert np.isfinite(restored.w.numpy()).all()


def test_steps_that_are_not_finite_may_be_skipped(tmp_path, capsys):
    def optimizer(variables):
        return mtf.optimizers.SGD(variables, learning_rate=8.0, momentum=0.0)

    lines = train(
        tmp_path,
        Bad,
        steps=8,
        optimizer=optimizer,
        clip_norm=0.25,
        skip_nonfinite_steps=True,
    )
    output = capsys.readouterr().out
    assert "skipped steps in this run" in output and "from example 32" in output
    assert any(line.get("loss", 0.0) is None for line in lines)  # NaN, in JSON
    restored = Bad(mtf.Mesh(""))
    mtf.checkpoints.restore(
        mtf.checkpoints.latest(str(tmp_path))[1],
        {v.name: v for v in restored.variables},
        partly=True,
    )
    assert np.isfinite(restored.w.numpy()).all()


def test_separate_gradient_and_update_programs_give_the_same_losses(tmp_path):
    one, two = (
        [
            line["loss"]
            for line in train(
                tmp_path / str(skip_nonfinite_steps),
                skip_nonfinite_steps=skip_nonfinite_steps,
            )
            if "loss" in line
        ]
        for skip_nonfinite_steps in (False, True)
    )
    np.testing.assert_allclose(two, one, rtol=1e-6)


def test_infinities_that_are_inputs_are_no_error():
    mesh = mtf.Mesh("x:2", "d:x")
    x = mtf.asarray(mesh, np.array([1.0, 0.0], "float32"), "d")
    with mtf.check_numerics():
        y = mtf.exp(x) + mtf.where(x > 0, 0.0, -np.inf)  # infinity that was meant
        assert np.isneginf(y.numpy()[1])
        with pytest.raises(
            mtf.NumericsError,
            match="log output infinity, 1 of 2, first at d 1(.|\n)*from 0 to 1",
        ):
            mtf.log(x)
    mtf.log(x)


def test_data_that_do_not_fit_a_model_are_refused():
    class Small(data.ByteText):
        def __init__(self):
            super().__init__(length=4)
            self.vocabulary = data.ByteVocabulary()

    with pytest.raises(
        data.DataError, match="ids, and the model 256(.|\n)*Architecture.vocab"
    ):
        training_run.Run(Small(), mtf.Mesh(""), small)
