"""The pages of docs/reference that list settings, commands and errors list all of them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from benchmarks.reference import __main__ as reference
from benchmarks.reference import commands, settings
from meshtf import errors

pytestmark = pytest.mark.every_case

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", ["settings.md", "commands.md"])
def test_a_page_is_what_the_code_says(name):
    text = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert text == reference.pages()[name], (
        f"python -m benchmarks.reference writes docs/reference/{name} anew"
    )


def test_every_setting_has_a_meaning():
    unexplained = [
        f"{name}.{setting}"
        for name, wrapped in settings.configurables()
        for setting, _, meaning in settings.settings(wrapped)
        if not meaning
    ]
    assert not unexplained


def test_every_configurable_has_a_section():
    page = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^### `(.*)`$", page, re.MULTILINE))
    assert sections == {name for name, _ in settings.configurables()}


def test_flags_are_read_from_the_source():
    (steps,) = [
        flag
        for flag in commands.flags_of("meshtf.commands.timeouts")
        if flag.name == "restarts"
    ]
    assert steps.default == "`0`" and steps.help
    modules = commands.adopted_modules("transformer.train")
    assert "transformer.cli.command_line" in modules


def test_every_error_has_an_example():
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    classes = [
        one
        for _, one in inspect.getmembers(errors, inspect.isclass)
        if issubclass(one, (errors.MeshtfError, Warning))
        and one is not errors.MeshtfError
        and one.__module__ == errors.__name__
    ]
    for one in classes:
        assert f"[`{one.__name__}`](" in page
        if issubclass(one, errors.MeshtfError):
            _, _, section = page.partition(f"\n## {one.__name__}\n")
            section = section.split("\n## ")[0]
            assert re.search(rf"^{one.__name__}: ", section, re.MULTILINE), one


def test_settings_of_the_migration_page_exist():
    page = (DOCS / "explain" / "mesh_tensorflow_transformer.md").read_text(
        encoding="utf-8"
    )
    known = dict(settings.configurables())
    cells = re.findall(r"^\|[^|]*\|(.*)\|$", page, re.MULTILINE)
    named = re.findall(r"`@?(\w+)\.(\w+)", " ".join(cells))
    checked = [(owner, name) for owner, name in named if owner in known]
    assert len(checked) > 30
    for owner, name in checked:
        assert name in inspect.signature(known[owner]).parameters, f"{owner}.{name}"
