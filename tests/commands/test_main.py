"""`python -m meshtf`: which commands there are, their exit codes, and that they find
errors.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshtf import __main__ as program
from tests.support.native_notes import without_native_notes

ROOT = Path(__file__).resolve().parents[2]


def leave(argv, capsys):
    """Returns the exit code, stdout and stderr of a call of the program."""
    with pytest.raises(SystemExit) as exit:
        program.main(["meshtf", *argv])
    return (exit.value.code, *capsys.readouterr())


@pytest.mark.parametrize("argv", [[], ["help"], ["--help"], ["-h"]])
def test_it_lists_its_commands(argv, capsys):
    code, out, err = leave(argv, capsys)
    assert code == 0 and not err
    for command, (_, text) in program.COMMANDS.items():
        assert f"  {command}" in out and text in out


@pytest.mark.parametrize(
    "command, hint", [("selfchek", "Did you mean selfcheck"), ("--quick", "")]
)
def test_an_unknown_command_is_refused_with_near_misses(command, hint, capsys):
    code, out, err = leave([command], capsys)
    assert code == 2 and not out
    assert (
        err.startswith(f"There is no command {command!r}.")
        and hint in err
        and "explain" in err
    )


@pytest.mark.parametrize("command", program.COMMANDS)
def test_every_command_has_a_main(command):
    module = importlib.import_module(program.COMMANDS[command][0])
    assert callable(module.main) and f"python -m meshtf {command}" in module.__doc__


def run(*flags, code="import sys; from meshtf import __main__ as m; m.main(sys.argv)"):
    """Returns the finished process of a self-check of its own."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, "-c", code, "selfcheck", *flags],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


BREAK = """
import sys
from meshtf import __main__ as program
from meshtf.ops.nn.softmax import Softmax
Softmax.statistics_dims = lambda self: ()
program.main(sys.argv)
"""


@pytest.mark.slow
def test_the_exit_code_tells_whether_all_passed():
    flags = ["--quick", "--ops=softmax.Softmax", "--logical=2"]
    good = run(*flags, "--verbosity=0")
    bad = run(*flags, code=BREAK)
    assert good.returncode == 0 and "Passed on CPU" in good.stdout, good.stderr
    (line,) = without_native_notes(good.stderr).splitlines()
    assert "process: CPUs keep freed memory" in line
    assert not without_native_notes(bad.stderr)
    assert bad.returncode == 1 and "FAILED on CPU" in bad.stdout, bad.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, why",
    [(["--ops=einsom"], "Did you mean einsum"), (["quick"], "'quick' is not a flag")],
)
def test_wrong_flags_are_told(flags, why):
    done = run(*flags)
    assert done.returncode == 2 and why in done.stderr and not done.stdout


@pytest.mark.slow
def test_help_shows_the_flags_of_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "meshtf", "selfcheck", "--help"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--logical" in done.stdout and "selfcheck --quick" in done.stdout
