"""Time lines and splits as text and as pictures."""

from __future__ import annotations

import re
from fractions import Fraction
from xml.etree import ElementTree

import pytest

from meshtf.pipeline import Layer, Timeline, gpipe, interleaved, one_f_one_b, simulate
from meshtf.pipeline.drawing import split_svg, split_text, timeline_svg, timeline_text

SVG = "{http://www.w3.org/2000/svg}"
LAYERS = [
    Layer("stem", 1, 1000, 2048),
    Layer("cell_0", 5, 20_000, 1024),
    Layer("cell_1", 2, 0, 0),
    Layer("head", 2, 300, 512),
]


def bars(drawn, kind):
    """Returns left ends and widths of the bars of a class."""
    return [
        (float(r.get("x")), float(r.get("width")))
        for r in drawn.iter(SVG + "rect")
        if kind in r.get("class").split()
    ]


def words(drawn):
    """Returns what stands in a picture."""
    return [t.text for t in drawn.iter(SVG + "text")]


def test_a_time_line_as_text():
    line = simulate(one_f_one_b(2, 2), recompute=1)
    assert timeline_text(line, 9 + 3 * line.time).split("\n")[:-1] == [
        "stage 0  F0-F1-         R0~B0====   R1~B1====",
        "stage 1     F0-R0~B0====F1-R1~B1====",
    ]
    chunks = simulate(interleaved(2, 2, 2))
    assert timeline_text(chunks, 9 + 3 * chunks.time).split("\n")[1] == (
        "stage 1     F0-F1-F0bB0b===F1bB1b===B0====B1===="
    )


def test_each_character_of_a_time_line_is_the_same_time():
    line = simulate(gpipe(3, 4), [1, 2, 1], send=1)
    rows = timeline_text(line, 9 + 3 * line.time).split("\n")
    assert len(rows) == 3 + 1
    for span in line.spans:
        drawn = rows[span.task.stage][9 + 3 * span.start : 9 + 3 * span.end]
        assert re.fullmatch(f"{span.task.label}[-=]*", drawn)
    for stage, busy in enumerate(line.busy):
        assert len(rows[stage][9:].replace(" ", "")) == 3 * busy


def test_what_is_too_short_for_its_number_has_a_letter():
    assert timeline_text(simulate(gpipe(1, 2)), 9 + 6).startswith("stage 0  FFB1B0\n")


def test_a_time_line_says_what_it_comes_to():
    text = timeline_text(simulate(one_f_one_b(4, 8), Fraction(1, 2)))
    assert text.endswith(
        "\ntime 16.5 units of cost; idle 27.3 %; 2.91 times as fast as one stage; "
        "holds at most 4, 3, 2, 1"
    )


@pytest.mark.parametrize(
    "unit, time",
    [("FLOP", "16.5 kFLOP"), ("s", "16500 s"), ("ms", "16500 ms")],
)
def test_the_time_has_a_unit(unit, time):
    line = simulate(one_f_one_b(4, 8), 500)
    assert f"\ntime {time}; idle" in timeline_text(line, unit=unit)


def test_a_line_may_start_at_any_time():
    line = simulate(gpipe(2, 3))
    later = Timeline(
        tuple(s._replace(start=s.start + 100, end=s.end + 100) for s in line.spans)
    )
    assert timeline_text(later) == timeline_text(line)
    assert timeline_svg("A", {"": later}) == timeline_svg("A", {"": line})


def test_time_lines_as_a_picture_have_one_scale():
    lines = {
        "predicted & so on": simulate(one_f_one_b(2, 3), recompute=1),
        "measured": simulate(interleaved(2, 4, 2), 2),
    }
    drawn = ElementTree.fromstring(timeline_svg("Two <lines>", lines))
    spans = [span for line in lines.values() for span in line.spans]
    scale = max(width for _, width in bars(drawn, "idle")) / lines["measured"].time
    for kind, what in (("p0", "forward"), ("p1", "backward"), ("p3", "recompute")):
        mine = [
            (span.start, span.end - span.start) for span in spans if span.kind == what
        ]
        *found, legend = bars(drawn, kind)
        assert legend[1] == 14
        assert sorted(width for _, width in found) == pytest.approx(
            sorted(scale * width for _, width in mine), abs=0.06
        )
        assert sorted(x for x, _ in found) == pytest.approx(
            sorted(96 + scale * start for start, _ in mine), abs=0.06
        )
    assert {"Two <lines>", "predicted & so on", "measured", "stage 0", "recompute"} <= {
        *words(drawn)
    }


def test_a_picture_can_be_read_in_the_dark():
    picture = timeline_svg("A", {"": simulate(gpipe(2, 2))})
    assert "prefers-color-scheme: dark" in picture and "http" not in picture.replace(
        SVG[1:-1], ""
    )
    assert "recompute" not in picture.partition("</style>")[2]


def test_a_split_as_a_table():
    assert split_text(LAYERS, (1, 2, 1)).split("\n") == [
        "chunk     layers              cost                        parameters  "
        "activations",
        "0      1  stem              10.0 %  ###                        1,000     2.00 "
        "KiB",
        "1      2  cell_0 .. cell_1  70.0 %  ####################      20,000     1.00 "
        "KiB",
        "2      1  head              20.0 %  ######                       300        "
        "512 B",
        "all    4                                                      21,300     3.50 "
        "KiB",
    ]


def test_a_split_as_a_picture():
    drawn = ElementTree.fromstring(split_svg("A split", LAYERS, (1, 2, 1)))
    widths = [width for i in range(4) for _, width in bars(drawn, f"p{i}")]
    assert widths == pytest.approx([cost * 420 / 7 for cost in (1, 5, 2, 2)])
    assert {"10.0 %, 1 layer", "70.0 %, 2 layers", "20,000", "1.00 KiB", "chunk 2"} <= {
        *words(drawn)
    }


def test_layers_that_cost_nothing_are_drawn_too():
    free = [layer._replace(cost=0) for layer in LAYERS]
    assert "0.0 %" in split_text(free, (2, 2))
    ElementTree.fromstring(split_svg("free", free, (2, 2)))
