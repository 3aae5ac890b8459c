"""Repeated work: what it computes, and that times are positive."""

from __future__ import annotations

import numpy as np

import meshtf as mtf
from meshtf.calibration.repeated_work import RepeatedWork, measure


def test_works_are_measured_together():
    mesh = mtf.Mesh("position:2", "position:position")
    inputs = {"x": (np.ones((2, 8), "float32"), "position;d")}
    works = [
        RepeatedWork(mesh, lambda x: x * 0.5, inputs),
        RepeatedWork(mesh, lambda x: x + 1.0, inputs),
    ]
    seconds = measure(works, rounds=2)
    assert len(seconds) == 2 and all(x > 0 for x in seconds)


def test_a_run_repeats_the_work():
    mesh = mtf.Mesh("position:2", "position:position")
    counts = []

    def body(x, y):
        counts.append(1)  # traced once, whatever the number of repetitions
        return x + y

    inputs = {
        "x": (np.zeros((2, 3), "float32"), "position;d"),
        "y": (np.ones((2, 3), "float32"), "position;d"),
    }
    work = RepeatedWork(mesh, body, inputs)
    traces = len(counts)
    work.run(4)
    work.run(8)
    assert len(counts) - traces <= 2
