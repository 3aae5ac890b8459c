"""Illegal settings of mixtures of experts are refused by name, before anything runs."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.experts.test_moe_layer import accumulated
from tests.transformer.small_runs import run_train, small
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.experts.routing import Capacity
from transformer.models.architecture import Architecture
from transformer.models.bert import Classifier
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

SIZES = {"vocab": 16, "d_model": 16, "d_ff": 16, "heads": 2, "d_kv": 8, "blocks": 2}
IDS = np.arange(16, dtype="int32").reshape(2, 8)
GATES = {
    "top_k.k is 9": functools.partial(gating.top_k, k=9),
    "expert_choice.k is 9": functools.partial(gating.expert_choice, k=9),
}


def architecture(gate, experts=8, **more):
    mixture = functools.partial(MixtureOfExperts, gating=gate, experts=experts)
    return Architecture(**SIZES, mixture=mixture, **{"moe_every": 1} | more)


def tokens(mesh, names="batch;length"):
    return mtf.asarray(mesh, IDS, names)


@pytest.mark.parametrize("more", [{}, {"scanned": True}, {"recompute": True}], ids=str)
def test_experts_choose_no_tokens_in_a_decoder(more):
    mesh, a = mtf.Mesh(""), architecture(gating.expert_choice, **more)
    with pytest.raises(
        mtf.PlanError, match="expert_choice(.|\n)*in a decoder(.|\n)*@top_k"
    ):
        LanguageModel(mesh, a)(tokens(mesh))
    with pytest.raises(mtf.PlanError, match="in a decoder"):
        EncoderDecoder(mesh, a)(tokens(mesh, "batch;inputs_length"), tokens(mesh))


def test_a_pipeline_of_such_a_decoder_is_refused():
    mesh = mtf.Mesh("stage:2", "layers:stage", microbatches=2)
    a = architecture(gating.expert_choice, scanned=True)
    with pytest.raises(mtf.PlanError, match="in a decoder"):
        LanguageModel(mesh, a)(tokens(mesh))


def test_experts_choose_tokens_in_an_encoder():
    mesh, a = (
        mtf.Mesh(""),
        architecture(gating.expert_choice, token_types=2, positions="learned"),
    )
    logits, _ = Classifier(mesh, a)({"tokens": tokens(mesh)})
    assert np.isfinite(logits.numpy()).all()
    a = architecture(gating.expert_choice)
    both = EncoderDecoder(mesh, a, decoder=Architecture(**SIZES))
    logits = both(tokens(mesh, "batch;inputs_length"), tokens(mesh))
    assert np.isfinite(logits.numpy()).all()


@pytest.mark.parametrize("says", GATES)
def test_k_is_at_most_the_count_of_experts(says):
    layer = MixtureOfExperts(mtf.Mesh(""), "d_model:4", "d_ff:4", gating=GATES[says])
    with pytest.raises(
        mtf.ShapeError, match=f"{says}, but there are 8 experts(.|\n)*smaller k"
    ):
        layer(mtf.zeros(layer.router.kernel.mesh, "batch:2;length:4;d_model:4"))


@pytest.mark.parametrize("k", [0, -1, 1.0, True, "two"])
@pytest.mark.parametrize("gate", [gating.top_k, gating.expert_choice])
def test_k_is_an_integer(gate, k):
    layer = MixtureOfExperts(
        mtf.Mesh(""), "d_model:4", "d_ff:4", gating=functools.partial(gate, k=k)
    )
    with pytest.raises(mtf.ParseError, match=f".k is {k!r}: it must be an integer"):
        layer(mtf.zeros(layer.router.kernel.mesh, "batch:2;length:4;d_model:4"))


@pytest.mark.parametrize(
    "name, value, minimum",
    [
        ("experts", 0, 1),
        ("experts", "eight", 1),
        ("experts", 2.0, 1),
        ("shared_experts", -1, 0),
        ("group_size", 0, 1),
        ("group_size", "x", 1),
    ],
)
def test_counts_are_integers(name, value, minimum):
    with pytest.raises(
        mtf.ParseError,
        match=f"MixtureOfExperts.{name} is {value!r}: it must be an integer, at least "
        f"{minimum}",
    ):
        MixtureOfExperts(mtf.Mesh(""), "d_model:4", "d_ff:4", **{name: value})


@pytest.mark.parametrize("settings", [{"multiple": 0}, {"minimum": -1}], ids=str)
def test_slots_are_counted_in_integers(settings):
    ((name, value),) = settings.items()
    with pytest.raises(mtf.ParseError, match=f"Capacity.{name} is {value}: it must be"):
        Capacity(**settings)


def test_no_block_would_have_a_mixture():
    with pytest.raises(
        mtf.ParseError, match="moe_every is 3, and there are 2 blocks(.|\n)*1 to 2"
    ):
        Architecture(**SIZES, moe_every=3)
    Architecture(**SIZES, moe_every=2)


@pytest.mark.parametrize(
    "lines, says",
    [
        (
            ["MixtureOfExperts.gating = @expert_choice"],
            "PlanError: experts choose among tokens",
        ),
        (
            ["MixtureOfExperts.gating = @top_k", "top_k.k = 9"],
            "ShapeError: top_k.k is 9",
        ),
        (["MixtureOfExperts.dispatch = 'nope'"], "ParseError: dispatch is"),
        (
            ["MixtureOfExperts.experts = 0"],
            "ParseError: MixtureOfExperts.experts is 0: it must be an integer",
        ),
        (
            ["MixtureOfExperts.gating = @top_2", "top_2.convention = 'nope'"],
            "ParseError: expected one of 'practice', 'published'",
        ),
    ],
)
def test_the_command_refuses_it_before_anything_runs(tmp_path, capsys, lines, says):
    params = small(tmp_path, *lines, "Architecture.moe_every = 1")
    code, out, err = run_train(
        capsys, tmp_path / "run", params, ("lm_stdlib.gin", "moe.gin")
    )
    assert code == 1 and not out and says in err and "Traceback" not in err, err
    assert not (tmp_path / "run").exists()


def test_microbatches_that_would_cut_groups_are_refused():
    with pytest.raises(
        mtf.ShapeError, match="microbatches would split groups of 32 tokens"
    ):
        accumulated(2, 32)


def test_other_ways_to_dispatch_are_refused():
    with pytest.raises(ValueError, match="dispatch is"):
        MixtureOfExperts(mtf.Mesh(""), "d_model:4", "d_ff:4", dispatch="sort")
