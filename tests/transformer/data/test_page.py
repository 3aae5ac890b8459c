"""docs/reference/data.md: its program prints the output below it, and its names exist."""

from __future__ import annotations

import re
from pathlib import Path

from transformer import data
from transformer.data.datasets import tasks

PAGE = (
    Path(__file__).resolve().parents[3] / "docs" / "reference" / "data.md"
).read_text(encoding="utf-8")


def test_the_program_prints_what_is_below_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "_task_makers", dict(tasks._task_makers))
    monkeypatch.chdir(tmp_path)
    ((code, text),) = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, re.M | re.S
    )
    exec(compile(code, "page.py", "exec"), {})
    assert capsys.readouterr().out == text


def test_tables_name_existing_functions():
    rows = re.findall(r"^\| `(\w+)(?:\(.*?\))?` \| (?:`(\w+)`)?", PAGE, re.M)
    assert len(rows) >= 9
    for name, made_by in rows:
        assert name in data.task_names() if made_by else hasattr(data, name), name
        assert not made_by or hasattr(data, made_by), made_by
