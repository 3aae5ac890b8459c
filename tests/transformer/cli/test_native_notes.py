"""Programs do not show what TensorFlow's native code writes while it is imported; what others
write then is shown, also if the program dies.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.documentation.test_house import ROOT

BODY = """
import os
from transformer.cli.native_notes import without_native_notes
with without_native_notes():
    os.write(2, b"I0000 00:00:1.0 7 port.cc:153] oneDNN custom operations are on.\\n")
    os.write(2, b"E0000 00:00:1.0 7 driver.cc:1] a failure\\n")
    {end}
os.write(2, b"I0000 later\\n")
"""


def stderr_of(*command: str) -> str:
    """What a program of Python writes to stderr."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True
    )
    return done.stderr


@pytest.mark.parametrize(
    "end, expected",
    [
        ("pass", "E0000 00:00:1.0 7 driver.cc:1] a failure\nI0000 later\n"),
        ("os._exit(1)", "E0000 00:00:1.0 7 driver.cc:1] a failure\n"),
        ("os.abort()", "E0000 00:00:1.0 7 driver.cc:1] a failure\n"),
    ],
)
def test_notes_are_dropped_and_other_lines_are_not(end, expected):
    assert stderr_of("-c", BODY.format(end=end)) == expected


@pytest.mark.parametrize(
    "program, arguments, error",
    [
        ("transformer.train", ["--gin_param=train.stepss = 2"], "ConfigError: "),
        (
            "examples.bert.run_classifier",
            ["--data_dir=none", "--vocab_file=none", "--output_dir=none", "--do_train"],
            "VocabularyError: ",
        ),
        (
            "examples.bert.create_pretraining_data",
            ["--input_file=none", "--output_file=none", "--vocab_file=none"],
            "DataError: ",
        ),
    ],
)
def test_programs_begin_with_their_own_lines(program, arguments, error):
    assert stderr_of("-m", program, *arguments).startswith(error)
