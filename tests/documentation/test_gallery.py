"""docs/reference/layouts.md and its pictures are what `make gallery` writes today."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.gallery import __main__ as gallery
from benchmarks.gallery.layout_svg import picture

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "reference"


@functools.cache
def forecast(name):
    return gallery.explain(f"layouts/{name}.gin")


def test_the_page_is_up_to_date():
    files = gallery.page()
    there = {
        "layouts.md",
        *(f"layouts/{path.name}" for path in (DOCS / "layouts").iterdir()),
    }
    assert there == files.keys()
    for name, text in files.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, (
            f"docs/reference/{name} is not what the forecasts say: make gallery writes it anew"
        )


def test_every_layout_has_a_section():
    names = {path.stem for path in (ROOT / "configs" / "layouts").glob("*.gin")}
    assert names == set(gallery.LAYOUTS)


@pytest.mark.parametrize("name", gallery.LAYOUTS)
def test_a_position_holds_one_part_of_each_tensor(name):
    rows = gallery.rows(forecast(name))
    drawn = ElementTree.fromstring(picture(forecast(name), "A title & more", rows))
    kinds = [
        path.get("class", "") for path in drawn.iter("{http://www.w3.org/2000/svg}path")
    ]
    parts = [
        math.prod(
            -(-size // local)
            for (_, size), local in zip(row.tensor.shape, row.tensor.local)
        )
        for row in rows
    ]
    faces, positions = 3, forecast(name).positions
    for position in range(positions):
        assert kinds.count(f"held p{position}") == faces * len(rows)
    assert kinds.count("other") == faces * positions * sum(n - 1 for n in parts)
