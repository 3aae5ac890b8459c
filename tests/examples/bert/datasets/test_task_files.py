"""The tasks of GLUE, in small files with the names and columns that are distributed."""

from __future__ import annotations

import pytest

from examples.bert.datasets import task_files
from examples.bert.datasets.task_columns import TASKS
from transformer.data import DataError

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse "
MNLI += "sentence1_parse sentence2_parse sentence1 sentence2"
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2"
# The first line of the files for training and evaluation, and of those for prediction.
HEADERS = {
    "sst-2": ("sentence label", "index sentence"),
    "mrpc": (
        "Quality #1_ID #2_ID #1_String #2_String",
        "index #1_ID #2_ID #1_String #2_String",
    ),
    "qqp": ("id qid1 qid2 question1 question2 is_duplicate", "id question1 question2"),
    "sts-b": (f"{STSB} score", STSB),
    "mnli": (f"{MNLI} label1 gold_label", MNLI),
    "qnli": ("index question sentence label", "index question sentence"),
    "rte": ("index sentence1 sentence2 label", "index sentence1 sentence2"),
    "wnli": ("index sentence1 sentence2 label", "index sentence1 sentence2"),
}
TEXTS = {"sentence", "sentence1", "sentence2", "question", "question1", "question2"}
TEXTS |= {"#1 String", "#2 String"}


def rows(header, ids=(0, 1)):
    """Returns a file with a header, two lines, and labels 0 and 1."""
    columns = [
        name.replace("_ID", " ID").replace("_S", " S") for name in header.split()
    ]
    lines = ["\t".join(columns)]
    for label, row_id in enumerate(ids):
        values = {name: f'"{name} {row_id}' for name in columns if name in TEXTS}
        values |= {"index": str(row_id), "id": str(row_id)}
        lines.append("\t".join(values.get(name, str(label)) for name in columns))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", HEADERS)
def test_files_as_they_are_distributed(name, tmp_path):
    columns = TASKS[name]
    labelled, unlabelled = HEADERS[name]
    for file in ("train", *columns.dev):
        (tmp_path / f"{file}.tsv").write_text(rows(labelled))
    for file in columns.test:
        (tmp_path / f"{file}.tsv").write_text(rows(unlabelled, ids=(5, 3)))
    files = task_files.read(tmp_path, columns, needs_dev=True, needs_test=True)
    assert files.classes == (() if name == "sts-b" else ("0", "1"))
    assert [row[columns.text_a] for row in files.train] == [
        f'"{columns.text_a} {k}' for k in range(2)
    ]
    assert tuple(files.dev) == columns.dev and tuple(files.test) == columns.test
    for lines in files.test.values():
        assert lines.ids == ["5", "3"] and lines.num_bad == 0
        assert all(all(row.values()) for row in lines.examples)
        assert len(lines.examples[0]) == 1 + (columns.text_b is not None)


def test_the_test_file_of_cola_has_other_columns(tmp_path):
    train = "gj04\t1\t\tThey drank.\ngj04\t0\t*\tThey drank the.\n"
    (tmp_path / "train.tsv").write_text(train)
    (tmp_path / "dev.tsv").write_text(train)
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tBill left.\n\n2\tHe.\n")
    files = task_files.read(tmp_path, TASKS["cola"], needs_dev=True, needs_test=True)
    assert files.classes == ("0", "1") and len(files.dev["dev"]) == 2
    assert files.test["test"].ids == ["0", "1", "2"]
    texts = [row["sentence"] for row in files.test["test"].examples]
    assert texts == ["Bill left.", "", "He."]
    (tmp_path / "test.tsv").write_text(train)  # in the columns of training
    lines = task_files.read(tmp_path, TASKS["cola"], needs_test=True).test["test"]
    assert [row["3"] for row in lines.examples] == ["They drank.", "They drank the."]


def test_the_corpus_of_mrpc_as_microsoft_distributes_it(tmp_path):
    labelled, _ = HEADERS["mrpc"]
    for file in ("train", "test"):
        text = "\ufeff" + rows(labelled)
        (tmp_path / f"msr_paraphrase_{file}.txt").write_text(text, encoding="utf-8")
    files = task_files.read(tmp_path, TASKS["mrpc"], needs_dev=True, needs_test=True)
    assert files.classes == ("0", "1") and len(files.dev["dev"]) == 2
    assert files.test["test"].ids == ["0", "1"]


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "train.tsv").write_text(rows(HEADERS["mnli"][0]))
    (tmp_path / "dev_matched.tsv").write_text(rows(HEADERS["mnli"][0]))
    with pytest.raises(DataError, match="dev_mismatched.tsv cannot be read"):
        task_files.read(tmp_path, TASKS["mnli"], needs_dev=True)


@pytest.mark.parametrize("path", ["AX.tsv", "../diagnostic/diagnostic.tsv"])
def test_diagnostic_sentences_are_predicted_by_a_model_of_mnli(path, tmp_path):
    folder = tmp_path / "MNLI"
    for directory in (folder, tmp_path / "diagnostic"):
        directory.mkdir()
    labelled, unlabelled = HEADERS["mnli"]
    (folder / "train.tsv").write_text(rows(labelled))
    for file in TASKS["mnli"].test:
        (folder / f"{file}.tsv").write_text(rows(unlabelled))
    without = task_files.read(folder, TASKS["mnli"], needs_test=True)
    assert tuple(without.test) == TASKS["mnli"].test
    (folder / path).write_text(rows("index sentence1 sentence2", ids=(0, 7)))
    lines = task_files.read(folder, TASKS["mnli"], needs_test=True).test["AX"]
    assert lines.ids == ["0", "7"] and lines.num_bad == 0
    assert lines.examples[1] == {
        "sentence1": '"sentence1 7',
        "sentence2": '"sentence2 7',
    }
