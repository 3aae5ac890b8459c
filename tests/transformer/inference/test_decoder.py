"""Decoders: ragged prompts, drawn and searched, against full forward passes, under
every layout.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import meshtf as mtf
from transformer.inference.decoder import Decoder, PromptError
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
    """Returns log-probabilities of what follows ids, by a full forward pass."""
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


def greedy(model, ids, number, inputs=None):
    """Returns the likeliest ids one after the other, and their log-probability."""
    found, score = list(ids), 0.0
    for _ in range(number):
        after = log_probs(model, found, inputs)
        found.append(int(after.argmax()))
        score += after.max()
    return found[len(ids) :], score


def test_the_likeliest_ids_follow_prompts_of_any_length():
    model = language_model()
    decoder = Decoder(model, max_new_tokens=5, prompt_length=4, batch_size=4)
    for prompt, written in zip(PROMPTS, decoder(PROMPTS)):
        ids, score = greedy(model, prompt, 5)
        assert written.ids == ids
        assert written.score == pytest.approx(score, rel=1e-4)


def test_an_encoder_reads_prompts_of_any_length():
    model = encoder_decoder()
    decoder = Decoder(model, max_new_tokens=4, prompt_length=5, batch_size=3)
    for prompt, written in zip(PROMPTS, decoder(PROMPTS)):
        ids, score = greedy(model, [0], 4, prompt)
        assert written.ids == ids
        assert written.score == pytest.approx(score, rel=1e-4)


def test_one_trace_serves_all_prompts_numbers_and_seeds(monkeypatch):
    traced = []
    real = LanguageModel.decode_step
    monkeypatch.setattr(
        LanguageModel, "decode_step", lambda *args: traced.append(1) or real(*args)
    )
    decoder = Decoder(
        language_model(),
        max_new_tokens=4,
        prompt_length=4,
        batch_size=2,
        temperature=1.0,
    )
    assert [len(w.ids) for w in decoder(PROMPTS)] == [4] * 4
    assert [len(w.ids) for w in decoder(PROMPTS[:1], max_new_tokens=2, seed=3)] == [2]
    assert len(traced) == 1


def test_one_trace_serves_all_prompts_of_a_size(monkeypatch):
    traced = []
    real = LanguageModel.prefill
    monkeypatch.setattr(
        LanguageModel,
        "prefill",
        lambda model, x, *args: (
            traced.append(x.shape["length"]) or real(model, x, *args)
        ),
    )
    decoder = Decoder(
        language_model(), max_new_tokens=2, prompt_length=40, batch_size=1
    )
    for length in (3, 1, 16, 17, 20, 32, 40, 33, 40, 5):
        decoder([[1] * length])
    assert traced == [16, 32, 40]


def by_steps(model, tokens, cache, lengths, prefix=False):
    """Returns what `LanguageModel.prefill` does, one position after the other."""
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


@pytest.mark.sampled(11, each="kind settings mesh")
@pytest.mark.parametrize("mesh", MESHES[:3:2], ids=str)
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.5, "eos_id": [2, 5]},
        {"beams": 3, "eos_id": 4},
        {"eos_id": 6, "bos_id": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_read_at_once_as_by_steps(monkeypatch, kind, settings, mesh):
    def written():
        model = language_model(*mesh, **KINDS[kind])
        return Decoder(
            model, max_new_tokens=5, prompt_length=4, batch_size=4, **settings
        )(PROMPTS, seed=2)

    found = written()
    monkeypatch.setattr(LanguageModel, "prefill", by_steps)
    wanted = written()
    assert [w.ids for w in found] == [w.ids for w in wanted]
    np.testing.assert_allclose(
        [w.score for w in found], [w.score for w in wanted], rtol=1e-4
    )


def test_prompts_that_are_a_prefix_see_both_ways():
    model = language_model(positions="relative", blocks=2)
    (written,) = Decoder(
        model, max_new_tokens=5, prompt_length=4, batch_size=1, prefix=True
    )([PROMPTS[1]])
    found = [*PROMPTS[1]]
    for _ in range(5):
        tokens = mtf.asarray(model.mesh, np.array([found], "int32"), "batch;length")
        prefix = mtf.range(model.mesh, tokens.shape.dim("length")) < len(PROMPTS[1])
        prefix = mtf.broadcast(prefix, tokens.shape)
        found.append(int(model(tokens, prefix=prefix).numpy()[0, -1].argmax()))
    assert written.ids == found[len(PROMPTS[1]) :]


@pytest.mark.sampled(3, each="make settings")
@pytest.mark.parametrize("make", [language_model, encoder_decoder])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.5},
        {"temperature": 1.0, "top_k": 3, "top_p": 0.8},
        {"beams": 3, "eos_id": 4},
    ],
    ids=str,
)
def test_a_layout_changes_no_id(make, settings):
    found = [
        Decoder(
            make(*mesh), max_new_tokens=5, prompt_length=4, batch_size=4, **settings
        )(PROMPTS, seed=2)
        for mesh in MESHES
    ]
    assert len({w.score for w in found[0]}) > 1
    for other in found[1:]:
        assert [w.ids for w in other] == [w.ids for w in found[0]]
        np.testing.assert_allclose(
            [w.score for w in other], [w.score for w in found[0]], rtol=1e-4
        )


def test_enough_beams_find_the_best_of_all_texts():
    model, end, number = language_model(vocab=4), 2, 3
    decoder = Decoder(
        model,
        max_new_tokens=number,
        prompt_length=3,
        batch_size=2,
        beams=40,
        alpha=1.0,
        eos_id=end,
    )
    prompts = [[3], [0, 1, 3]]
    for prompt, written in zip(prompts, decoder(prompts)):
        best = (-np.inf, None)
        for length in range(number):
            for ids in itertools.product([0, 1, 3], repeat=length):
                text = [*prompt, *ids, end]
                score = sum(
                    log_probs(model, text[:i])[text[i]]
                    for i in range(len(prompt), len(text))
                )
                best = max(best, (score / ((6 + length) / 6), ids))
        assert tuple(written.ids) == best[1]
        assert written.score == pytest.approx(best[0], rel=1e-4)


def test_seeds_and_places_draw_other_ids():
    decoder = Decoder(
        language_model(),
        max_new_tokens=8,
        prompt_length=1,
        batch_size=2,
        temperature=2.0,
    )
    first, again, other = (
        [tuple(w.ids) for w in decoder([[3]] * 4, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again
    assert len({*first}) > 2
    assert first != other


@pytest.mark.parametrize("beams", [0, 2])
def test_ids_that_end_a_text_are_left_out(beams):
    model = language_model()
    ids, _ = greedy(model, [3], 6)
    ends = [next(i for i in range(8) if i not in ids), ids[3]]
    if beams:
        ends = list(range(8))  # all end at once
    (written,) = Decoder(
        model, max_new_tokens=6, prompt_length=1, batch_size=1, eos_id=ends, beams=beams
    )([[3]])
    assert written.ids == ([] if beams else ids[: ids.index(ids[3])])


def test_nothing_is_written_beyond_the_vocabulary():
    model = language_model()
    free = Decoder(
        model, max_new_tokens=20, prompt_length=1, batch_size=1, temperature=5.0
    )([[3]])
    some = Decoder(
        model,
        max_new_tokens=20,
        prompt_length=1,
        batch_size=1,
        temperature=5.0,
        vocab=4,
    )([[3]])
    assert max(free[0].ids) >= 4 > max(some[0].ids)


def test_a_beginning_comes_before_every_prompt():
    model = language_model()
    decoder = Decoder(model, max_new_tokens=3, prompt_length=2, batch_size=2, bos_id=7)
    assert [w.ids for w in decoder([[], [2, 3]])] == [
        greedy(model, ids, 3)[0] for ids in ([7], [7, 2, 3])
    ]


def test_what_is_too_long_is_refused_or_cut():
    model = language_model()
    with pytest.raises(
        PromptError,
        match="prompt 2 has 4 ids, and there is room for 3(.|\n)*truncate=Tr",
    ):
        Decoder(model, max_new_tokens=2, prompt_length=3)(PROMPTS)
    (written,) = Decoder(model, max_new_tokens=2, prompt_length=3, truncate=True)(
        [PROMPTS[1]]
    )
    assert written.ids == greedy(model, PROMPTS[1][1:], 2)[0]
    model = encoder_decoder()
    (written,) = Decoder(model, max_new_tokens=2, prompt_length=3, truncate=True)(
        [PROMPTS[1]]
    )
    assert written.ids == greedy(model, [0], 2, PROMPTS[1][:3])[0]


@pytest.mark.parametrize(
    "prompt, complaint",
    [
        ([], "prompt 1 is empty(.|\n)*at least one id"),
        ([-1], "has the id -1"),
        ([3, 8], "has the id 8; the model's are 0 to 7"),
    ],
)
def test_prompts_that_no_model_reads_are_refused(prompt, complaint):
    with pytest.raises(PromptError, match=complaint):
        Decoder(language_model())([prompt])


def test_settings_out_of_range_are_refused():
    with pytest.raises(mtf.PlanError, match="max_new_tokens=0"):
        Decoder(language_model(), max_new_tokens=0)
    with pytest.raises(
        mtf.PlanError, match="9 ids cannot be written by a decoder made for 1 to 5"
    ):
        Decoder(language_model(), max_new_tokens=5)([[1]], max_new_tokens=9)
    with pytest.raises(mtf.PlanError, match="top_p is above 0"):
        Decoder(language_model(), temperature=1.0, top_p=2.0)([[1]])
    with pytest.raises(mtf.ShapeError, match="the 8 learned"):
        Decoder(language_model(positions="learned", max_length=8), max_new_tokens=8)(
            [[1]]
        )


def test_samples_go_on_beyond_the_length_of_a_window():
    model = language_model(vocab=256, positions="learned", max_length=16)
    assert (
        len(sample(model, 8, "def ", max_new_tokens=40, temperature=0.0).encode()) > 4
    )
    model = language_model(vocab=256)
    short, long = (
        sample(model, 6, "def ", max_new_tokens=n, temperature=0.0) for n in (4, 12)
    )
    assert long.startswith(short.rstrip("\ufffd"))
