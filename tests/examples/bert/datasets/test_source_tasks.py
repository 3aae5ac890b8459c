"""Tasks made of source: their answers are where they say, and their ceiling is the
stated one.
"""

from __future__ import annotations

import json

import numpy as np

from examples.bert.datasets import source_tasks, squad_json

MODULE = '''
def first(self, x):
  """Says."""
  total = alpha + beta + gamma

def second(self, y, z=(1, 2)):
  return some(value, other, thing)

def third(self): pass

def fourth(self, x): return 4
'''


def lines(count):
    return "\n".join(f"a{k} = b{k} + c{k} * d{k}" for k in range(count))


def test_lines_have_single_spaces():
    assert source_tasks.sentences("  a\t b \n\n \x0c\nc") == ["a b", "c"]


def test_sides_are_exchanged():
    assert (
        source_tasks.exchange("one.two[3] = four(five, 6)")
        == "four(five, 6) = one.two[3]"
    )


def test_only_plain_assignments_are_taken():
    text = "a = b\nif a == b:\nf(x=1)\na += b\nc = d = e\nx = y  # z = w\nreturn a"
    results = source_tasks.exchanged_assignments(
        [text], 9, 0.0, np.random.default_rng(0)
    )
    assert [line for _, line in results] == ["a = b"]


def test_kinds_are_as_many_and_labels_are_flipped_as_often_as_stated():
    text = lines(2000)
    rows = source_tasks.exchanged_assignments(
        [text, text], 2000, 0.1, np.random.default_rng(1)
    )
    original = set(text.split("\n"))
    truth = [source_tasks.LABELS[line not in original] for _, line in rows]
    assert len(rows) == 2000 and truth.count("kept") == 1000
    flipped = np.mean([label != true for (label, _), true in zip(rows, truth)])
    assert 0.07 < flipped < 0.13


def test_lines_that_were_learned_from_are_left_out():
    rows = source_tasks.exchanged_assignments(
        [lines(20)], 100, 0.0, np.random.default_rng(0), excluded=lines(15).split("\n")
    )
    assert len(rows) == 5


def test_heads_take_something():
    assert list(source_tasks.signatures(MODULE)) == [
        ("first", "self, x", "Says."),
        ("second", "self, y, z=(1, 2)", ""),
        ("fourth", "self, x", ""),
    ]
    assert list(source_tasks.signatures("def f(:")) == []


def test_questions_are_squads(tmp_path):
    modules = [MODULE, MODULE.replace("first", "fifth").replace("second", "sixth")]
    for impossible in (0.0, 0.5):
        outputs = source_tasks.questions(
            modules, 30, 2, impossible, np.random.default_rng(0)
        )
        path = tmp_path / "questions.json"
        path.write_text(json.dumps(outputs))
        results = squad_json.read(str(path), negative=impossible > 0)
        assert len(results) == 60
        assert any(not q.answers for q in results) == (impossible > 0)
        for q in results:
            name = q.text.split()[2]
            assert (f"def {name}(" in q.context) == bool(q.answers)
            for answer in q.answers:
                assert q.context[: answer.start].endswith(f"def {name}(")
