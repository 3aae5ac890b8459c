"""The columns of texts and classes in the .tsv files of known tasks, such as those of GLUE
(Wang et al., 2018).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of the class and of the texts.

    Attributes:
      label: the column of the class: its name, or its index as text, such as "1", in files
        whose first line has no names. Other columns are given in the same way.
      text_a: the column of the text, or of the first text of a pair.
      text_b: the column of the second text; None: there is one text.
      header: whether the first line names the columns.
      dev: the name of the file for evaluation, without .tsv.
    """

    label: str
    text_a: str
    text_b: str | None = None
    header: bool = True
    dev: str = "dev"


TASKS = {
    "tsv": Columns(label="label", text_a="text_a"),
    "pairs": Columns(label="label", text_a="text_a", text_b="text_b"),
    "cola": Columns(label="1", text_a="3", header=False),
    "sst-2": Columns(label="label", text_a="sentence"),
    "mrpc": Columns(label="Quality", text_a="#1 String", text_b="#2 String"),
    "rte": Columns(label="label", text_a="sentence1", text_b="sentence2"),
    "mnli": Columns(
        label="gold_label",
        text_a="sentence1",
        text_b="sentence2",
        dev="dev_matched",
    ),
}
