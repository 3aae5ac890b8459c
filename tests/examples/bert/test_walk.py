"""What README.md and walk.sh say: flags that are there, and commands that are
the same.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from absl import flags

from examples.bert import make_tasks
from examples.bert.datasets import task_columns

FOLDER = Path(make_tasks.__file__).parent
README = (FOLDER / "README.md").read_text(encoding="utf-8")
WALK = (FOLDER / "walk.sh").read_text(encoding="utf-8")
COMMAND = re.compile(r"-m (examples\.bert\.\w+)((?:[^\n]|(?<=\\)\n)*)")


def commands(text):
    return COMMAND.findall(text.replace("\\\\\n", "\\\n"))


@pytest.mark.parametrize(
    "name",
    [
        "make_tasks",
        "create_pretraining_data",
        "run_pretraining",
        "run_classifier",
        "run_squad",
    ],
)
def test_flags_in_commands_exist(name):
    module = importlib.import_module(f"examples.bert.{name}")
    known = {
        flag.name for flag in flags.FLAGS.get_key_flags_for_module(module.__name__)
    }
    all_commands = commands(WALK) + commands(README) + commands(module.__doc__)
    named_flags = {
        flag
        for program, rest in all_commands
        if program == module.__name__
        for flag in re.findall(r"--(\w+)", rest)
    }
    assert named_flags and named_flags <= known


def test_the_walk_of_the_readme_is_the_script():
    plain = [re.sub(r"[\s\\]+", " ", rest) for _, rest in commands(WALK)]
    shown = [re.sub(r"[\s\\]+", " ", rest) for _, rest in commands(README)]
    assert len(plain) == 5
    for rest in plain:
        assert rest in shown


def test_every_kind_of_table_is_named():
    assert all(f"`{name}`" in README for name in task_columns.TASKS)
