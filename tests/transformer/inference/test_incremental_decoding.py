"""Decoding with caches returns the logits of a full forward pass, for every kind of norm,
positions and attention.
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
    "local": {"attention": "local", "block_length": 2},
    "multi-query": {"kv_heads": 1, "activation": "swiglu"},
    "grouped": {"kv_heads": 2, "positions": "sloped"},
    "scanned": {"scanned": True, "positions": "relative", "kv_heads": 2},
    "after": {"norm_place": "after", "norm": "layer"},
    "mixture": {"moe_every": 2},
    "mixtures": {"moe_every": 1, "scanned": True},
}
BY_HEADS, BY_MEMORY = "batch:x; heads:y; vocab:y; d_ff:y", "memory_length:x; d_model:y"


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


def step_by_step(model, tokens, cache):
    """Returns logits [batch, length, vocab], by one decoding step for each position."""

    def step(cache, inputs):
        position, ids = inputs
        logits, cache = model.step(position, ids, cache)
        return cache, logits

    positions = mtf.range(model.mesh, tokens.shape.dim("length"))
    _, logits = mtf.scan(step, cache, (positions, tokens), "length")
    return mtf.transpose(logits, ["batch", "length", "vocab"])


def both(kind, layout, tokens, **changes):
    """Returns a language model's logits, of a forward pass and of decoding steps."""
    model = LanguageModel(mesh_of(layout), architecture(kind, **changes))

    @mtf.function(mesh=model.mesh, tokens="batch;length")
    def run(tokens):
        batch, length = tokens.shape.without("length"), tokens.shape["length"]
        return model(tokens), step_by_step(model, tokens, model.start(batch, length))

    return [x.numpy() for x in run(tokens)]


@pytest.mark.sampled(14, each="kind layout")
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


def after_prefill(model, tokens, lengths, **settings):
    """Returns logits [batch, length, vocab] of steps after a prefill of the first `lengths`
    ids of each example.
    """

    @mtf.function(mesh=model.mesh, tokens="batch;length", lengths="batch")
    def run(tokens, lengths):
        batch, length = tokens.shape.without("length"), tokens.shape.dim("length")
        cache = model.start(batch, length.size, settings.get("window"))
        cache = model.prefill(tokens, cache, lengths, settings.get("prefix", False))

        def step(cache, step_index):
            index = mtf.minimum(lengths + step_index, length.size - 1)
            ids = mtf.gather(tokens, index, "length")
            logits, cache = model.step(length.size + step_index, ids, cache)
            return cache, logits

        _, logits = mtf.scan(step, cache, mtf.range(model.mesh, length), "length")
        return mtf.transpose(logits, ["batch", "length", "vocab"])

    return run(tokens, np.array(lengths, "int32")).numpy()


@pytest.mark.sampled(14, each="kind layout")
@pytest.mark.parametrize(
    "kind, layout",
    [
        *((kind, layout) for kind in KINDS for layout in ("", BY_HEADS)),
        *((kind, BY_MEMORY) for kind in ("rotary", "relative", "local", "scanned")),
    ],
)
def test_prefill_fills_the_cache_as_steps_do(rng, kind, layout):
    model = LanguageModel(mesh_of(layout), architecture(kind))
    tokens = text(rng, LENGTH)
    lengths = (3, 6)
    full = mtf.function(model, mesh=model.mesh, tokens="batch;length")(tokens).numpy()
    assert_continues(after_prefill(model, tokens, lengths), full, lengths)


def assert_continues(logits, full, lengths):
    """Compares logits of steps after a prefill to those of all positions."""
    for example_logits, example_full, start in zip(logits, full, lengths):
        count = len(example_full) - start
        np.testing.assert_allclose(
            example_logits[:count], example_full[start:], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("kind", ["relative", "rotary", "scanned", "blockwise"])
def test_a_window_is_the_same_after_a_prefill(rng, kind):
    model = LanguageModel(mesh_of(""), architecture(kind))
    tokens = text(rng, LENGTH)
    lengths = (1, 6)

    @mtf.function(mesh=model.mesh, tokens="batch;length")
    def stepped(tokens):
        return step_by_step(
            model, tokens, model.start(tokens.shape.without("length"), LENGTH, window=3)
        )

    expected = stepped(tokens).numpy()
    logits = after_prefill(model, tokens, lengths, window=3)
    assert_continues(logits, expected, lengths)


@pytest.mark.parametrize("kind", ["rotary", "relative", "scanned", "mixture"])
def test_ids_of_a_prefix_attend_to_later_ones(rng, kind):
    model = LanguageModel(mesh_of(""), architecture(kind))
    tokens = text(rng, LENGTH)
    lengths = (2, 5)
    prefix = np.arange(LENGTH) < np.array(lengths)[:, None]
    full = mtf.function(
        model, mesh=model.mesh, tokens="batch;length", prefix="batch;length"
    )(tokens, prefix=prefix).numpy()
    with_prefix = after_prefill(model, tokens, lengths, prefix=True)
    assert_continues(with_prefix, full, lengths)
    causal = after_prefill(model, tokens, lengths)
    assert np.abs(causal - with_prefix).max() > 1e-3


def test_attention_in_blocks_pads_lengths_that_blocks_do_not_divide(rng):
    for kind in ("local", "blockwise"):
        model = LanguageModel(mesh_of(""), architecture(kind, block_length=3))
        tokens = text(rng, LENGTH)
        padded = np.zeros((BATCH, 9), "int32")
        padded[:, :LENGTH] = tokens
        lengths = (4, 7)
        full = mtf.function(model, mesh=model.mesh, tokens="batch;length")(
            padded
        ).numpy()
        logits = after_prefill(model, tokens, lengths)
        assert_continues(logits, full[:, :LENGTH], lengths)


def test_steps_in_bfloat16_are_near(rng):
    full, stepped = both("grouped", "", text(rng, LENGTH), dtype="bfloat16")
    np.testing.assert_allclose(
        stepped.astype("float32"), full.astype("float32"), atol=0.1
    )


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
def test_steps_attend_to_an_encoder_with_padding(rng, kind, layout):
    model = EncoderDecoder(mesh_of(layout), architecture(kind))
    inputs, tokens = text(rng, INPUTS), text(rng, LENGTH)
    inputs[0, 4:] = 0

    @mtf.function(mesh=model.mesh, batch=model.features)
    def run(batch):
        tokens = batch["tokens"]
        examples = tokens.shape.without("length")
        encoded, _ = model.encode(batch)
        cache = model.start(examples, tokens.shape["length"], encoded)
        logits = model(batch["inputs"], tokens)
        return logits, step_by_step(model, tokens, cache)

    full, stepped = (x.numpy() for x in run({"inputs": inputs, "tokens": tokens}))
    np.testing.assert_allclose(stepped, full, rtol=1e-4, atol=1e-5)
    inputs[0, 4:] = [5, 6]
    _, without_padding = run({"inputs": inputs, "tokens": tokens})
    assert abs(without_padding.numpy()[0] - full[0]).max() > 1e-3


@pytest.mark.parametrize("kind", ["relative", "sloped", "rotary"])
def test_a_window_attends_to_the_last_positions_only(rng, kind):
    tokens = text(rng, LENGTH)
    model = LanguageModel(mtf.Mesh(""), architecture(kind, blocks=1))

    @mtf.function(mesh=model.mesh, tokens="batch;length")
    def windowed(tokens):
        return step_by_step(
            model, tokens, model.start(tokens.shape.without("length"), LENGTH, window=3)
        )

    logits = windowed(tokens).numpy()
    for position in range(LENGTH):  # one block: no other positions have any influence
        window = mtf.import_tensor(
            model.mesh, tokens[:, max(position - 2, 0) : position + 1], "batch;length"
        )
        expected = model(window).numpy()[:, -1]
        np.testing.assert_allclose(logits[:, position], expected, rtol=1e-4, atol=1e-5)


def test_more_positions_than_learned_positions_are_refused():
    model = LanguageModel(mtf.Mesh(""), architecture("learned"))
    with pytest.raises(mtf.ShapeError, match="9 tokens have more positions than the 8"):
        model.start(mtf.Shape("batch:2"), 9)
