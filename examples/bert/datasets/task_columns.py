"""The files and columns of known tasks, such as those of GLUE (Wang et al., 2018), as they are
distributed.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of the class and of the texts, and the files of a task.

    Attributes:
      label: the column of the class: its name, or its index as text, such as "1", in files
        whose first line has no names. Other columns are given in the same way.
      text_a: the column of the text, or of the first text of a pair.
      text_b: the column of the second text; None: there is one text.
      header: whether the first line names the columns.
      dev: the names of the files for evaluation, without .tsv.
      test: the names of the files for prediction, without .tsv.
      optional_test: the names of further files for prediction, which may be absent.
      test_text: the column of the text in the first line of a file for prediction that names its
        columns, where those for training do not; "": all files are equal.
      id: the column of the ids in files for prediction; where it is absent, the id of a line is
        its index from 0.
      is_score: whether `label` is a number to predict, and not a class.
      metrics: metrics of GLUE beside accuracy, as `glue_metrics` names them.
      other_names: the path of a file that is read if the file of a name, such as "train", is
        absent.
    """

    label: str
    text_a: str
    text_b: str | None = None
    header: bool = True
    dev: tuple[str, ...] = ("dev",)
    test: tuple[str, ...] = ("test",)
    optional_test: tuple[str, ...] = ()
    test_text: str = ""
    id: str = "index"
    is_score: bool = False
    metrics: tuple[str, ...] = ()
    other_names: tuple[tuple[str, str], ...] = ()


TASKS = {
    "tsv": Columns(label="label", text_a="text_a"),
    "pairs": Columns(label="label", text_a="text_a", text_b="text_b"),
    "cola": Columns(
        label="1",
        text_a="3",
        header=False,
        test_text="sentence",
        metrics=("matthews",),
    ),
    "sst-2": Columns(label="label", text_a="sentence"),
    "mrpc": Columns(
        label="Quality",
        text_a="#1 String",
        text_b="#2 String",
        metrics=("f1",),
        # The corpus as Microsoft distributes it, whose test set has labels.
        other_names=(
            ("train", "msr_paraphrase_train.txt"),
            ("dev", "msr_paraphrase_test.txt"),
            ("test", "msr_paraphrase_test.txt"),
        ),
    ),
    "qqp": Columns(
        label="is_duplicate",
        text_a="question1",
        text_b="question2",
        id="id",
        metrics=("f1",),
    ),
    "sts-b": Columns(
        label="score",
        text_a="sentence1",
        text_b="sentence2",
        is_score=True,
        metrics=("pearson", "spearman"),
    ),
    "mnli": Columns(
        label="gold_label",
        text_a="sentence1",
        text_b="sentence2",
        dev=("dev_matched", "dev_mismatched"),
        test=("test_matched", "test_mismatched"),
        # GLUE's diagnostic sentences, which a model of MNLI classifies.
        optional_test=("AX",),
        other_names=(("AX", "../diagnostic/diagnostic.tsv"),),
    ),
    "qnli": Columns(label="label", text_a="question", text_b="sentence"),
    "rte": Columns(label="label", text_a="sentence1", text_b="sentence2"),
    "wnli": Columns(label="label", text_a="sentence1", text_b="sentence2"),
}
