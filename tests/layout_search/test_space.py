"""Searches of programs that scan layers: a rule for them makes the scan a pipeline."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.hardware import Hardware, Link
from tests.layout_search.programs import STACK_ARGUMENTS, stack

# Hardware on which sending takes little time.
SLOW = Hardware(
    "slow",
    {"float32": 1e9},
    memory_bandwidth=1e10,
    links=(Link("network", None, bandwidth=1e11, latency=0.0),),
    memory=2**40,
)
X = np.zeros((32, 64), "float32")


def build(mesh):
    layers = mtf.layers.Repeat(
        lambda: mtf.layers.FeedForward(mesh, "d_model:64", "d_ff:256"), "layers:8"
    )

    @mtf.function(mesh=mesh, x="batch; d_model")
    def step(x):
        loss = mtf.reduce_mean(mtf.square(layers(x)))
        return loss, mtf.gradients([loss], layers.trainable_variables)

    return step


def search(**settings):
    return mtf.search(build, X, devices=8, hardware="h100", max_axes=2, **settings)


def test_layers_are_divided_among_stages():
    result = search(stages=(4,))
    for candidate in result.best:
        assert candidate.axes.startswith("stage:4")
        assert candidate.layout.startswith("layers:stage")
        assert candidate.microbatches in (4, 8, 16)
        # Each is planned in full, and its settings make the pipeline that it tells of.
        mesh = mtf.Mesh(devices="abstract", **candidate.mesh_settings)
        (pipeline,) = mtf.explain(build(mesh), X).pipelines
        assert (pipeline.stages, pipeline.layers) == (4, 2)
        assert pipeline.microbatches == candidate.microbatches
        assert candidate.seconds == pytest.approx(candidate.estimated, rel=0.05)
    assert f"microbatches={result.best[0].microbatches}" in str(result)


def test_numbers_of_microbatches_are_tried():
    counts = search(stages=(2,), choices={"microbatches": [2, 4]}).best
    assert {candidate.microbatches for candidate in counts} == {2, 4}


def test_layouts_without_stages_have_no_microbatches():
    result = search(stages=(1, 4), choices={"microbatches": [4]})
    assert {p.structure.stage_axis for p in result.prices} == {"", "stage"}
    assert not result.refused
    for candidate in result.best:
        assert candidate.choices == {}
        is_pipeline = candidate.axes.startswith("stage")
        assert candidate.microbatches == (4 if is_pipeline else None)
        assert candidate.idle == (3 / 7 if is_pipeline else 0)


def test_a_pipeline_takes_less_memory_than_one_stage():
    replicated = {"layout": "batch:data", "storage": "replicated"}
    flat = search(axes="data:8", **replicated).best[0]
    piped = search(axes="data:2", stages=(4,), **replicated).best[0]
    assert piped.peak < 0.6 * flat.peak


def with_head(mesh, **choices):
    return stack(mesh, with_head=True, **choices)


def test_the_vocabulary_is_sharded_along_the_stages():
    problem = {"devices": 4, "hardware": SLOW, "max_axes": 1, "stages": (2,)}
    result = mtf.search(with_head, *STACK_ARGUMENTS, **problem)
    layouts = {price.structure.layout for price in result.prices}
    assert any("vocab:stage" not in layout for layout in layouts)
    best = result.best[0]
    assert "layers:stage" in best.layout
    assert "vocab:stage" in best.layout
    mesh = mtf.Mesh(devices="abstract", **best.mesh_settings)
    step = with_head(mesh, **best.choices)
    forecast = mtf.explain(step, *STACK_ARGUMENTS, hardware=SLOW)
    assert forecast.pipelines
    assert forecast.time.seconds == pytest.approx(best.seconds)
    # Without the rule, both stages compute all logits.
    rules = best.layout.replace("; vocab:stage", "")
    without = mtf.search(with_head, *STACK_ARGUMENTS, layout=rules, **problem).best[0]
    assert best.seconds < 0.9 * without.seconds


def test_a_pipeline_pays_where_all_else_sends_much():
    slow_links = Hardware(
        "test",
        {"float32": 1e9},
        memory_bandwidth=1e9,
        links=(Link("network", None, bandwidth=1e6, latency=0.0),),
        memory=2**40,
    )
    problem = {"devices": 4, "hardware": slow_links, "max_axes": 1}
    examples = np.zeros([64, 16], "float32"), np.int32(0)
    flat = mtf.search(stack, *examples, **problem).best[0]
    piped = mtf.search(stack, *examples, stages=(1, 4), **problem).best[0]
    assert piped.axes == "stage:4"
    assert piped.seconds < 0.5 * flat.seconds


def test_rules_that_are_kept_may_have_stages():
    rules = "layers:pipe; batch:data"
    result = search(layout=rules, storage="replicated")
    assert {c.layout.replace(" ", "") for c in result.best} == {rules.replace(" ", "")}
    assert {c.axes for c in result.best} <= {"pipe:2;data:4", "pipe:4;data:2"}
    assert all(c.microbatches for c in result.best)
    assert "of the first choice" in search().why_not("layers:stage; batch:data")


def test_pipelines_store_no_dimension_of_layers():
    # With both of its dimensions sharded, a layer has only that of layers left.
    rules = {"axes": "data:2;a:2;b:2", "layout": "batch:data; d_model:a; d_ff:b"}
    flat = mtf.search(stack, *STACK_ARGUMENTS, devices=8, hardware="h100", **rules)
    assert any(c.optimizer_layout == "layers:data" for c in flat.best)
    settings = {"devices": 16, "hardware": "h100", "stages": [2]}
    piped = mtf.search(stack, *STACK_ARGUMENTS, **settings, **rules)
    assert not any(c.optimizer_layout or c.variable_layout for c in piped.best)


def over_the_batch(mesh):
    """A scan whose layers need the entire batch."""
    weights = mtf.Variable(mesh, "layers:4; d_model:64", "ones", "weights")

    @mtf.function(mesh=mesh, x="batch; d_model")
    def step(x):
        def layer(x, w):
            return mtf.softmax(x * w, "batch"), []

        y, _ = mtf.scan(layer, x, weights.tensor(), "layers")
        return mtf.gradients([mtf.reduce_mean(y)], [weights])

    return step


def test_what_cannot_be_a_pipeline_says_why():
    settings = {"devices": 4, "hardware": "h100", "max_axes": 1}
    with pytest.raises(mtf.LayoutError, match="softmax does not map along .batch."):
        mtf.search(over_the_batch, X, stages=(2,), **settings)
    result = mtf.search(over_the_batch, X, stages=(1, 2), **settings)
    assert not any("layers" in candidate.layout for candidate in result.best)
