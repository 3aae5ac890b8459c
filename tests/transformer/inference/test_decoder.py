"""Decoders: prompts of different lengths, sampling and beam search, against full forward
passes, under every layout.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import meshtf as mtf
from transformer.inference.decoder import Decoder
from transformer.inference.prompts import PromptError
from transformer.inference.sample import sample
from transformer.models.architecture import Architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

SIZES = {
    "vocab": 8,
    "d_model": 16,
    "d_ff": 16,
    "heads": 4,
    "d_kv": 4,
    "blocks": 1,
    "tied": True,
    "scaled_logits": False,
}
PROMPTS = [[3], [5, 1, 7, 2], [6, 6], [1, 2, 3]]
MESHES = [
    ("", ""),
    ("x:2;y:2", "batch:x; heads:y; vocab:y; d_ff:y"),
    ("x:2;y:2", "batch:y; kv_length:x"),
    ("x:4", "length:x; vocab:x"),
]


def language_model(axes="", layout="", **changes):
    return LanguageModel(mtf.Mesh(axes, layout), Architecture(**SIZES | changes))


def encoder_decoder(axes="", layout=""):
    sizes = SIZES | {"tied": False, "positions": "relative"}
    return EncoderDecoder(mtf.Mesh(axes, layout), Architecture(**sizes))


def log_probs(model, ids, inputs=None):
    """Returns the log-probabilities of the next id, by a full forward pass."""
    tokens = mtf.asarray(model.mesh, np.array([ids], "int32"), "batch;length")
    if inputs is None:
        logits = model(tokens)
    else:
        inputs = mtf.asarray(
            model.mesh, np.array([inputs], "int32"), "batch;inputs_length"
        )
        logits = model(inputs, tokens)
    last = logits.numpy()[0, -1].astype("float64")
    return last - np.log(np.exp(last).sum())


def greedy(model, ids, max_new_tokens, inputs=None):
    """Returns the likeliest ids one after the other, and their log-probability."""
    new_ids = []
    score = 0.0
    for _ in range(max_new_tokens):
        next_log_probs = log_probs(model, [*ids, *new_ids], inputs)
        new_ids.append(int(next_log_probs.argmax()))
        score += next_log_probs.max()
    return new_ids, score


def test_greedy_decoding_of_prompts_of_any_length():
    model = language_model()
    decoder = Decoder(model, max_new_tokens=5, max_prompt_length=4, batch_size=4)
    for prompt, completion in zip(PROMPTS, decoder(PROMPTS)):
        ids, score = greedy(model, prompt, 5)
        assert completion.ids == ids
        assert completion.score == pytest.approx(score, rel=1e-4)


def test_greedy_decoding_of_an_encoder_decoder():
    model = encoder_decoder()
    decoder = Decoder(model, max_new_tokens=4, max_prompt_length=5, batch_size=3)
    for prompt, completion in zip(PROMPTS, decoder(PROMPTS)):
        ids, score = greedy(model, [0], 4, prompt)
        assert completion.ids == ids
        assert completion.score == pytest.approx(score, rel=1e-4)


def test_one_trace_serves_all_prompts_counts_and_seeds(monkeypatch):
    traced = []
    real = LanguageModel.decode_step
    monkeypatch.setattr(
        LanguageModel, "decode_step", lambda *args: traced.append(1) or real(*args)
    )
    decoder = Decoder(
        language_model(),
        max_new_tokens=4,
        max_prompt_length=4,
        batch_size=2,
        temperature=1.0,
    )
    assert [len(w.ids) for w in decoder(PROMPTS)] == [4] * 4
    assert [len(w.ids) for w in decoder(PROMPTS[:1], max_new_tokens=2, seed=3)] == [2]
    assert len(traced) == 1


def test_one_trace_serves_all_prompts_of_a_padded_length(monkeypatch):
    traced = []
    real = LanguageModel.prefill
    monkeypatch.setattr(
        LanguageModel,
        "prefill",
        lambda model, x, *args, **kwargs: (
            traced.append(x.shape["length"]) or real(model, x, *args, **kwargs)
        ),
    )
    decoder = Decoder(
        language_model(), max_new_tokens=2, max_prompt_length=40, batch_size=1
    )
    for length in (3, 1, 16, 17, 20, 32, 40, 33, 40, 5):
        decoder([[1] * length])
    assert traced == [16, 32, 40]


def prefill_by_steps(model, tokens, cache, lengths, prefix_lm=False):
    """Does what `LanguageModel.prefill` does, one position after the other."""
    length = tokens.shape.dim("length")
    padding = length.size - lengths

    def step(cache, step_index):
        positions = mtf.maximum(step_index - padding, 0)
        x = model.embeddings(mtf.gather(tokens, positions, "length"), positions)
        _, cache = model.decoder.decode_step(x, cache, step_index, positions)
        return cache, None

    blocks = cache.blocks
    block_cache = blocks[0] if isinstance(blocks, list) else blocks
    beam = block_cache.self_attention.keys.shape.only(["beam"])
    tokens = mtf.broadcast(tokens, tokens.shape + beam)
    steps = mtf.range(model.mesh, length)
    cache, _ = mtf.scan(step, cache, steps, "length")
    return cache._replace(padding=padding)


KINDS = {
    "relative": {"positions": "relative"},
    "learned": {"positions": "learned", "max_length": 32},
    "grouped": {"kv_heads": 2, "scanned": True, "blocks": 2},
    "local": {"attention": "local", "block_length": 2, "positions": "rotary"},
    "mixtures": {"moe_every": 1},
}


@pytest.mark.sampled(5, each="kind settings mesh")
@pytest.mark.parametrize("mesh", MESHES[:3:2], ids=str)
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.5, "eos_id": [2, 5]},
        {"num_beams": 3, "eos_id": 4},
        {"eos_id": 6, "bos_id": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_prefill_equals_single_steps(monkeypatch, kind, settings, mesh):
    def complete():
        model = language_model(*mesh, **KINDS[kind])
        decoder = Decoder(
            model, max_new_tokens=5, max_prompt_length=4, batch_size=4, **settings
        )
        return decoder(PROMPTS, seed=2)

    completions = complete()
    monkeypatch.setattr(LanguageModel, "prefill", prefill_by_steps)
    assert_equal_completions(completions, complete())


def assert_equal_completions(completions, expected):
    assert [c.ids for c in completions] == [c.ids for c in expected]
    np.testing.assert_allclose(
        [c.score for c in completions], [c.score for c in expected], rtol=1e-4
    )


def test_the_prompt_of_a_prefix_language_model_attends_both_ways():
    model = language_model(positions="relative", blocks=2)
    (completion,) = Decoder(
        model, max_new_tokens=5, max_prompt_length=4, batch_size=1, prefix_lm=True
    )([PROMPTS[1]])
    prompt_length = len(PROMPTS[1])
    ids = [*PROMPTS[1]]
    for _ in range(5):
        tokens = mtf.asarray(model.mesh, np.array([ids], "int32"), "batch;length")
        positions = mtf.range(model.mesh, tokens.shape.dim("length"))
        prefix = mtf.broadcast(positions < prompt_length, tokens.shape)
        ids.append(int(model(tokens, prefix=prefix).numpy()[0, -1].argmax()))
    assert completion.ids == ids[prompt_length:]


@pytest.mark.sampled(3, each="make settings")
@pytest.mark.parametrize("make", [language_model, encoder_decoder])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.5},
        {"temperature": 1.0, "top_k": 3, "top_p": 0.8},
        {"num_beams": 3, "eos_id": 4},
    ],
    ids=str,
)
def test_a_layout_changes_no_id(make, settings):
    results = []
    for mesh in MESHES:
        decoder = Decoder(
            make(*mesh), max_new_tokens=5, max_prompt_length=4, batch_size=4, **settings
        )
        results.append(decoder(PROMPTS, seed=2))
    assert len({c.score for c in results[0]}) > 1
    for completions in results[1:]:
        assert_equal_completions(completions, results[0])


def test_enough_beams_find_the_best_of_all_sequences():
    model = language_model(vocab=4)
    eos_id = 2
    max_new_tokens = 3
    decoder = Decoder(
        model,
        max_new_tokens=max_new_tokens,
        max_prompt_length=3,
        batch_size=2,
        num_beams=40,
        alpha=1.0,
        eos_id=eos_id,
    )
    prompts = [[3], [0, 1, 3]]
    for prompt, completion in zip(prompts, decoder(prompts)):
        best = (-np.inf, None)
        for length in range(max_new_tokens):
            for ids in itertools.product([0, 1, 3], repeat=length):
                text = [*prompt, *ids, eos_id]
                score = sum(
                    log_probs(model, text[:i])[text[i]]
                    for i in range(len(prompt), len(text))
                )
                best = max(best, (score / ((6 + length) / 6), ids))
        assert tuple(completion.ids) == best[1]
        assert completion.score == pytest.approx(best[0], rel=1e-4)


def test_ids_depend_on_seed_and_index():
    decoder = Decoder(
        language_model(),
        max_new_tokens=8,
        max_prompt_length=1,
        batch_size=2,
        temperature=2.0,
    )
    draws, repeated, other_seed = (
        [tuple(w.ids) for w in decoder([[3]] * 4, seed=seed)] for seed in (1, 1, 2)
    )
    assert draws == repeated
    assert len({*draws}) > 2
    assert draws != other_seed


@pytest.mark.parametrize("num_beams", [0, 2])
def test_ids_after_the_first_eos_id_are_dropped(num_beams):
    model = language_model()
    ids, _ = greedy(model, [3], 6)
    eos_ids = [next(i for i in range(8) if i not in ids), ids[3]]
    if num_beams:
        eos_ids = list(range(8))  # all end at once
    (completion,) = Decoder(
        model,
        max_new_tokens=6,
        max_prompt_length=1,
        batch_size=1,
        eos_id=eos_ids,
        num_beams=num_beams,
    )([[3]])
    assert completion.ids == ([] if num_beams else ids[: ids.index(ids[3])])


def test_ids_beyond_vocab_size_are_never_generated():
    model = language_model()
    unlimited = Decoder(
        model, max_new_tokens=20, max_prompt_length=1, batch_size=1, temperature=5.0
    )([[3]])
    limited = Decoder(
        model,
        max_new_tokens=20,
        max_prompt_length=1,
        batch_size=1,
        temperature=5.0,
        vocab_size=4,
    )([[3]])
    assert max(unlimited[0].ids) >= 4 > max(limited[0].ids)


def test_bos_id_precedes_every_prompt():
    model = language_model()
    decoder = Decoder(
        model, max_new_tokens=3, max_prompt_length=2, batch_size=2, bos_id=7
    )
    assert [w.ids for w in decoder([[], [2, 3]])] == [
        greedy(model, ids, 3)[0] for ids in ([7], [7, 2, 3])
    ]


def test_long_prompts_are_refused_or_truncated():
    model = language_model()
    with pytest.raises(
        PromptError,
        match="prompt 2 has 4 ids, more than max_prompt_length=3(.|\n)*truncate=Tr",
    ):
        Decoder(model, max_new_tokens=2, max_prompt_length=3)(PROMPTS)
    (completion,) = Decoder(
        model, max_new_tokens=2, max_prompt_length=3, truncate=True
    )([PROMPTS[1]])
    assert completion.ids == greedy(model, PROMPTS[1][1:], 2)[0]
    model = encoder_decoder()
    (completion,) = Decoder(
        model, max_new_tokens=2, max_prompt_length=3, truncate=True
    )([PROMPTS[1]])
    assert completion.ids == greedy(model, [0], 2, PROMPTS[1][:3])[0]


@pytest.mark.parametrize(
    "prompt, message",
    [
        ([], "prompt 1 is empty(.|\n)*at least one id"),
        ([-1], "has the id -1"),
        ([3, 8], "has the id 8; the model's are 0 to 7"),
    ],
)
def test_illegal_prompts_are_refused(prompt, message):
    with pytest.raises(PromptError, match=message):
        Decoder(language_model())([prompt])


def test_settings_out_of_range_are_refused():
    with pytest.raises(mtf.PlanError, match="max_new_tokens=0"):
        Decoder(language_model(), max_new_tokens=0)
    with pytest.raises(
        mtf.PlanError, match="max_new_tokens=9, but the decoder generates 1 to 5"
    ):
        Decoder(language_model(), max_new_tokens=5)([[1]], max_new_tokens=9)
    with pytest.raises(mtf.PlanError, match="top_p is above 0"):
        Decoder(language_model(), temperature=1.0, top_p=2.0)([[1]])
    with pytest.raises(mtf.ShapeError, match="the 8 learned"):
        Decoder(language_model(positions="learned", max_length=8), max_new_tokens=8)(
            [[1]]
        )


def test_samples_are_longer_than_the_attention_window():
    model = language_model(vocab=256, positions="learned", max_length=16)
    assert (
        len(sample(model, 8, "def ", max_new_tokens=40, temperature=0.0).encode()) > 4
    )
    model = language_model(vocab=256)
    short, long = (
        sample(model, 6, "def ", max_new_tokens=n, temperature=0.0) for n in (4, 12)
    )
    assert long.startswith(short.rstrip("\ufffd"))
