"""Decoding token by token with caches gives the logits of a full forward pass, for
every architecture.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from transformer.experts.gating import switch
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.experts.routing import Capacity
from transformer.models.architecture import Architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

SIZES = {"vocab": 16, "d_model": 16, "d_ff": 16, "heads": 4, "d_kv": 4, "blocks": 2}
BATCH, LENGTH, INPUTS = 2, 8, 6
KINDS = {
    "rotary": {},
    "learned": {"positions": "learned", "max_length": 8, "use_bias": True},
    "sinusoidal": {"positions": "sinusoidal", "norm": "layer"},
    "relative": {
        "positions": "relative",
        "buckets": 4,
        "max_distance": 6,
        "scaled_attention": False,
    },
    "sloped": {"positions": "sloped", "embedding_size": 8},
    "none": {"positions": "none", "tied": True},
    "blockwise": {"attention": "blockwise", "block_length": 4, "positions": "relative"},
    "ring": {"attention": "ring", "block_length": 4, "positions": "relative"},
    "all-to-all": {"attention": "all_to_all", "block_length": 4},
    "local": {"attention": "local", "block_length": 2},
    "multi-query": {"kv_heads": 1, "activation": "swiglu"},
    "grouped": {"kv_heads": 2, "positions": "sloped"},
    "scanned": {"scanned": True, "positions": "relative", "kv_heads": 2},
    "after": {"norm_place": "after", "norm": "layer"},
    "mixture": {"moe_every": 2},
    "mixtures": {"moe_every": 1, "scanned": True},
}
BY_HEADS, BY_MEMORY = "batch:x; heads:y; vocab:y; d_ff:y", "kv_length:x; d_model:y"


def mixture(*args, **kwargs):
    """Returns a mixture of experts that drops nothing."""
    gating = functools.partial(switch, capacity=Capacity(evaluate=None))
    return MixtureOfExperts(*args, **kwargs, experts=2, gating=gating)


def architecture(kind, **changes):
    return Architecture(**SIZES | KINDS[kind] | changes, mixture=mixture)


def text(rng, length, batch=BATCH):
    return rng.integers(1, SIZES["vocab"], (batch, length)).astype("int32")


def mesh_of(layout):
    return mtf.Mesh("x:2;y:2", layout) if layout else mtf.Mesh("")


def walk(model, tokens, start):
    """Returns logits [batch length vocab], one position after the other."""

    def step(cache, inputs):
        logits, cache = model.decode_step(*inputs, cache)
        return cache, logits

    length = tokens.shape.dim("length")
    _, logits = mtf.scan(step, start, (mtf.range(model.mesh, length), tokens), "length")
    return mtf.transpose(logits, ["batch", "length", "vocab"])


def both(kind, layout, tokens, **changes):
    """Returns a language model's logits, all at once and one after the other."""
    model = LanguageModel(mesh_of(layout), architecture(kind, **changes))

    @mtf.function(mesh=model.mesh, tokens="batch;length")
    def run(tokens):
        batch, length = tokens.shape.without("length"), tokens.shape["length"]
        return model(tokens), walk(model, tokens, model.init_cache(batch, length))

    return [x.numpy() for x in run(tokens)]


@pytest.mark.sampled(6, each="layout")
@pytest.mark.parametrize(
    "kind, layout",
    [
        *((kind, layout) for kind in KINDS for layout in ("", BY_HEADS)),
        *((kind, BY_MEMORY) for kind in ("rotary", "relative", "local", "scanned")),
    ],
)
def test_steps_give_the_logits_of_a_forward_pass(rng, kind, layout):
    full, stepped = both(kind, layout, text(rng, LENGTH))
    assert full.std() > 0.1
    np.testing.assert_allclose(stepped, full, rtol=1e-4, atol=1e-5)


def after(model, tokens, read, **settings):
    """Returns logits [batch length vocab] of what follows after `read` ids of each row,
    in one go.
    """

    @mtf.function(mesh=model.mesh, tokens="batch;length", read="batch")
    def run(tokens, read):
        batch, length = tokens.shape.without("length"), tokens.shape.dim("length")
        cache = model.init_cache(batch, length.size, settings.get("window"))
        cache = model.prefill(tokens, cache, read, settings.get("prefix", False))

        def step(cache, step):
            position = mtf.minimum(read + step, length.size - 1)
            ids = mtf.gather(tokens, position, "length")
            logits, cache = model.decode_step(length.size + step, ids, cache)
            return cache, logits

        _, logits = mtf.scan(step, cache, mtf.range(model.mesh, length), "length")
        return mtf.transpose(logits, ["batch", "length", "vocab"])

    return run(tokens, np.array(read, "int32")).numpy()


@pytest.mark.sampled(8, each="layout")
@pytest.mark.parametrize(
    "kind, layout",
    [
        *((kind, layout) for kind in KINDS for layout in ("", BY_HEADS)),
        *((kind, BY_MEMORY) for kind in ("rotary", "relative", "local", "scanned")),
    ],
)
def test_prefill_equals_single_steps_for_each_kind(rng, kind, layout):
    model, tokens = (
        LanguageModel(mesh_of(layout), architecture(kind)),
        text(rng, LENGTH),
    )
    read = 3, 6
    full = mtf.function(model, mesh=model.mesh, tokens="batch;length")(tokens).numpy()
    for i, (results, start) in enumerate(zip(after(model, tokens, read), read)):
        np.testing.assert_allclose(
            results[: LENGTH - start], full[i, start:], rtol=1e-4, atol=1e-5
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["relative", "rotary", "scanned", "blockwise"])
def test_a_window_is_the_same_when_all_is_read_at_once(rng, kind):
    model, tokens, read = (
        LanguageModel(mesh_of(""), architecture(kind)),
        text(rng, LENGTH),
        (1, 6),
    )

    @mtf.function(mesh=model.mesh, tokens="batch;length")
    def stepped(tokens):
        return walk(
            model,
            tokens,
            model.init_cache(tokens.shape.without("length"), LENGTH, window=3),
        )

    expected = stepped(tokens).numpy()
    for i, (results, start) in enumerate(
        zip(after(model, tokens, read, window=3), read)
    ):
        np.testing.assert_allclose(
            results[: LENGTH - start], expected[i, start:], rtol=1e-4, atol=1e-5
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["rotary", "relative", "scanned", "mixture"])
def test_ids_of_a_prefix_see_those_after_them(rng, kind):
    model, tokens, read = (
        LanguageModel(mesh_of(""), architecture(kind)),
        text(rng, LENGTH),
        (2, 5),
    )
    prefix = np.arange(LENGTH) < np.array(read)[:, None]
    full = mtf.function(
        model, mesh=model.mesh, tokens="batch;length", prefix="batch;length"
    )(tokens, prefix=prefix).numpy()
    for i, (results, start) in enumerate(
        zip(after(model, tokens, read, prefix=True), read)
    ):
        np.testing.assert_allclose(
            results[: LENGTH - start], full[i, start:], rtol=1e-4, atol=1e-5
        )
    causal = after(model, tokens, read)
    assert np.abs(causal - after(model, tokens, read, prefix=True)).max() > 1e-3


def test_attention_in_blocks_reads_what_blocks_do_not_part(rng):
    for kind in ("local", "blockwise"):
        model = LanguageModel(mesh_of(""), architecture(kind, block_length=3))
        tokens, longer = text(rng, LENGTH), np.zeros((BATCH, 9), "int32")
        longer[:, :LENGTH] = tokens
        full = mtf.function(model, mesh=model.mesh, tokens="batch;length")(
            longer
        ).numpy()
        for i, results in enumerate(after(model, tokens, (4, 7))):
            start = (4, 7)[i]
            np.testing.assert_allclose(
                results[: LENGTH - start],
                full[i, start:LENGTH],
                rtol=1e-4,
                atol=1e-5,
            )


def test_steps_in_bfloat16_are_near(rng):
    full, stepped = both("grouped", "", text(rng, LENGTH), dtype="bfloat16")
    np.testing.assert_allclose(
        stepped.astype("float32"), full.astype("float32"), atol=0.1
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "kind, layout",
    [
        ("relative", ""),
        ("relative", BY_HEADS),
        ("relative", BY_MEMORY),
        ("scanned", BY_HEADS),
        ("after", ""),
        ("local", BY_HEADS),
    ],
)
def test_an_encoder_with_padding_is_looked_at_step_by_step(rng, kind, layout):
    model = EncoderDecoder(mesh_of(layout), architecture(kind))
    inputs, tokens = text(rng, INPUTS), text(rng, LENGTH)
    inputs[0, 4:] = 0

    @mtf.function(mesh=model.mesh, batch=model.features)
    def run(batch):
        batch_dims, length = (
            batch["tokens"].shape.without("length"),
            batch["tokens"].shape["length"],
        )
        encoded, _ = model.encode(batch)
        start = model.init_cache(batch_dims, length, encoded)
        return model(batch["inputs"], batch["tokens"]), walk(
            model, batch["tokens"], start
        )

    full, stepped = (x.numpy() for x in run({"inputs": inputs, "tokens": tokens}))
    np.testing.assert_allclose(stepped, full, rtol=1e-4, atol=1e-5)
    inputs[0, 4:] = [5, 6]
    assert (
        abs(run({"inputs": inputs, "tokens": tokens})[1].numpy()[0] - full[0]).max()
        > 1e-3
    )


@pytest.mark.parametrize("kind", ["relative", "sloped", "rotary"])
def test_a_window_sees_the_last_positions_alone(rng, kind):
    tokens = text(rng, LENGTH)
    model = LanguageModel(mtf.Mesh(""), architecture(kind, blocks=1))

    @mtf.function(mesh=model.mesh, tokens="batch;length")
    def windowed(tokens):
        return walk(
            model,
            tokens,
            model.init_cache(tokens.shape.without("length"), LENGTH, window=3),
        )

    seen = windowed(tokens).numpy()
    for at in range(LENGTH):  # of one block, what is not seen has no part in anything
        part = mtf.asarray(
            model.mesh, tokens[:, max(at - 2, 0) : at + 1], "batch;length"
        )
        np.testing.assert_allclose(
            seen[:, at], model(part).numpy()[:, -1], rtol=1e-4, atol=1e-5
        )


def test_too_many_positions_are_refused():
    model = LanguageModel(mtf.Mesh(""), architecture("learned"))
    with pytest.raises(mtf.ShapeError, match="9 tokens have more positions than the 8"):
        model.init_cache(mtf.Shape("batch:2"), 9)
