"""What a clone gets: plain files, which name no folder of the machine that they were written
on, and packages that can be installed as the texts say.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.documentation.test_house import ROOT

pytestmark = pytest.mark.every_case

_TOP_LEVEL = {
    *("meshtf", "transformer", "tests", "examples", "configs", "docs", "benchmarks"),
    *(".ci", ".git-blame-ignore-revs", ".gitignore", "Makefile"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
    *("setup.py", "pyproject.toml"),
}
_LINK = "120000"  # the mode of a symbolic link in git's index
# Folders of one machine: of its users, of a build, for temporary files.
_MACHINE_PATH = re.compile(
    r"(?<![\w.:/-])/(home|root|Users|work|workspace|mnt|tmp|scratch)/[\w.-]+"
)
_FROM_AN_INDEX = re.compile(r"install[^\n]*\bmeshtf\[")


def entries(root: Path) -> list[tuple[str, str]]:
    """Returns (mode, path) of each file that git tracks; skips the test without git."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "--stage", "-z"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no clone")
    lines = [line for line in done.stdout.split("\0") if line]
    return [(line.split()[0], line.partition("\t")[2]) for line in lines]


def links(root: Path) -> list[str]:
    """Returns the tracked symbolic links."""
    return [path for mode, path in entries(root) if mode == _LINK]


def lines_with(pattern: re.Pattern[str], root: Path) -> list[str]:
    """Returns the places of matches in tracked text files, such as "README.md:12: MATCH"."""
    matches = []
    for mode, path in entries(root):
        if mode == _LINK or not (root / path).is_file():
            continue
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture, or weights
        for index, line in enumerate(text.splitlines(), start=1):
            match = pattern.search(line)
            if match:
                matches.append(f"{path}:{index}: {match[0]}")
    return matches


def test_top_level_has_no_file_that_an_example_wrote():
    assert {path.split("/")[0] for _, path in entries(ROOT)} <= _TOP_LEVEL


def test_no_file_is_a_symbolic_link():
    assert not links(ROOT)


def test_no_file_names_a_folder_of_a_machine():
    assert not lines_with(_MACHINE_PATH, ROOT)


def test_extras_are_those_of_a_checkout():
    """meshtf is in no package index: it is installed from a checkout, `-e '.[spmd]'`."""
    assert not lines_with(_FROM_AN_INDEX, ROOT)


@pytest.mark.parametrize(
    "text, is_refused",
    [
        ("see /" + "home/ann/run", True),
        ("cd /" + "tmp/out && ls", True),
        ('"/' + 'work/main/x.py"', True),
        ("https://example.org/" + "home/page", False),
        ("docs/" + "home/x", False),
        ("/process:0", False),
        ("~/.cache/meshtf", False),
        ("/data/tasks", False),
    ],
)
def test_what_is_a_path_of_a_machine(tmp_path, text, is_refused):
    (tmp_path / "page.md").write_text(text)
    (tmp_path / "link").symlink_to("page.md")
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert bool(lines_with(_MACHINE_PATH, tmp_path)) is is_refused
    assert links(tmp_path) == ["link"]
