"""Corpora: no byte is lost, and no file changes its split."""

from __future__ import annotations

import os

import numpy as np
import pytest

from transformer import data
from transformer.data.datasets.corpus import held_out_by_name


def make_files(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)


def many(folder, number=100):
    make_files(
        folder,
        {f"part{k % 3}/{k}.txt": bytes([1 + k] * (k + 1)) for k in range(number)},
    )
    return data.text_files(f"{folder}/**/*.txt", share=0.2)


@pytest.fixture(scope="module")
def library():
    return data.python_library()


def test_the_library_is_found_and_split(library):
    total = library.train.size + library.held_out.size
    assert total > 4e6 and 0.01 < library.held_out.size / total < 0.10
    assert "ast.py" in library.train_files + library.held_out_files
    skipped = {"site-packages", "test", "tests", "__pycache__"}
    for name in library.train_files + library.held_out_files:
        assert not skipped & set(name.split("/")), name


def test_the_order_is_that_of_names_whatever_the_disk_says(library, monkeypatch):
    walk = os.walk
    monkeypatch.setattr(
        "os.walk", lambda root: ((f, d, n[::-1]) for f, d, n in walk(root))
    )
    again = data.python_library()
    assert (
        again.train_files == library.train_files == tuple(sorted(library.train_files))
    )
    assert np.array_equal(again.train, library.train)


def test_each_file_is_in_one_split_and_ends_with_the_mark(tmp_path):
    corpus = many(tmp_path)
    for side, names in (
        (corpus.train, corpus.train_files),
        (corpus.held_out, corpus.held_out_files),
    ):
        texts = side.tobytes().split(bytes([data.END]))
        assert texts == [(tmp_path / name).read_bytes() for name in names] + [b""]
    assert len(set(corpus.train_files) | set(corpus.held_out_files)) == 100
    assert all(held_out_by_name(name, 0.2) for name in corpus.held_out_files)


def test_a_new_file_moves_no_other(tmp_path):
    before, after = many(tmp_path, 60), many(tmp_path, 100)
    assert set(before.train_files) <= set(after.train_files)
    assert set(before.held_out_files) <= set(after.held_out_files)


def test_of_one_file_the_end_is_held_out(tmp_path):
    make_files(tmp_path, {"only.txt": bytes(range(1, 100))})
    corpus = data.text_files(str(tmp_path / "only.txt"), share=0.1)
    assert corpus.train.size == 90 and corpus.held_out.tolist() == [
        *range(91, 100),
        data.END,
    ]


@pytest.mark.parametrize("texts", [{}, {"a.txt": b""}])
def test_an_empty_corpus_names_the_place_and_the_way_out(tmp_path, texts):
    make_files(tmp_path, texts)
    with pytest.raises(
        data.CorpusError, match=r"(?s)no text.*\*\.txt.*data\.text_files\.pattern"
    ):
        data.text_files(f"{tmp_path}/*.txt")


def test_a_library_without_source_is_an_error(tmp_path):
    with pytest.raises(data.CorpusError, match=tmp_path.name):
        data.python_library(folder=str(tmp_path))


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    make_files(tmp_path, {"locked.txt": b"text"})

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(data.CorpusError, match="(?s)Permission denied.*locked.txt"):
        data.text_files(f"{tmp_path}/*.txt")


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_outside_of_0_to_1_is_an_error(tmp_path, share):
    with pytest.raises(data.CorpusError, match="share"):
        data.text_files(f"{tmp_path}/*", share=share)
