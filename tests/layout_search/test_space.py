"""Searches of programs that scan layers: a rule for them makes the scan a pipeline."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

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
    assert {p.structure.pipelined for p in result.prices} == {"", "layers"}
    assert not result.refused
    for candidate in result.best:
        assert candidate.choices == {}
        is_pipeline = candidate.axes.startswith("stage")
        assert candidate.microbatches == (4 if is_pipeline else None)


def test_a_pipeline_takes_less_memory_than_one_stage():
    replicated = {"layout": "batch:data", "storage": "replicated"}
    flat = search(axes="data:8", **replicated).best[0]
    piped = search(axes="data:2", stages=(4,), **replicated).best[0]
    assert piped.peak < 0.6 * flat.peak
