"""All architectures: the same loss and gradients as on one device, and what each
setting means.
"""

from __future__ import annotations

import dataclasses
import functools
import re

import numpy as np
import pytest

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.bert import Bert, Classifier, SpanExtractor, bert_architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

VOCAB, BATCH, LENGTH = 16, 4, 8
BASE = Architecture(
    vocab=VOCAB, d_model=16, d_ff=32, heads=4, d_kv=8, blocks=2, dropout=0.1
)
BERT = bert_architecture(
    vocab=VOCAB, d_model=16, d_ff=32, heads=4, d_kv=4, blocks=2, max_length=12
)
T5 = dataclasses.replace(
    BASE,
    positions="relative",
    scaled_attention=False,
    tied=True,
    buckets=8,
    max_distance=12,
    activation="relu",
)
KINDS = {
    "rotary": BASE,
    "learned, biases": dataclasses.replace(
        BASE,
        positions="learned",
        norm="layer",
        use_bias=True,
        tied=True,
        scaled_logits=False,
        max_length=8,
    ),
    "sinusoidal, norms after": dataclasses.replace(
        BASE, positions="sinusoidal", norm="layer", norm_place="after"
    ),
    "relative": T5,
    "sloped, multi-query": dataclasses.replace(BASE, positions="sloped", kv_heads=1),
    "grouped-query, gated": dataclasses.replace(BASE, kv_heads=2, activation="swiglu"),
    "factored embedding": dataclasses.replace(BASE, embedding_size=8, tied=True),
    "blockwise": dataclasses.replace(BASE, attention="blockwise", block_length=2),
    "ring": dataclasses.replace(BASE, attention="ring", block_length=2),
    "local": dataclasses.replace(
        BASE, attention="local", block_length=4, positions="none"
    ),
    "scanned": dataclasses.replace(T5, scanned=True, recompute=True),
    "attention recomputed": dataclasses.replace(
        T5, scanned=True, recompute="attention"
    ),
    "scanned, mixed, feed-forward recomputed": dataclasses.replace(
        BASE, moe_every=1, scanned=True, recompute="feed_forward"
    ),
    "window": dataclasses.replace(BASE, window=3),
    "mixed": dataclasses.replace(BASE, moe_every=2),
    "scanned, mixed": dataclasses.replace(BASE, moe_every=1, scanned=True),
}
MODELS = {
    **{
        f"language model, {name}": (LanguageModel, kind) for name, kind in KINDS.items()
    },
    "encoder-decoder": (EncoderDecoder, T5),
    "encoder-decoder, feed-forward recomputed": (
        EncoderDecoder,
        dataclasses.replace(T5, recompute="feed_forward"),
    ),
    "encoder-decoder, scanned, blockwise": (
        EncoderDecoder,
        dataclasses.replace(BASE, scanned=True, attention="blockwise", block_length=2),
    ),
    "encoder-decoder, ring": (
        EncoderDecoder,
        dataclasses.replace(BASE, attention="ring", block_length=2),
    ),
    "BERT": (Bert, BERT),
    "classifier": (functools.partial(Classifier, labels=3), BERT),
    "span extractor": (SpanExtractor, BERT),
}
LAYOUTS = {
    "data and tensor": (
        "data:2;model:2",
        "batch:data; heads:model; d_ff:model; vocab:model",
        "",
    ),
    "FSDP": ("data:4", "batch:data", "d_model:data"),
    "length": ("data:2;seq:2", "batch:data; length:seq", ""),
}


def batch_of(model, seed=0):
    """Returns random arrays of all that a model may be given."""
    rng = np.random.default_rng(seed)
    sizes = {"batch": BATCH, "length": LENGTH, "inputs_length": LENGTH, "masked": 2}
    segments = np.sort(rng.integers(1, 3, (BATCH, LENGTH)), axis=1)
    first = np.array(
        [
            [0] + [int(a != b) for a, b in zip(example, example[1:])]
            for example in segments
        ]
    )
    starts = np.maximum.accumulate(first * np.arange(LENGTH), axis=1)
    most = {
        "token_types": 2,
        "next_sentence_labels": 2,
        "labels": 3,
        "start": LENGTH,
        "end": LENGTH,
        "masked_positions": LENGTH,
        "prefix": 2,
    }
    batch = {}
    for name, dims in model.features.items():
        shape = [sizes[n.strip()] for n in dims.split(";")]
        if name.endswith("segments"):
            batch[name] = segments
        elif name.endswith("positions") and "masked" not in name:
            batch[name] = np.arange(LENGTH) - starts
        elif name in ("weights", "masked_weights", "counts"):
            batch[name] = (
                rng.integers(0, 2, shape) if name != "counts" else np.ones(shape)
            )
        else:
            batch[name] = rng.integers(0, most.get(name, VOCAB), shape)
    return {
        name: x.astype(
            "float32" if name in ("weights", "masked_weights", "counts") else "int32"
        )
        for name, x in batch.items()
    }


@functools.cache
def learned(name, axes="", layout="", variable_layout="", devices=None):
    """Returns the loss and all gradients of a training step, and what is measured."""
    make, kind = MODELS[name]
    model = make(mtf.Mesh(axes, layout, variable_layout, devices=devices), kind)
    variables = model.trainable_variables

    @mtf.function(mesh=model.mesh, batch=model.features)
    def step(batch):
        with mtf.seed(3):
            loss = model.loss(batch, training=True)
        return loss, mtf.gradients([loss], variables), model.measure(batch)

    loss, grads, measured = step(batch_of(model))
    return (
        [loss.numpy(), *(np.zeros(1) if g is None else g.numpy() for g in grads)],
        ["loss", *(v.name for v in variables)],
        {k: float(x) for k, x in measured.items()},
    )


CASES = [(name, "data and tensor") for name in MODELS]
CASES += [
    (name, layout)
    for layout in ("FSDP", "length")
    for name in (
        "language model, grouped-query, gated",
        "language model, blockwise",
        "language model, scanned",
        "encoder-decoder",
        "encoder-decoder, ring",
        "BERT",
    )
]


@pytest.mark.sampled(5, each="layout")
@pytest.mark.slow
@pytest.mark.parametrize("name, layout", CASES)
def test_training_is_the_same_under_each_layout(name, layout):
    have, names, measured = learned(name, *LAYOUTS[layout])
    expected, _, expected_metrics = learned(name)
    for x, y, what in zip(have, expected, names, strict=True):
        np.testing.assert_allclose(
            x, y, rtol=2e-3, atol=2e-4 * np.abs(y).max() + 1e-6, err_msg=what
        )
    assert measured == pytest.approx(expected_metrics, rel=1e-4)


# Models whose attention can be one op.
FUSED = [name for name in MODELS if not re.search("blockwise|ring|local", name)]


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("devices", [None, "spmd:cpu:4"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("name", FUSED)
def test_attention_as_one_op_is_the_same(name, plain, layout, devices, monkeypatch):
    """In float32 and at any length, so that rounding plays no role. `plain`: a text for each
    example, of which all but tokens and labels is left out.
    """
    make, kind = MODELS[name]

    def gradients(*layouts, **settings):
        model = make(mtf.Mesh(*layouts, **settings), kind)
        batch = batch_of(model)
        if plain:
            left_out = ("segments", "positions", "prefix", "weights", "counts")
            batch = {n: x for n, x in batch.items() if n not in left_out}
        variables = model.trainable_variables
        features = {n: dims for n, dims in model.features.items() if n in batch}

        @mtf.function(mesh=model.mesh, batch=features)
        def step(batch):
            with mtf.seed(3):
                loss = model.loss(batch, training=True)
            return [loss, *mtf.gradients([loss], variables)]

        forecast = step.explain(batch)
        results = [np.zeros(1) if g is None else g.numpy() for g in step(batch)]
        return results, "fusedattention" in str(forecast)

    expected, is_fused = gradients("")
    assert not is_fused
    module = "meshtf.layers.attention.dot_product"
    monkeypatch.setattr(f"{module}.FUSED_LENGTH", 2)
    monkeypatch.setattr(f"{module}.FUSED_LENGTH_ON_CPUS", 2)
    monkeypatch.setattr(f"{module}.FUSED_DTYPES", ("float32",))
    have, is_fused = gradients(*LAYOUTS[layout], devices=devices)
    assert is_fused
    for x, y in zip(have, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4 * np.abs(y).max() + 1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_every_variable_has_a_gradient(name):
    grads, names, _ = learned(name)
    assert np.isfinite(grads[0])
    still = [what for what, g in zip(names, grads) if not np.abs(g).max() > 0]
    assert all("pooler" in what for what in still) and ("span" in name or not still), (
        still
    )


def logits(architecture, tokens, **places):
    model = LanguageModel(mtf.Mesh(""), architecture)
    dims = "batch; length"
    given = {name: mtf.asarray(model.mesh, x, dims) for name, x in places.items()}
    return model(mtf.asarray(model.mesh, tokens, dims), **given).numpy()


@pytest.mark.parametrize("name", [n for n in KINDS if "mixed" not in n])
def test_texts_of_one_row_do_not_see_each_other(rng, name):
    kind = dataclasses.replace(KINDS[name], dropout=0.0)
    texts = rng.integers(1, VOCAB, (2, 1, 4)).astype("int32")
    packed_tokens = np.concatenate(list(texts), axis=1)
    packed = logits(
        kind,
        packed_tokens,
        segments=np.array([[1] * 4 + [2] * 4], "int32"),
        positions=np.array([[0, 1, 2, 3] * 2], "int32"),
    )
    apart = [logits(kind, text) for text in texts]
    np.testing.assert_allclose(packed, np.concatenate(apart, axis=1), atol=2e-5)


def test_a_prefix_is_seen_by_those_before_it(rng):
    tokens = rng.integers(1, VOCAB, (1, 8)).astype("int32")
    changed = tokens.copy()
    changed[0, [2, 6]] = tokens[0, [2, 6]] % (VOCAB - 1) + 1
    prefix = np.array([[1] * 4 + [0] * 4], "int32")
    kind = dataclasses.replace(BASE, dropout=0.0)
    before, after = (logits(kind, x, prefix=prefix)[0] for x in (tokens, changed))
    moved = np.abs(before - after).max(axis=-1) > 1e-6
    assert moved.all()  # 2 is in the prefix: all see it
    changed[0, 2] = tokens[0, 2]
    moved = np.abs(before - logits(kind, changed, prefix=prefix)[0]).max(axis=-1) > 1e-6
    assert moved.tolist() == [False] * 6 + [True] * 2


def test_scanned_blocks_are_blocks_one_by_one(rng):
    tokens = rng.integers(1, VOCAB, (2, 8)).astype("int32")
    kind = dataclasses.replace(T5, dropout=0.0)
    plain = LanguageModel(mtf.Mesh(""), kind)
    deep = LanguageModel(mtf.Mesh(""), dataclasses.replace(kind, scanned=True))
    values = {v.name: v.numpy() for v in plain.variables}
    for variable in deep.variables:
        layers = [
            values[variable.name.replace("blocks/block", f"block_{i}")]
            for i in range(2)
        ]
        variable.assign(
            np.stack(layers) if "blocks/block" in variable.name else layers[0]
        )
    expected, have = (
        model(mtf.asarray(model.mesh, tokens, "batch; length")).numpy()
        for model in (plain, deep)
    )
    np.testing.assert_allclose(have, expected, atol=1e-5)


def test_inputs_that_are_padding_change_nothing(rng):
    model = EncoderDecoder(mtf.Mesh(""), dataclasses.replace(T5, dropout=0.0))
    sequences = rng.integers(1, VOCAB, (2, 1, 6)).astype("int32")
    longer = np.pad(sequences[0], ((0, 0), (0, 3)))
    tokens = mtf.asarray(model.mesh, sequences[1], "batch; length")
    short, padded = (
        model(mtf.asarray(model.mesh, x, "batch; inputs_length"), tokens).numpy()
        for x in (sequences[0], longer)
    )
    np.testing.assert_allclose(short, padded, atol=1e-5)


def test_activations_may_be_half_floats():
    kind = dataclasses.replace(BASE, dropout=0.0)
    tokens = np.random.default_rng(0).integers(1, VOCAB, (2, 8)).astype("int32")
    full, half = (
        LanguageModel(
            mtf.Mesh("data:2;model:2", "batch:data; heads:model; d_ff:model"), k
        )
        for k in (kind, dataclasses.replace(kind, dtype="bfloat16"))
    )
    losses = []
    for model in (full, half):

        @mtf.function(mesh=model.mesh, batch=model.features)
        def step(batch, model=model):
            loss = model.loss(batch, training=True)
            return loss, mtf.gradients([loss], model.trainable_variables)

        loss, grads = step({"tokens": tokens, "targets": tokens})
        assert loss.dtype == "float32" and all(g.dtype == "float32" for g in grads)
        losses.append(float(loss))
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
    assert losses[1] != losses[0]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"norm": "batch"}, "Architecture.norm is 'batch'.\n  Take one of rms, layer"),
        (
            {"positions": "alibi"},
            "Take one of rotary, learned, sinusoidal, relative, sloped, none",
        ),
        ({"kv_heads": 3}, "4 heads cannot share 3 heads"),
        (
            {"attention": "local", "positions": "relative"},
            "local attention has no relative",
        ),
        ({"scanned": True, "moe_every": 2}, "Take Architecture.moe_every = 1, not 2"),
    ],
)
def test_unknown_kinds_are_refused(change, message):
    with pytest.raises(mtf.MeshtfError, match=message):
        dataclasses.replace(BASE, **change)


def test_examples_longer_than_learned_positions_are_refused(rng):
    kind = dataclasses.replace(KINDS["learned, biases"], max_length=6)
    with pytest.raises(mtf.ShapeError, match="more positions than the 6 learned ones"):
        logits(kind, rng.integers(1, VOCAB, (1, 8)).astype("int32"))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"window": 0}, "window is 0: it must be an integer, at least 1"),
        ({"window": 9, "attention": "local", "block_length": 7}, "at most 8 tokens"),
        ({"rope_scaling": (8.0, 1.0, 4.0)}, "Take four numbers"),
        ({"rope_scaling": ("a", 1.0, 4.0, 8192)}, "Take four numbers"),
    ],
)
def test_windows_and_scalings_that_are_none(settings, message):
    with pytest.raises(mtf.ParseError, match=message):
        Architecture(**settings)
