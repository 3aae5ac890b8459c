"""Rows for pretraining: files of texts, records under their names, and equal files for
equal seeds.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from examples.bert import create_pretraining_data
from examples.bert.datasets import pretraining_records
from tests.examples.bert.conftest import PIECES, with_flags
from transformer import data

TEXT = """the tower stands in paris
it is old and wide

where is the river
who said what

of berlin , of rome .
the long unaffable towers
"""


@pytest.fixture
def text(folder):
    (folder / "text.txt").write_text(TEXT)
    return str(folder / "text.txt")


def create(folder, text, output="rows.tfrecord", **extra):
    paths = [str(folder / name) for name in output.split(",")]
    with with_flags(
        input_file=text,
        output_file=",".join(paths),
        vocab_file=folder / "vocab.txt",
        max_seq_length=16,
        max_predictions_per_seq=4,
        **{"dupe_factor": 3, **extra},
    ):
        create_pretraining_data.main(["create_pretraining_data"])
    return paths


def read(path):
    return list(data.tfrecords(path, share=0.0).train())


def test_an_empty_line_ends_a_document(text):
    results = pretraining_records.documents([text, text])
    assert [document["text"].count("\n") for document in results] == [1, 1, 1] * 2
    assert results[1]["text"] == "where is the river\nwho said what"


def test_a_file_that_is_no_text(folder):
    (folder / "text.txt").write_bytes(b"the \xff tower")
    with pytest.raises(data.DataError, match="text.txt cannot be read as text"):
        pretraining_records.documents([folder / "text.txt"])


def test_records_have_the_names_that_people_know(folder, text, vocabulary):
    rows = read(create(folder, text)[0])
    assert len(rows) >= 6
    for row in rows:
        # The one feature that the original programs do not have.
        assert row.pop("vocabulary") == vocabulary.fingerprint()
        shapes = {name: (value.shape, value.dtype.kind) for name, value in row.items()}
        assert shapes == {
            "input_ids": ((16,), "i"),
            "input_mask": ((16,), "i"),
            "segment_ids": ((16,), "i"),
            "masked_lm_positions": ((4,), "i"),
            "masked_lm_ids": ((4,), "i"),
            "masked_lm_weights": ((4,), "f"),
            "next_sentence_labels": ((1,), "i"),
        }
        assert (row["input_mask"] == (row["input_ids"] != 0)).all()
        assert row["input_ids"][0] == PIECES.index("[CLS]")
        real = row["masked_lm_weights"] > 0
        assert 1 <= real.sum() <= 4 and (row["masked_lm_ids"][~real] == 0).all()
        assert (row["input_mask"][row["masked_lm_positions"][real]] == 1).all()


def test_what_a_record_says_comes_back(folder, text, vocabulary):
    for row in read(create(folder, text)[0]):
        results = data.BertFeatures(16, 4)(
            pretraining_records.from_record(row, (0,), vocab=40, vocabulary=vocabulary)
        )
        for ours, theirs in pretraining_records.RECORD_KEYS.items():
            np.testing.assert_array_equal(results[ours].reshape(-1), row[theirs])


def test_equal_flags_make_equal_files_by_turns(folder, text):
    (one,) = create(folder, text)
    two = create(folder, text, "a.tfrecord,b.tfrecord")
    (again,) = create(folder, text, "again.tfrecord")
    (other,) = create(folder, text, "other.tfrecord", random_seed=7)
    of = {path: tf.io.gfile.GFile(path, "rb").read() for path in (one, again, other)}
    assert of[one] == of[again] != of[other]
    all_ids = [row["input_ids"].tolist() for row in read(one)]
    both = pretraining_records.read(",".join(two), "refuse")
    assert len(both) == len(all_ids)
    assert all_ids[1::2] == [row["input_ids"].tolist() for row in read(two[0])]
    assert all_ids[::2] == [row["input_ids"].tolist() for row in read(two[1])]


def test_copies_differ(folder, text):
    once = len(read(create(folder, text, "once.tfrecord", dupe_factor=1)[0]))
    rows = [tuple(row["input_ids"]) for row in read(create(folder, text)[0])]
    assert once < len(rows) and len(set(rows)) > once


@pytest.mark.parametrize(
    "text, says",
    [
        (None, "there is no file"),
        ("\n\n", "no text in"),
        ("the tower\n", "at least two documents"),
    ],
)
def test_texts_that_make_no_rows_leave_nothing_behind(folder, capsys, text, says):
    path = folder / "absent.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit):
        create(folder, str(path))
    assert says in capsys.readouterr().err
    assert not list(folder.glob("*rows*"))


@pytest.mark.parametrize(
    "change, says",
    [
        ({"input_ids": None}, "no 'input_ids'"),
        ({"masked_lm_ids": np.array([1, 40, 0, 0])}, "token 40, but the model has 40"),
    ],
)
def test_records_of_others_are_refused(folder, text, vocabulary, change, says):
    row = {**read(create(folder, text)[0])[0], **change}
    with pytest.raises(data.DataError, match=says):
        pretraining_records.from_record(
            {k: v for k, v in row.items() if v is not None},
            (0,),
            vocab=40,
            vocabulary=vocabulary,
        )


def test_records_without_a_fingerprint_are_read(folder, text, vocabulary):
    row = read(create(folder, text)[0])[0]
    with_fingerprint = pretraining_records.from_record(
        row, (0,), vocab=40, vocabulary=vocabulary
    )
    del row["vocabulary"]  # as those of the original programs
    without = pretraining_records.from_record(
        row, (0,), vocab=40, vocabulary=vocabulary
    )
    for name, value in with_fingerprint.items():
        np.testing.assert_array_equal(without[name], value)
