"""The columns of texts and classes in the .tsv files of known tasks, such as those of GLUE
(Wang et al., 2018).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of the class and of the texts.

    Attributes:
      label: the column of the class.
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
    "tsv": Columns("label", "text_a"),
    "pairs": Columns("label", "text_a", "text_b"),
    "cola": Columns("1", "3", header=False),
    "sst-2": Columns("label", "sentence"),
    "mrpc": Columns("Quality", "#1 String", "#2 String"),
    "rte": Columns("label", "sentence1", "sentence2"),
    "mnli": Columns("gold_label", "sentence1", "sentence2", dev="dev_matched"),
}
