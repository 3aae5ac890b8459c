"""Commands configure their process before any of their code runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import meshtf as mtf
from transformer.cli.program import run_main

ROOT = Path(__file__).resolve().parents[3]


def test_the_process_is_configured_before_main(monkeypatch):
    order = []
    monkeypatch.setattr(mtf, "configure_process", lambda: order.append("configured"))
    monkeypatch.setattr(sys, "argv", ["program"])
    with pytest.raises(SystemExit) as left:
        run_main(lambda argv: order.append(argv) or 3)
    assert left.value.code == 3
    assert order == ["configured", ["program"]]


@pytest.mark.parametrize("folder", ["transformer", "examples/bert"])
def test_every_program_starts_so(folder):
    programs = {
        path.name: path.read_text(encoding="utf-8")
        for path in (ROOT / folder).rglob("*.py")
        if re.search('^if __name__ == "__main__":', path.read_text(), re.MULTILINE)
    }
    assert len(programs) >= 5
    assert not [name for name, text in programs.items() if "run_main(main)" not in text]
