"""A process that dies while it saves, or a disk that is full: what was saved before is
there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil

import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.checkpoints import CheckpointWarning, Saver, WriteError
from tests.checkpoints.models import bits, fill, variables


class Killed(BaseException):
    """The process dies here."""


@contextlib.contextmanager
def dying_at(moment):
    """Lets all that changes files count, and the one of that number not happen, nor any
    after.
    """
    count = 0

    def counted(call):
        def counting(*args, **kwargs):
            nonlocal count
            count += 1
            if count > moment:
                raise Killed
            return call(*args, **kwargs)

        return counting

    with pytest.MonkeyPatch.context() as patch:
        for module, names in (
            (os, ("rename", "makedirs")),
            (shutil, ("rmtree",)),
            (tf.raw_ops, ("SaveV2", "MergeV2Checkpoints")),
        ):
            for name in names:
                patch.setattr(module, name, counted(getattr(module, name)))
        yield lambda: count


@pytest.mark.parametrize("again", [False, True])
def test_at_every_moment_of_a_save_there_is_a_whole_checkpoint(tmp_path, again):
    model_state = variables("one device", seed=None)
    restored = variables("fsdp of 8", seed=None)
    seen = set()
    for moment in range(40):
        folder = tmp_path / str(moment)
        expected = {}
        for step in (1, 2, 3):
            fill(model_state, seed=step)
            if step == 3:
                break
            mtf.checkpoints.save(str(folder), step, model_state, keep=2)
            expected[step] = bits(model_state)
        new = 2 if again else 3  # the same step again, or the next one
        try:
            with dying_at(moment):
                mtf.checkpoints.save(str(folder), new, model_state, keep=2)
            break
        except Killed:
            pass
        restored_checkpoint = mtf.checkpoints.restore_latest(str(folder), restored)
        seen.add(restored_checkpoint.step)
        assert bits(restored) in (
            expected.get(restored_checkpoint.step),
            bits(model_state),
        )
        assert restored_checkpoint.step >= 2 or again
        saver = Saver(str(folder))
        assert not [name for name in os.listdir(folder) if "tmp" in name]
        saver.save(new, model_state)
        assert mtf.checkpoints.restore_latest(str(folder), restored).step == new
        assert bits(restored) == bits(model_state)
    else:
        raise AssertionError("it never ended")
    assert moment >= 6 and new in seen


@contextlib.contextmanager
def files_of_at_most(size):
    """Lets no file become larger: what a full disk does, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [100, 300, 1500])  # of 2.3 kB of numbers
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_an_error_and_leaves_no_partial_files(
    tmp_path, asynchronous, room
):
    model_state = variables("one device", seed=1)
    restored = variables("fsdp of 8", seed=None)
    saver = Saver(str(tmp_path), keep=1, asynchronous=asynchronous)
    saver.save(1, model_state)
    saver.finish()
    expected = bits(model_state)
    fill(model_state, seed=2)
    with pytest.warns(
        CheckpointWarning, match="step 2 could not be written(.|\n)*the work goes on"
    ):
        with files_of_at_most(room):
            saver.save(2, model_state)
            saver.wait()
    assert os.listdir(tmp_path) == ["step_00000001"]
    with pytest.raises(WriteError, match="step 2"):
        saver.finish()
    assert mtf.checkpoints.restore_latest(str(tmp_path), restored).step == 1
    assert bits(restored) == expected
    saver.save(3, model_state)  # there is room again
    saver.finish()
    assert os.listdir(tmp_path) == ["step_00000003"]
