"""Damage: bytes of every file are flipped, removed, added; never a wrong value, always
a name.

Usage:

    python -m pytest tests/checkpoints/test_damage.py --damage=2000
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import meshtf as mtf
from meshtf.checkpoints import CheckpointWarning, DamageError
from tests.checkpoints.models import bits, fill, variables


def flip_a_bit(text: bytearray, rng: np.random.Generator) -> bytearray:
    """One bit is another."""
    text[rng.integers(len(text))] ^= 1 << rng.integers(8)
    return text


def garble(text: bytearray, rng: np.random.Generator) -> bytearray:
    """Some bytes in a row are others."""
    start = rng.integers(len(text))
    replaced = text[start : start + rng.integers(1, 64)]
    xors = rng.integers(1, 256, len(replaced))
    text[start : start + len(replaced)] = bytes(b ^ x for b, x in zip(replaced, xors))
    return text


def truncate(text: bytearray, rng: np.random.Generator) -> bytearray:
    """The end is missing."""
    return text[: rng.integers(len(text))]


def lengthen(text: bytearray, rng: np.random.Generator) -> bytearray:
    """There is something behind the end."""
    return text + rng.bytes(rng.integers(1, 9))


def zero(text: bytearray, rng: np.random.Generator) -> bytearray:
    """A block was never written: zeros, as after a loss of power."""
    start = rng.integers(len(text))
    last = min(len(text), start + rng.integers(1, 4096))
    text[start:last] = bytes(last - start)
    return text


def exchange(text: bytearray, rng: np.random.Generator) -> bytearray:
    """Two blocks change places."""
    size = max(len(text) // 8, 1)
    i, j = sorted(rng.integers(0, len(text) - size + 1, 2))
    j = max(i + size, j)
    a = text[i : i + size]
    b = text[j : j + size]
    return (
        text[:i] + b + text[i + size : j] + a + text[j + size :]
        if len(a) == len(b)
        else text
    )


DAMAGES = (flip_a_bit, garble, truncate, lengthen, zero, exchange)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with two checkpoints, and the bits of each."""
    folder = tmp_path_factory.mktemp("saved")
    results = {}
    model_state = variables("fsdp and tensor parallel", seed=None)
    for step in (1, 2):
        fill(model_state, seed=step)
        mtf.checkpoints.save(
            str(folder), step, model_state, extra={"examples_done": 16 * step}
        )
        results[step] = bits(model_state)
    return folder, results


def test_whatever_is_damaged_is_named(saved, tmp_path, rng, request, capsys):
    folder, expected = saved
    files = sorted(path.name for path in (folder / "step_00000002").iterdir())
    assert {"manifest.json", "variables.index", "variables.data-00000-of-00001"} <= set(
        files
    )
    model_state = variables("fsdp of 8", seed=3)
    results = 0
    for trial in range(request.config.getoption("--damage")):
        file = files[trial % len(files)]
        damage = DAMAGES[trial // len(files) % len(DAMAGES)]
        run_folder = tmp_path / "run"
        shutil.copytree(folder, run_folder)
        path = run_folder / "step_00000002" / file
        before = path.read_bytes()
        path.write_bytes(damage(bytearray(before), rng))
        if path.read_bytes() != before:
            with pytest.raises(DamageError) as caught:
                mtf.checkpoints.restore(str(path.parent), model_state)
            assert caught.value.file == file, (damage.__name__, str(caught.value))
            with pytest.warns(
                CheckpointWarning, match=f"damaged: {file}(.|\n)*the one before it"
            ):
                restored = mtf.checkpoints.restore_latest(str(run_folder), model_state)
            assert restored.extra == {"step": 1, "examples_done": 16}
            assert bits(model_state) == expected[1]
            results += 1
        shutil.rmtree(run_folder)
    with capsys.disabled():
        print(f"\n{results} damaged checkpoints, all named, the one before taken")
    assert results > request.config.getoption("--damage") * 0.8


@pytest.mark.parametrize(
    "file", ["manifest.json", "variables.index", "variables.data-00000-of-00001"]
)
def test_a_file_that_is_not_there_is_named(saved, tmp_path, file):
    shutil.copytree(saved[0], tmp_path / "run")
    (tmp_path / "run" / "step_00000002" / file).unlink()
    with pytest.warns(CheckpointWarning, match=file):
        assert mtf.checkpoints.latest(str(tmp_path / "run"))[0] == 1
    shutil.rmtree(tmp_path / "run" / "step_00000001")
    with pytest.warns(CheckpointWarning), pytest.raises(DamageError, match=file):
        mtf.checkpoints.latest(
            str(tmp_path / "run")
        )  # not None: nobody shall begin anew


def test_damage_of_numbers_alone_is_seen_when_they_are_read(saved, tmp_path):
    shutil.copytree(saved[0], tmp_path / "run")
    for step in (1, 2):
        path = Path(
            tmp_path, "run", f"step_{step:08d}", "variables.data-00000-of-00001"
        )
        path.write_bytes(
            flip_a_bit(bytearray(path.read_bytes()), np.random.default_rng(step))
        )
    assert mtf.checkpoints.latest(str(tmp_path / "run"))[0] == 2
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(DamageError, match="step_00000001"),
    ):
        mtf.checkpoints.restore_latest(
            str(tmp_path / "run"), variables("one device", seed=3)
        )


@pytest.mark.parametrize("how", ["no manifest", "half a manifest"])
def test_a_checkpoint_without_its_manifest_has_a_way_out(how, tmp_path):
    folder = tmp_path / "step_00000001"
    folder.mkdir()
    if how == "half a manifest":
        (folder / "manifest.json").write_text('{\n "format": 2,\n')
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(
            DamageError,
            match=r"(?s)manifest.json.*\n  Restore the folder from a copy, or delete it",
        ),
    ):
        mtf.checkpoints.latest(str(tmp_path))
