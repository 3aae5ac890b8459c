"""The published models that come as gin files: their parameters, and what explain says
of them.

Counts are told three times: by the model, by a formula over the published sizes, and as
published, which is rounded. What the formulas give for GPT-2, BERT, T5 and Llama is
what the released files hold, parameter for parameter.
"""

from __future__ import annotations

import re
from pathlib import Path

import gin
import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks.gallery.published_models import MODELS, costs, run
from transformer import explain
from transformer.cli.command_line import configure
from transformer.training.training_run import Run

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "configs" / "models"
PAGE = (ROOT / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
SHARED = {
    "base",
    "t5",
    "t5_1_1",
    "llama2",
    "mesh_lm",
    "mesh_translation",
}  # what others include


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def gpt2(d, blocks, positions=1024):
    """Tokens and positions; a block: 4 d² of attention, 8 d² of its hidden layer,
    biases, norms.
    """
    return (50257 + positions) * d + blocks * (12 * d * d + 13 * d) + 2 * d


def bert(d, blocks):
    """As GPT-2, with kinds of tokens and a norm of the embedding; a pooler; the two
    heads.
    """
    encoder = (30522 + 512 + 2) * d + 2 * d + blocks * (12 * d * d + 13 * d)
    return encoder + (d * d + d) + (d * d + d + 2 * d + 30522) + (2 * d + 2)


def t5(d, d_ff, heads, d_kv, blocks, gated=False):
    """No biases; tokens twice unless tied; relative positions of 32 kinds in each of
    two stacks.
    """
    attention, feed_forward = 4 * d * heads * d_kv, (3 if gated else 2) * d * d_ff
    block = (
        3 * attention + 2 * feed_forward + 5 * d
    )  # of the encoder and of the decoder
    return (2 if gated else 1) * 32128 * d + 2 * 32 * heads + blocks * block + 2 * d


def llama(d, d_ff, heads, kv_heads, blocks, vocab=32000):
    """Tokens and logits; heads of 128 numbers, of which keys and values may have fewer;
    SwiGLU.
    """
    block = d * 128 * (2 * heads + 2 * kv_heads) + 3 * d * d_ff + 2 * d
    return 2 * vocab * d + blocks * block + d


def mesh_lm(n):
    """d_ff = 4096 n, n * 4 heads of 256; learned positions, logits of their own, scales
    of norms.
    """
    return (
        (2 * 32768 + 256) * 1024
        + 6 * (4 * 1024 * 1024 * n + 2 * 1024 * 4096 * n + 2048)
        + 1024
    )


def mesh_translation(n):
    """d_ff = 2048 n, n * 4 heads of 128; decoders have attention twice."""
    block = 3 * 4 * 1024 * 512 * n + 2 * 2 * 1024 * 2048 * n + 5 * 1024
    return (2 * 32768 + 256) * 1024 + 6 * block + 2 * 1024


# name: (by formula, as published)
COUNTS = {
    "gpt2": (gpt2(768, 12), 124e6),
    "gpt2_medium": (gpt2(1024, 24), 355e6),
    "gpt2_large": (gpt2(1280, 36), 774e6),
    "gpt2_xl": (gpt2(1600, 48), 1.5e9),
    "gpt3_175b": (gpt2(12288, 96, positions=2048), 175e9),
    "bert_base": (bert(768, 12), 110e6),
    "bert_large": (bert(1024, 24), 340e6),
    "bert_large_lamb": (bert(1024, 24), 340e6),
    "t5_small": (t5(512, 2048, 8, 64, 6), 60e6),
    "t5_base": (t5(768, 3072, 12, 64, 12), 220e6),
    "t5_large": (t5(1024, 4096, 16, 64, 24), 770e6),
    "t5_3b": (t5(1024, 16384, 32, 128, 24), 2.8e9),
    "t5_11b": (t5(1024, 65536, 128, 128, 24), 11e9),
    "t5_1_1_small": (t5(512, 1024, 6, 64, 8, True), 77e6),
    "t5_1_1_base": (t5(768, 2048, 12, 64, 12, True), 250e6),
    "t5_1_1_large": (t5(1024, 2816, 16, 64, 24, True), 800e6),
    "t5_1_1_xl": (t5(2048, 5120, 32, 64, 24, True), 3e9),
    "t5_1_1_xxl": (t5(4096, 10240, 64, 64, 24, True), 11e9),
    "llama2_7b": (llama(4096, 11008, 32, 32, 32), 7e9),
    "llama2_13b": (llama(5120, 13824, 40, 40, 40), 13e9),
    "llama2_70b": (llama(8192, 28672, 64, 8, 80), 70e9),
    "llama3_8b": (llama(4096, 14336, 32, 8, 32, vocab=128256), 8e9),
    **{
        f"mesh_lm_{b}b": (mesh_lm(2**i), float(b) * 1e9)
        for i, b in enumerate(["0.14", "0.22", "0.37", "0.67", "1.28", "2.48", "4.90"])
    },
    **{
        f"mesh_translation_{b}b": (mesh_translation(2**i), float(b) * 1e9)
        for i, b in enumerate(["0.15", "0.24", "0.42", "0.77", "1.48", "2.89"])
    },
}
RELEASED = {
    "gpt2": 124_439_808,
    "gpt2_xl": 1_557_611_200,
    "bert_base": 110_106_428,
    "bert_large": 336_226_108,
    "t5_small": 60_506_624,
    "t5_11b": 11_307_321_344,
    "t5_1_1_xxl": 11_135_332_352,
    "llama2_7b": 6_738_415_616,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
}

# Each model has two meshes at least: data x model, of layouts/grids.
GRIDS = {name: published.grids.split() for name, published in MODELS.items()}
PAIRS = [(name, grid) for name, grids in GRIDS.items() for grid in grids]
HBM = 80 * 2**30  # of a device; at the sizes above every model has room


def parameters(outputs):
    return sum(v.shape.size for v in outputs.trainer.model.trainable_variables)


def test_every_model_is_looked_at():
    names = {path.name.removesuffix(".gin") for path in FOLDER.glob("*.gin")} - SHARED
    assert names == set(COUNTS) == set(GRIDS)
    assert all(len(grids) >= 2 for grids in GRIDS.values())
    assert len(re.findall(r"\| \d+x\d+ \|", PAGE)) == len(PAIRS)


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_those_that_were_published(name):
    formula, published = COUNTS[name]
    assert f"| `{name}` | {formula:,} | {MODELS[name].parameters} |" in PAGE
    assert parameters(run(name, params=["Architecture.vocab_multiple = 1"])) == formula
    assert formula == RELEASED.get(name, formula)
    if name.startswith("mesh_"):  # printed with two digits after the point
        assert abs(formula - published) < 0.01e9
    else:
        assert formula == pytest.approx(published, rel=0.055)


@pytest.mark.sampled(24, each="name")
@pytest.mark.parametrize("name, grid", PAIRS)
def test_explain_has_nothing_to_say_against_it(name, grid):
    outputs = run(name, grid)
    forecast = outputs.explain()
    assert (forecast.error, forecast.notes) == (None, ())
    data, model = map(int, grid.split("x"))
    assert forecast.positions == data * model
    # Gathered layers and activations have room beside what lies there all the time.
    lasting = forecast.memory.parameters + forecast.memory.optimizer_state
    assert lasting < forecast.memory.peak < HBM
    assert costs(grid, forecast) in PAGE, (
        "python -m benchmarks.gallery.published_models writes docs/reference/models.md anew"
    )


@pytest.mark.parametrize(
    "name, grid",
    [("llama2_70b", "256x8"), ("t5_11b", "128x16"), ("mesh_lm_4.90b", "256x8")],
)
def test_nothing_large_lies_at_two_positions(name, grid):
    memory = run(name, grid).explain().memory
    share = 4 * COUNTS[name][0] / 2048
    assert share < memory.parameters < 1.1 * share
    assert memory.gradients < 1.1 * share


def test_flops_are_eight_for_each_parameter_and_token():
    forecast, tokens = run("llama2_70b", "256x8").explain(), 1024 * 4096
    # 2 forwards, 2 more as blocks are computed again but for their last product, 4
    # backwards; there attention computes its scores once more.
    kernels = COUNTS["llama2_70b"][0] - 2 * 32000 * 8192
    last, logits = 80 * 28672 * 8192, 32000 * 8192
    attention = 80 * 2 * 4096 * 8192  # scores, and their product with values
    expected = (8 * kernels - 2 * last + 6 * logits + 9 * attention) * tokens
    assert forecast.flops() * 2048 == pytest.approx(expected, rel=0.01)


def test_a_plain_layout_will_do_as_well():
    configure(["models/gpt2.gin", "layouts/fsdp.gin"], ['Mesh.devices = "abstract"'])
    outputs = Run()
    assert outputs.trainer.model.mesh.axes == {"data": 4}
    assert outputs.explain().error is None


def optimizer(name):
    return run(name).trainer.optimizer


def test_training_is_set_up_as_published():
    llama, t5, lamb, bert = map(
        optimizer, ("llama2_70b", "t5_base", "bert_large_lamb", "bert_base")
    )
    assert (type(llama).__name__, llama.weight_decay, llama.beta_2) == (
        "AdamW",
        0.1,
        0.95,
    )
    assert type(t5).__name__ == "Adafactor" and t5.min_dim_size_to_factor == 128
    for v in run("t5_base").trainer.model.trainable_variables:
        if v.stack:  # no moment is a mean over layers
            assert all("layers" in slot.shape for slot in t5.slots[v.name].values())
    assert type(lamb).__name__ == "LAMB" and type(bert).__name__ == "AdamW"
    undecayed = [
        v.name
        for v in run("bert_base").trainer.model.trainable_variables
        if not bert.decay_mask(v)
    ]
    assert any("query/bias" in name for name in undecayed)
    assert any("embedding_norm" in name for name in undecayed)
    assert not [name for name in undecayed if name.endswith("kernel")]


@pytest.mark.parametrize(
    "files, words",
    [
        (["models/t5_small.gin"], "training_step on 1 device,"),
        (
            ["models/llama2_70b.gin", "layouts/grids/256x8.gin"],
            "training_step on 2048 devices,",
        ),
    ],
)
def test_the_command_explains_them(files, words, capsys):
    flags.FLAGS(["explain"])
    values = {"gin_file": files, "gin_param": [], "json": None, "html": None}
    with flagsaver.flagsaver(**values), pytest.raises(SystemExit) as left:
        explain.main(["explain"])
    out, err = capsys.readouterr()
    assert (left.value.code, err) == (0, "")
    assert words in out and "peak" in out
