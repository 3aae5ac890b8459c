"""Files are read before anything is run or bound."""

from __future__ import annotations

import sys

import gin
import pytest

from transformer.cli.command_line import ConfigError, configure
from transformer.cli.gin_statements import read_statements


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def test_what_statements_refer_to():
    statements = read_statements(
        [], ["a.b = (%x, {'k': @outer/inner/f()})", "s/c.d = 1"], allowed=()
    )
    assert [binding.selector for binding in statements.bindings] == ["a", "c"]
    assert statements.used_macros == {"x"}
    assert statements.used_scopes == {"outer", "outer/inner", "inner"}


def test_nothing_runs_before_all_imports_are_allowed(tmp_path, monkeypatch):
    (tmp_path / "mine_too.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "mine.gin"
    path.write_text("import mine_too\ntrain.steps = 3\nimport evil\n")
    with pytest.raises(ConfigError, match="may not import 'evil'"):
        configure([str(path)], [], allowed=["mine_too"])
    assert "mine_too" not in sys.modules and not gin.config_str()


def test_an_included_file_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text("\ninclude 'lm_stdlb.gin'\n")
    with pytest.raises(
        ConfigError,
        match=r"no gin file 'lm_stdlb.gin'(.|\n)*mine.gin\", line 2\n    include",
    ):
        configure([str(path)], [])
