"""Tab-separated files: columns by name or number, and lines that are refused or left
out.
"""

from __future__ import annotations

import numpy as np
import pytest

from examples.bert.datasets import task_columns, tsv
from examples.bert.datasets.tsv import Columns
from examples.bert.evaluation.bag_of_words import BagOfWords
from transformer.data import DataError

COLUMNS = Columns("label", "text_a", "text_b")


def write(folder, text, name="train.tsv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_are_found_by_name(tmp_path):
    path = write(
        tmp_path,
        '\ufefftext_b\tid\tlabel\ttext_a\nb 1\t7\tyes\ta "1\n\nb2\t8\tno\ta2\n',
    )
    rows = tsv.read(path, COLUMNS, "refuse")
    assert [(r["label"], r["text_a"], r["text_b"]) for r in rows] == [
        ("yes", 'a "1', "b 1"),
        ("no", "a2", "b2"),
    ]
    assert tsv.labels_of(rows, COLUMNS) == ("no", "yes")


def test_columns_without_names_are_numbers(tmp_path):
    path = write(tmp_path, "x\t1\t\tgood\nx\t0\t*\tbad\n")
    rows = tsv.read(path, task_columns.TASKS["cola"], "refuse")
    assert [(r["1"], r["3"]) for r in rows] == [("1", "good"), ("0", "bad")]


def test_a_bad_line_is_refused_by_file_and_line_or_left_out(tmp_path):
    path = write(tmp_path, "label\ttext_a\ttext_b\nyes\ta\tb\nno\tonly\nno\tc\td\n")
    with pytest.raises(
        DataError, match="train.tsv:3: line 3 has 2 fields; 3 are expected: label"
    ):
        tsv.read(path, COLUMNS, "refuse")
    with pytest.warns(UserWarning, match="1 bad lines were skipped"):
        assert [row["text_a"] for row in tsv.read(path, COLUMNS, "skip")] == [
            "a",
            "c",
        ]


def test_a_label_that_training_does_not_know(tmp_path):
    path = write(tmp_path, "label\ttext_a\ttext_b\nyes\ta\tb\nmaybe\tc\td\n", "dev.tsv")
    with pytest.raises(
        DataError, match="dev.tsv:3: line 3 has label 'maybe'; there are no, yes"
    ):
        tsv.read(path, COLUMNS, "refuse", ("no", "yes"))
    assert len(tsv.read_unlabelled(path, COLUMNS).examples) == 2


def test_every_line_is_predicted_with_its_id(tmp_path):
    text = (
        "index\ttext_a\ttext_b\n"
        "7\ta\tb\n"
        "\n"  # blank
        "8\tonly\n"  # a column is missing
        "9\tc\td\textra\n"
        "\te\tf\r\n"  # no id
        "\n"
    )
    lines = tsv.read_unlabelled(write(tmp_path, text, "test.tsv"), COLUMNS)
    assert lines.ids == ["7", "1", "8", "9", "4", "5"]
    assert [tuple(row.values()) for row in lines.examples] == [
        ("a", "b"),
        ("", ""),
        ("only", ""),
        ("c", "d"),
        ("e", "f"),
        ("", ""),
    ]
    assert lines.num_bad == 4
    path = tmp_path / "bytes.tsv"
    path.write_bytes(b"text_a\ttext_b\na\xff\tb")  # no UTF-8, no line break at the end
    lines = tsv.read_unlabelled(path, COLUMNS)
    assert lines.ids == ["0"] and lines.examples[0]["text_a"] == "a\ufffd"
    write(tmp_path, "text_a\ttext_b\n", "test.tsv")
    with pytest.raises(DataError, match="no lines to predict"):
        tsv.read_unlabelled(tmp_path / "test.tsv", COLUMNS)


def test_lines_without_names_of_columns(tmp_path):
    columns = Columns("0", "1", header=False)
    path = write(tmp_path, "\n\nbad\nx\ta\ny\tb\n", "test.tsv")
    lines = tsv.read_unlabelled(path, columns)
    assert [row["1"] for row in lines.examples] == ["", "", "", "a", "b"]
    assert lines.ids == ["0", "1", "2", "3", "4"] and lines.num_bad == 3


def test_a_byte_order_mark_is_no_label(tmp_path):
    columns = Columns("0", "1", header=False)
    path = write(tmp_path, "\ufeffyes\ta\nno\tb\n")
    rows = tsv.read(path, columns, "refuse")
    assert tsv.labels_of(rows, columns) == ("no", "yes")
    assert [row["1"] for row in rows] == ["a", "b"]


def test_scores_are_numbers(tmp_path):
    columns = task_columns.TASKS["sts-b"]
    path = write(tmp_path, "sentence1\tsentence2\tscore\na\tb\t2.5\nc\td\tnan\n")
    with pytest.raises(DataError, match="train.tsv:3: .*'nan', which is no number"):
        tsv.read(path, columns, "refuse")


def test_a_missing_column_and_a_missing_file(tmp_path):
    path = write(tmp_path, "label\tsentence\nyes\ta\n")
    with pytest.raises(
        DataError, match="train.tsv:1: there is no column 'text_a', but label, sent"
    ):
        tsv.read(path, COLUMNS, "refuse")
    with pytest.raises(DataError, match="absent.tsv cannot be read"):
        tsv.read(tmp_path / "absent.tsv", COLUMNS, "refuse")
    with pytest.raises(DataError, match="only the label 'yes'"):
        tsv.labels_of(tsv.read(path, Columns("label", "sentence"), "refuse"), COLUMNS)


def test_naive_bayes_counts_words_of_both_texts_separately():
    def row(tokens, types, label):
        return {
            "tokens": np.array(tokens),
            "token_types": np.array(types),
            "labels": np.int32(label),
        }

    learned = [
        row([2, 5, 3, 6, 3, 0], [0, 0, 0, 1, 1, 0], 0),
        row([2, 6, 3, 5, 3, 0], [0, 0, 0, 1, 1, 0], 1),
        row([2, 6, 3, 7, 3, 0], [0, 0, 0, 1, 1, 0], 1),
    ]
    bag = BagOfWords(learned, classes=2, vocab=8)
    assert bag.class_counts.tolist() == [1, 2]
    assert [bag(one) for one in learned] == [0, 1, 1]
    p0 = (
        2 / 4 * (2 / (5 + 16)) ** 1
    )  # by hand: prior (1 + 1), counts + 1 over all + classes' 16
    p1 = 3 / 4 * (1 / (10 + 16)) ** 1
    assert bag(row([5, 0], [0, 0], 0)) == int(p1 > p0) == 0
