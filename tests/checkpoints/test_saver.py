"""The saver: values of when it was asked, one checkpoint at a time, and failures that
are told.
"""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.checkpoints import CheckpointWarning, Saver, WriteError
from meshtf.checkpoints import write as writing
from meshtf.runtime import heartbeat
from tests.checkpoints.models import bits, fill, variables


def steps(folder):
    return sorted(int(name[5:]) for name in os.listdir(folder) if "tmp" not in name)


@pytest.fixture
def gate(monkeypatch):
    """Nothing is written before it is opened."""
    opened = threading.Event()
    save = tf.raw_ops.SaveV2

    def wait(**kwargs):
        assert opened.wait(60)
        return save(**kwargs)

    monkeypatch.setattr(tf.raw_ops, "SaveV2", wait)
    return opened


@pytest.mark.parametrize("key", ["one device", "fsdp of 8", "stages"])
def test_in_the_background_values_are_those_of_when_it_was_asked(key, tmp_path, gate):
    model_state = variables(key, seed=1)
    restored = variables("one device", seed=None)
    expected = bits(model_state)
    saver = Saver(str(tmp_path), asynchronous=True)
    saver.save(1, model_state, extra={"a": 1})
    fill(model_state, seed=2)  # assigned
    later_bits = bits(model_state)
    assert steps(tmp_path) == []
    gate.set()
    saver.save(2, model_state)  # waits for the one before
    assert mtf.checkpoints.restore(str(tmp_path / "step_00000001"), restored) == {
        "step": 1,
        "a": 1,
    }
    assert bits(restored) == expected
    saver.finish()
    mtf.checkpoints.restore(str(tmp_path / "step_00000002"), restored)
    assert bits(restored) == later_bits


def test_in_the_background_updates_in_place_change_nothing(tmp_path, gate):
    mesh = mtf.Mesh("data:2", devices="logical:2", variable_layout="d:data")
    w = mtf.Variable(mesh, "d:4", mtf.layers.initializers.constant(1.0), "w")
    optimizer = mtf.optimizers.Adam([w])

    @mtf.function(mesh=mesh, step="")
    def update(step):
        optimizer.apply_gradients([mtf.ones(mesh, "d:4")], [w], step)

    update(np.int32(0))
    model_state = {v.name: v for v in (w, *optimizer.variables)}
    expected = bits(model_state)
    saver = Saver(str(tmp_path), asynchronous=True)
    saver.save(1, model_state)
    update(np.int32(1))
    assert bits(model_state) != expected
    gate.set()
    saver.finish()
    mtf.checkpoints.restore(str(tmp_path / "step_00000001"), model_state)
    assert bits(model_state) == expected


def test_at_most_one_is_being_written(tmp_path, monkeypatch):
    running = 0
    peak_threads = 0
    save = writing.Manifest.write

    def count(*args):
        nonlocal running, peak_threads
        running += 1
        peak_threads = max(peak_threads, running)
        save(*args)
        running -= 1

    monkeypatch.setattr(writing.Manifest, "write", count)
    model_state = variables("one device", seed=1)
    with Saver(str(tmp_path), asynchronous=True, keep=9) as saver:
        for step in range(5):
            saver.save(step, model_state)
    assert steps(tmp_path) == [0, 1, 2, 3, 4] and peak_threads == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failure_is_an_error_and_earlier_checkpoints_stay(
    asynchronous, tmp_path, monkeypatch
):
    model_state = variables("one device", seed=1)
    saver = Saver(str(tmp_path), asynchronous=asynchronous, keep=1)
    saver.save(1, model_state)
    saver.finish()

    def fail(*args, **kwargs):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tf.raw_ops, "MergeV2Checkpoints", fail)
        with pytest.warns(
            CheckpointWarning, match="step 2 could not be (.|\n)*No space left(.|\n)*on"
        ):
            saver.save(2, model_state)
            saver.wait()
        assert os.listdir(tmp_path) == ["step_00000001"]
        with pytest.raises(WriteError, match="step 2"):
            saver.finish()
    saver.save(3, model_state)
    saver.finish()  # the last one is there
    assert steps(tmp_path) == [3]


def test_each_file_is_a_sign_of_life(tmp_path, monkeypatch):
    monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path / "beats"))
    monkeypatch.setattr(writing, "MAX_CHUNK_BYTES", 400)
    path = mtf.checkpoints.save(str(tmp_path), 3, variables("one device", seed=1))
    files = len([name for name in os.listdir(path) if ".data-" in name])
    beat_count, message = (tmp_path / "beats").read_text().split(" ", 1)
    assert files > 5 and message.startswith(
        "ran the saving of"
    )  # "ran": the limit of calls
    assert int(beat_count) >= files


def test_a_bug_in_the_background_is_no_warning(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("a bug")

    monkeypatch.setattr(writing, "_saved_tensors", fail)
    saver = Saver(str(tmp_path), asynchronous=True)
    saver.save(1, variables("one device", seed=1))
    with pytest.raises(AssertionError, match="a bug"):
        saver.wait()


def test_the_newest_and_some_permanent_ones_are_kept(tmp_path):
    model_state = variables("one device", seed=1)
    saver = Saver(str(tmp_path), keep=2, keep_every=100)
    for step in (0, 50, 100, 150, 200, 250, 300, 350):
        saver.save(step, model_state)
    assert steps(tmp_path) == [0, 100, 200, 300, 350]


def test_what_a_dead_process_left_is_swept(tmp_path):
    (tmp_path / "step_00000005.tmp-77").mkdir()
    (tmp_path / "step_00000005.tmp-77" / "variables.index").write_text("x")
    (tmp_path / "step_00000005.tmp-mine").mkdir()
    Saver(str(tmp_path))
    assert os.listdir(tmp_path) == ["step_00000005.tmp-mine"]
