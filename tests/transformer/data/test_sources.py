"""Sources: any example by its index, errors of bad records, an index that is made once."""

from __future__ import annotations

import gzip
import os
import warnings

import numpy as np
import pytest
import tensorflow as tf

from transformer import data
from transformer.data import sources
from transformer.data.sources import index as indexing

GOOD_TSV = "one\t1\n\ntwo\t2\r\nthrée\t3"


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def records(folder, name="a.tfrecord", count=7):
    path = folder / name
    sources.write_records(
        path, [{"tokens": np.arange(k), "label": k} for k in range(count)]
    )
    return path


def test_lines_are_examples_and_empty_ones_are_none(tmp_path):
    write(tmp_path, "b.txt", "last")
    write(tmp_path, "a.txt", "first\n\n  \nsecond\r\n")
    examples = data.text_lines(f"{tmp_path}/*.txt", share=0).train()
    assert [example["text"] for example in examples] == ["first", "second", "last"]
    assert examples[-1]["text"] == "last" and [e["text"] for e in examples[1:]] == [
        "second",
        "last",
    ]
    with pytest.raises(IndexError):
        examples[3]


def test_tab_separated_values(tmp_path):
    write(tmp_path, "a.tsv", GOOD_TSV)
    examples = data.tsv(
        f"{tmp_path}/*.tsv", columns=("word", "number"), share=0
    ).train()
    assert examples[2] == {"word": "thrée", "number": "3"} and len(examples) == 3
    headed = data.tsv(
        f"{tmp_path}/*.tsv", columns=("word", "number"), header=True, share=0
    ).train()
    assert [example["number"] for example in headed] == ["2", "3"]


def test_json_lines(tmp_path):
    write(tmp_path, "a.jsonl", '{"text": "a", "n": 1}\n{"text": "b", "more": [1, 2]}\n')
    examples = data.json_lines(f"{tmp_path}/*.jsonl", fields=["text"], share=0).train()
    assert list(examples) == [{"text": "a", "n": 1}, {"text": "b", "more": [1, 2]}]


@pytest.mark.parametrize(
    "make, content, message",
    [
        (
            lambda p, **k: data.tsv(p, columns=("a", "b"), **k),
            "x\ty\n\nonly\n1\t2\n",
            r"bad.file:3: line 3 has 1 fields; 2 are expected: a, b",
        ),
        (
            data.json_lines,
            '{"text": 1}\n{"text": \n{}',
            r"bad.file:2: line 2 is no JSON: .*column",
        ),
        (
            data.json_lines,
            '{"text": 1}\n[1]\n{}',
            r"bad.file:2: line 2 is JSON, but no object: list",
        ),
        (
            lambda p, **k: data.json_lines(p, fields=["text"], **k),
            '{"text": 1}\n{"body": 2}\n{"text": 2}',
            r"bad.file:2: line 2 has no field 'text', but 'body'",
        ),
        (
            data.text_lines,
            b"good\n\xff\xfe\ngood",
            r"bad.file:2: line 2 is not UTF-8: byte 1.*0xff",
        ),
    ],
)
def test_a_bad_line_is_an_error_or_skipped_and_counted(
    tmp_path, make, content, message
):
    pattern = write(tmp_path, "bad.file", content)
    with pytest.raises(data.DataError, match=message + r'(?s:.*)on_bad = "skip"'):
        make(pattern).train()
    for _ in range(2):  # the second time from the index
        with pytest.warns(
            UserWarning, match=r"1 bad lines were skipped \(.*bad.file: 1\); 2 are"
        ):
            assert len(make(pattern, on_bad="skip", share=0).train()) == 2
    with pytest.raises(
        data.DataError, match=message
    ):  # an index of others' is not trusted
        make(pattern).train()


def test_records_give_what_was_written(tmp_path):
    records(tmp_path)
    examples = data.tfrecords(f"{tmp_path}/*.tfrecord", share=0).train()
    assert len(examples) == 7
    assert examples[5]["tokens"].tolist() == [0, 1, 2, 3, 4] and examples[5][
        "label"
    ] == [5]


def test_records_of_text_and_of_floats(tmp_path):
    feature = tf.train.Feature
    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                "text": feature(bytes_list=tf.train.BytesList(value=["é".encode()])),
                "texts": feature(bytes_list=tf.train.BytesList(value=[b"a", b"b"])),
                "x": feature(float_list=tf.train.FloatList(value=[0.5])),
                "none": feature(),
            }
        )
    )
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        writer.write(example.SerializeToString())
        writer.write(b"\xff\xff no example")
    results = data.tfrecords(str(tmp_path / "a"), share=0).train()
    assert results[0]["text"] == "é" and results[0]["texts"] == ["a", "b"]
    assert results[0]["x"].tolist() == [0.5] and not len(results[0]["none"])
    with pytest.raises(data.DataError, match=r"a:2: record 2 is no tf.train.Example"):
        results[1]


def damaged(path, how):
    content = bytearray(path.read_bytes())
    ends = np.cumsum([e - b for b, e in _spans(content)])
    if how == "cut":
        del content[ends[4] + 5 :]  # within the length of the sixth
    elif how == "cut late":
        del content[ends[5] - 1 :]  # within the last checksum of the sixth
    else:
        content[ends[4] + 14] ^= 1  # a bit of its data
    path.write_bytes(content)


def _spans(content):
    at = 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little") + 16
        yield at, at + size
        at += size


@pytest.mark.parametrize("how", ["cut", "cut late", "flipped"])
def test_a_damaged_record_is_named_or_ends_its_file(tmp_path, how):
    damaged(records(tmp_path), how)
    with pytest.raises(
        data.DataError, match=r"a.tfrecord:6: record 6 is truncated or damaged"
    ):
        data.tfrecords(f"{tmp_path}/*.tfrecord").train()
    with pytest.warns(UserWarning, match="1 bad records were skipped"):
        examples = data.tfrecords(
            f"{tmp_path}/*.tfrecord", share=0, on_bad="skip"
        ).train()
    assert [int(example["label"][0]) for example in examples] == [0, 1, 2, 3, 4]


def test_damage_after_many_records_is_found_too(tmp_path):
    path = records(tmp_path, count=2500)
    with open(path, "ab") as file:
        file.write(b"12345")
    with pytest.raises(data.DataError, match="record 2501 is truncated"):
        data.tfrecords(str(path)).train()


def test_error_of_compressed_records(tmp_path):
    path = records(tmp_path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(data.DataError, match="compressed(?s:.*)decompress"):
        data.tfrecords(str(path)).train()


def test_the_index_is_made_once_and_again_when_file_or_format_change(
    tmp_path, monkeypatch
):
    made = []
    make = indexing._make_table
    monkeypatch.setattr(
        indexing,
        "_make_table",
        lambda path, *rest, **settings: (
            made.append(path) or make(path, *rest, **settings)
        ),
    )
    path = write(tmp_path, "a.tsv", GOOD_TSV)

    def number(**how):
        return len(
            data.tsv(f"{tmp_path}/*", columns=("a", "b"), share=0, **how).train()
        )

    assert (number(), number(), len(made)) == (3, 3, 1)
    assert sorted(os.listdir(tmp_path)) == ["a.tsv", "a.tsv.idx"]
    assert (number(header=True), len(made)) == (2, 2)
    write(tmp_path, "a.tsv", GOOD_TSV + "\nfour\t4")
    assert (number(), len(made)) == (4, 3)
    (tmp_path / "a.tsv.idx").write_bytes(b"half an ind")
    assert (number(), len(made)) == (4, 4)
    assert path.endswith("a.tsv")


def test_where_nothing_can_be_written_the_index_is_held(tmp_path, monkeypatch):
    write(tmp_path, "a.txt", "a\nb")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(indexing, "atomic_file", refuse)
    assert len(data.text_lines(f"{tmp_path}/*", share=0).train()) == 2
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_last_share_is_held_out_or_files_of_their_own(tmp_path):
    write(tmp_path, "a.txt", "\n".join(map(str, range(20))))
    write(tmp_path, "b.txt", "other")
    source = data.text_lines(f"{tmp_path}/a.txt", share=0.1)
    assert len(source.train()) == 18 and [e["text"] for e in source.held_out()] == [
        "18",
        "19",
    ]
    source = data.text_lines(f"{tmp_path}/a.txt", held_out=f"{tmp_path}/b.txt")
    assert len(source.train()) == 20 and [e["text"] for e in source.held_out()] == [
        "other"
    ]


@pytest.mark.parametrize(
    "how, message",
    [
        ({"share": 1.0}, "between 0 and 1"),
        ({"on_bad": "hide"}, "'hide'"),
        ({}, "no file matches"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, how, message):
    with pytest.raises(data.DataError, match=message):
        data.text_lines(f"{tmp_path}/*.txt", **how).train()


def test_files_without_examples_are_refused(tmp_path):
    with pytest.raises(data.DataError, match="have no example"):
        data.text_lines(write(tmp_path, "a.txt", "\n\n")).train()


def test_documents_are_the_files_of_a_corpus(tmp_path):
    for k in range(40):
        write(tmp_path, f"{k}.txt", f"file {k}\nhas two lines")
    corpus = data.text_files(f"{tmp_path}/*.txt", share=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = data.documents(lambda: corpus)
    texts = [e["text"] for side in (source.train(), source.held_out()) for e in side]
    assert len(source.train()) == len(corpus.train_files)
    assert sorted(texts) == sorted(f"file {k}\nhas two lines" for k in range(40))
