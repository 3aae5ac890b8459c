"""The language model with mixtures of experts: layouts, microbatches, gin, checkpoints,
export.
"""

from __future__ import annotations

import functools

import gin
import numpy as np
import pytest

import meshtf as mtf
from tests.support.module_runner import Runner
from transformer import data
from transformer.cli.command_line import configure
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.experts.routing import Capacity
from transformer.export_saved_model import export
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.load_trained import Trained
from transformer.training.reporting import metrics
from transformer.training.trainer import Trainer
from transformer.training.training_run import Run

BATCH, LENGTH, STEPS = 8, 8, 3
SIZES = {
    "vocab": 16,
    "d_model": 16,
    "d_ff": 16,
    "heads": 4,
    "d_kv": 8,
    "blocks": 2,
    "moe_every": 2,
    "dropout": 0.1,
}
TENSOR = "heads:model; d_ff:model; vocab:model"
LAYOUTS = {
    "data": {"axes": "data:8", "layout": "batch:data"},
    "experts": {"axes": "data:8", "layout": "batch:data; experts:data"},
    "experts and tensor": {
        "axes": "data:4;model:2",
        "layout": f"batch:data; experts:data;{TENSOR}",
    },
    "experts along model": {
        "axes": "data:2;model:4",
        "layout": "batch:data; experts:model",
    },
    "FSDP": {
        "axes": "data:4",
        "layout": "batch:data; experts:data",
        "variable_layout": "d_model:data",
    },
    "FSDP and tensor": {
        "axes": "data:2;model:2",
        "layout": f"batch:data; experts:data;{TENSOR}",
        "variable_layout": "d_model:data",
    },
    "ZeRO-1": {
        "axes": "data:4",
        "layout": "batch:data",
        "optimizer_layout": "d_model:data; experts:data",
    },
    "experts over two axes": {
        "axes": "data:2;fsdp:4",
        "layout": "batch:data+fsdp; experts:fsdp+data",
        "variable_layout": "d_model:",
    },
    "sequence": {
        "axes": "data:2;seq:4",
        "layout": "batch:data; length:seq; experts:data",
    },
}


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def text(step=0):
    sequences = (
        np.random.default_rng(step).integers(0, 16, (BATCH, LENGTH + 1)).astype("int32")
    )
    return {
        "tokens": np.ascontiguousarray(sequences[:, :-1]),
        "targets": np.ascontiguousarray(sequences[:, 1:]),
    }


def trainer(model=LanguageModel, group_size=None, **mesh):
    """Returns a trainer of a small model; a mesh's options are those of the layouts
    above.
    """
    mixture = functools.partial(
        MixtureOfExperts,
        experts=8,
        gating=gating.top_2,
        jitter=0.05,
        balance_weight=0.1,
        group_size=group_size,
    )
    outputs = model(
        mtf.Mesh(**{"axes": "", **mesh}), Architecture(**SIZES, mixture=mixture)
    )
    return Trainer(
        outputs,
        functools.partial(mtf.optimizers.AdamW, learning_rate=0.01, epsilon=1e-4),
    )


def train(trainer):
    """Returns losses and norms of a few steps, and what mixtures reported of the last
    one.
    """
    curve = [[float(x) for x in trainer.step(text(step))] for step in range(STEPS)]
    return curve, {
        name: [t.numpy() for t in report] for name, report in trainer.reports.items()
    }


@functools.cache
def on_one_position():
    return train(trainer())


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_train_alike(layout):
    curve, reports = train(trainer(**LAYOUTS[layout]))
    expected_curve, expected = on_one_position()
    np.testing.assert_allclose(curve, expected_curve, rtol=2e-4)
    assert reports.keys() == expected.keys() == {"block_1"}
    for have, whole in zip(reports["block_1"], expected["block_1"], strict=True):
        np.testing.assert_allclose(have, whole, rtol=1e-3, atol=1e-5)


def test_router_losses_are_part_of_the_training_loss():
    one = trainer()
    batch = {
        name: mtf.asarray(one.model.mesh, x, "batch;length")
        for name, x in text().items()
    }
    with mtf.seed(0):
        loss, reports = one.model.loss_and_reports(batch, training=True)
    with mtf.seed(0):
        logits = one.model(batch["tokens"], training=True)
    bare = mtf.layers.softmax_cross_entropy(
        logits, batch["targets"], "vocab", one.model.z_loss
    )
    np.testing.assert_allclose(
        float(loss), float(bare) + float(reports["block_1"].loss), rtol=1e-6
    )
    assert float(reports["block_1"].loss) > 0.1
    plain, _ = one.model.loss_and_reports(batch)
    expected = mtf.layers.softmax_cross_entropy(
        one.model(batch["tokens"]), batch["targets"], "vocab"
    )
    assert float(plain) == float(expected)


def accumulated(microbatches, group_size=None):
    model = trainer(group_size=group_size).model

    @mtf.function(mesh=model.mesh, batch=model.features)
    def step(batch):
        with mtf.seed(3):
            return mtf.optimizers.accumulate_gradients(
                lambda batch: model.loss(batch, training=True),
                model.trainable_variables,
                batch,
                "batch",
                microbatches,
            )

    loss, grads = step(text())
    return [loss.numpy(), *(dx.numpy() for dx in grads)]


@pytest.mark.sampled(2, together="experts")
def test_microbatches_change_no_number():
    for x, y in zip(accumulated(4), accumulated(1), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("microbatches, group_size", [(2, 16), (4, 64)])
def test_microbatches_cut_no_group(microbatches, group_size):
    with pytest.raises(mtf.ShapeError, match="microbatches would split groups"):
        accumulated(microbatches, group_size)


def test_by_gin():
    configure(
        ["moe.gin"],
        [
            "Architecture.d_model = 16",
            "Architecture.d_ff = 16",
            "Architecture.d_kv = 8",
            "train.batch_size = 4",
            "ByteText.length = 8",
            "Mesh.axes = 'data:2;model:2'",
            "MixtureOfExperts.experts = 4",
            "MixtureOfExperts.gating = @top_2",
            "top_2.convention = 'published'",
        ],
    )
    run = Run()
    kinds = [
        type(block.feed_forward).__name__ for block in run.trainer.model.decoder.blocks
    ]
    assert kinds == ["FeedForward", "MixtureOfExperts"] * 2
    mixture = run.trainer.model.decoder.blocks[1].feed_forward
    assert mixture.router.kernel.shape["experts_all"] == 4
    assert mixture.jitter == gin.query_parameter("MixtureOfExperts.jitter") > 0
    forecast = run.explain()
    assert forecast.error is None
    collectives = [m.kind for op in forecast.ops for m in op.collectives]
    assert collectives.count("all_to_all") == 2 * 4


@pytest.mark.sampled(2, together="experts")
def test_a_run_tells_of_experts_and_writes_text(tmp_path, capsys):
    letters = np.frombuffer(b"def f(x):\n  return x\n" * 60, np.uint8)
    corpus = data.Corpus(
        "letters", letters[:-400], letters[-400:], ("a.py",), ("b.py",)
    )
    gin.bind_parameter("sample.max_new_tokens", 3)
    model = functools.partial(
        LanguageModel, architecture=Architecture(**{**SIZES, "vocab": 256})
    )
    Run(
        data.ByteText(lambda: corpus, 16),
        mtf.Mesh("data:2", "batch:data; experts:data"),
        model,
        steps=2,
        batch_size=4,
        report_every=1,
    ).train(str(tmp_path))
    told = [line for line in metrics.read(tmp_path) if "loss" in line]
    assert len(told) == 2
    for line in told:
        assert (
            0 <= line["block_1/dropped"] < 0.6 and 1 <= line["block_1/most_loaded"] <= 8
        )
        assert 0 < line["block_1/entropy"] <= np.log(8)
    assert "bits per byte" in capsys.readouterr().out


def test_tokens_that_choose_one_expert_do_not_see_later_ones():
    tight = functools.partial(gating.switch, capacity=Capacity(evaluate=0.5, minimum=1))
    model = LanguageModel(
        mtf.Mesh(""),
        Architecture(
            **SIZES,
            mixture=functools.partial(MixtureOfExperts, experts=2, gating=tight),
        ),
    )
    tokens = text()["tokens"]
    changed = np.where(np.arange(LENGTH) < 5, tokens, (tokens + 1) % 16)
    first, second = (
        model(mtf.asarray(model.mesh, x, "batch;length")).numpy()
        for x in (tokens, changed)
    )
    np.testing.assert_allclose(first[:, :5], second[:, :5], atol=1e-5)
    assert np.abs(first[:, 5:] - second[:, 5:]).max() > 0.1


@pytest.mark.sampled(2, together="experts")
@pytest.mark.parametrize(
    "saved, restored",
    [("experts", "experts along model"), ("FSDP and tensor", "experts")],
)
def test_checkpoints_know_no_layout(saved, restored, tmp_path):
    first = trainer(**LAYOUTS[saved])
    first.step(text())
    first.save(mtf.checkpoints.Saver(str(tmp_path)))
    second = trainer(**LAYOUTS[restored])
    assert second.restore(tmp_path)
    expected, have = first.step(text(1)), second.step(text(1))
    np.testing.assert_allclose(
        [float(x) for x in have], [float(x) for x in expected], rtol=2e-4
    )


@pytest.mark.sampled(1, together="experts")
@pytest.mark.slow
def test_a_signature_of_experts_has_one_size_of_batches(caplog):
    # Tokens of a batch compete for the capacity of experts.
    mixture = functools.partial(MixtureOfExperts, experts=4, gating=gating.top_2)
    sizes = SIZES | {"dropout": 0.0, "vocab": 256}
    model = LanguageModel(mtf.Mesh(""), Architecture(**sizes, mixture=mixture))
    export(Trained(model, data.ByteText(length=LENGTH), step=0), batch_size=2)
    assert caplog.text.count("takes batches of 2") == 2
    assert "does not map along 'batch'" in caplog.text


@pytest.mark.slow
@pytest.mark.sampled(2, together="experts")
@pytest.mark.parametrize("layout", ["experts", "experts and tensor", "FSDP"])
def test_exported_steps_are_the_same(layout):
    export = trainer(**LAYOUTS[layout]).export(text())
    runner = Runner(export, quick=True)
    call = {f"batch_{name}": x for name, x in text().items()} | {"step": np.int32(0)}
    out = runner.run(
        [
            runner.put(
                port.shard(
                    export.values.get(port.name, call.get(port.name)), export.mesh
                )
            )
            for port in export.inputs
        ]
    )
    have = [
        port.gather(runner.get(y), export.mesh) for port, y in zip(export.results, out)
    ]
    np.testing.assert_allclose(have[:2], on_one_position()[0][0], rtol=1e-4)
