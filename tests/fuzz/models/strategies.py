"""Strategies of drawn training runs: models, batches, and the ways to run them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fuzz.models import batches
from tests.fuzz.models.training import MODELS, OPTIMIZERS, Training
from tests.fuzz.program import Mesh

MODES = ("function", "live")
PIPELINE = "pipelined_model"
# Layouts of whole models by axes; each rule of which is drawn or left out.
AXES = ("", "data:2", "data:4", "data:2;model:2", "data:3", "model:2")
RULES = ("batch:data", "heads:model", "d_ff:model", "vocab:model", "experts:data")
STAGED_AXES = ("stage:2", "stage:2;data:2")
STACKED = "layers:data"
IN_STAGES = "layers:stage"  # makes scanned blocks a pipeline


@st.composite
def models(draw: st.DrawFn, mode: str, model: str) -> Training:
    """Returns a training run of a model."""
    in_stages = model == PIPELINE
    kind = "language_model" if in_stages else model
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    settings = _settings(draw, kind)
    has_dropout = "dropout" in settings
    # Scanned blocks draw other masks, since each is an iteration and no path.
    if in_stages:
        settings.pop("dropout", None)
        has_dropout = False
    scanned = in_stages or (not has_dropout and pick(True, False))
    experts = pick(0, 0, 4) if settings.get("attention") is None else 0
    has_padding = kind == "language_model" and not has_dropout
    # Ring attention has chunks of equal lengths.
    padding = pick(0, 4) if has_padding else 0
    examples = 0 if has_dropout else pick(0, 0, 4)
    weights = pick(*batches.WEIGHTS)
    return Training(
        model=kind,
        settings=settings,
        experts=experts,
        optimizer=pick(*OPTIMIZERS),
        weights=weights,
        segments=kind.startswith(("language", "encoder")) and pick(True, False),
        seed=draw(st.integers(0, 10**6)),
        mesh=_mesh(draw, mode, in_stages, scanned=scanned, experts=experts),
        microbatches=1 if in_stages else pick(1, 2, 4),
        scanned=scanned,
        recompute=pick(True, False),
        padding=padding,
        examples=examples,
        ignored=weights != "floats" and pick(True, False),
        copied=mode == "function" and not in_stages and pick(True, False, False),
    )


def _settings(draw: st.DrawFn, model: str) -> dict[str, Any]:
    """Returns what differs from the default architecture."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    settings: dict[str, Any] = {}
    if pick(True, False):
        settings["dropout"] = 0.2
    if model in ("language_model", "encoder_decoder"):
        settings["positions"] = pick("rotary", "relative", "learned", "none")
        settings["norm"] = pick("rms", "layer")
        settings["tied"] = pick(True, False)
        settings["use_bias"] = pick(True, False)
        attention = pick(
            "full", "full", "blockwise", "ring", "all_to_all", "context_parallel"
        )
        if attention != "full":
            settings |= {"attention": attention, "block_length": 4}
    return settings


def _mesh(
    draw: st.DrawFn, mode: str, in_stages: bool, scanned: bool, experts: int
) -> Mesh:
    """Returns a mesh and a layout, whose rules may miss dimensions of the model."""
    axes = draw(st.sampled_from(STAGED_AXES if in_stages else AXES))
    names = [item.split(":")[0] for item in axes.split(";") if item]
    rules = [
        rule
        for rule in RULES
        if rule.split(":")[1] in names and draw(st.sampled_from([True, True, False]))
    ]
    if not experts and "experts:data" in rules:
        rules.remove("experts:data")
    if "data" in names and "batch:data" not in rules and draw(st.booleans()):
        rules = [rule for rule in rules if "data" not in rule] + ["length:data"]
    if in_stages:
        rules.append(IN_STAGES)
    stored = []
    stacked = STACKED if scanned and not in_stages else "d_kv:data"
    for rule in ("d_model:data", stacked):
        if "data" in names and draw(st.sampled_from([True, False, False])):
            stored = [rule]
    slots = (
        ""
        if stored or "data" not in names
        else draw(st.sampled_from(["", "d_model:data"]))
    )
    return Mesh(
        axes,
        ";".join(rules),
        ";".join(stored),
        slots,
        microbatches=draw(st.sampled_from([0, 2, 4])) if in_stages else 0,
        devices="spmd:cpu" if mode == "live" else "",
    )


CASES = {
    f"{model} {mode}": models(mode, model)
    for model in (*MODELS, PIPELINE)
    for mode in MODES
}
