"""The page: one document that loads nothing, holds the whole forecast, and believes no
name.
"""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re

import pytest

from meshtf.forecast import (
    Collective,
    Computation,
    Forecast,
    LiveTensors,
    Memory,
    PlacedTensor,
    Stage,
    StoredTensor,
)
from meshtf.forecast.reports.html_report import page
from meshtf.forecast.reports.totals import totals
from meshtf.forecast.reports.user_lines import short_paths

HOSTILE = (
    "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>&amp;'\"\u2028"
    " {{data}} \\u003c"
)
X = PlacedTensor(
    (("batch", 8), ("d_model", 16)), "float32", ("batch", "replicated"), (2, 16), 128.0
)
PARTIAL = dataclasses.replace(X, states=("batch", "sum"))
REDUCE = Collective("all_reduce", "model", PARTIAL, X, 128.0, "forward")


def op(index, line=1, outputs=(X,), collectives=(), **overrides):
    """An op called by its own name."""
    fields = {
        "title": "einsum",
        "function": "einsum",
        "file": "/a/mlp.py",
        "phase": "forward",
        "repeated": 1,
        "flops": 8.0,
    } | overrides
    return Computation(
        index=index, line=line, outputs=outputs, collectives=collectives, **fields
    )


SMALL = Forecast(
    "train",
    (("data", 4), ("model", 2)),
    "batch:data",
    "batch:data",
    "batch:data",
    (
        op(0),
        op(1, 2, (X, PARTIAL), (REDUCE,)),
        op(5, 2, (X, PARTIAL), (REDUCE,)),
        op(7, function="Dense", phase="backward", repeated=2),
    ),
    (REDUCE,),
    (
        StoredTensor("w", X, "parameter"),
        StoredTensor("w/m", PARTIAL, "optimizer state"),
    ),
    Memory(1, 2, 3, 4, 5, 6, 7),
    ("a note",),
    "LayoutError: no.",
    live=(
        LiveTensors("activation", "relu", "lm/block_*", X, "relu", "/a/mlp.py", 3, 2),
        LiveTensors("parameter", "variable", "w", X, "", "", 0),
    ),
    device_memory=4.0,
)


STAGED = dataclasses.replace(SMALL, stages=(Stage(8, 2, 5, 7), Stage(8, 1, 3, 4)))


def named(text):
    """Returns a forecast whose names and messages are all a text."""
    module = text.replace("/", "|")  # a path of one name
    return dataclasses.replace(
        SMALL,
        name=text,
        notes=(text,),
        error=text,
        layout=text,
        axes=((text, 8),),
        ops=(op(0, title=text, function=text, file=f"/a/{text}.py", path=module),),
        results=(),
        variables=(
            StoredTensor(
                text, dataclasses.replace(X, shape=((f"{text}.", 8),)), "parameter"
            ),
        ),
        live=(LiveTensors("temporary", text, module, X, text, f"/a/{text}.py", 3),),
    )


NASTY = named(HOSTILE)


def large():
    """A forecast of 5,000 ops on 2,048 positions: 25 layers of 200 ops, no two of a
    layer equal.
    """
    tensors = [
        dataclasses.replace(
            X, shape=(("batch", 64 * i), ("length", 512), ("d_model", 1024))
        )
        for i in range(1, 201)
    ]
    collectives = [
        Collective("all_gather", "data", x, x, 1.0 * i, "forward")
        for i, x in enumerate(tensors)
    ]
    ops = tuple(
        op(i, i % 200, (tensors[i % 200],), (collectives[i % 200],))
        for i in range(5000)
    )
    return dataclasses.replace(
        SMALL, axes=(("data", 64), ("model", 32)), ops=ops, error=None
    )


class Reader(html.parser.HTMLParser):
    """Keeps the tags of a document, in pairs, and the texts of its scripts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.tags = []
        self.texts = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append((tag, dict(attrs).get("id", "")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            key = self.open[-1]
            self.texts[key] = self.texts.get(key, "") + data


def embedded(text):
    """Returns the data of a page."""
    return json.loads(Reader(text).texts["script", "forecast"])


def unpacked(data):
    """Returns a forecast as plain data, put together from what a page holds."""

    def collective(index):
        collective = data["collectives"][index]
        return collective | {
            key: data["tensors"][collective[key]] for key in ("tensor", "after")
        }

    def op_of(index, kind, path):
        fields = {
            key: value for key, value in data["kinds"][kind].items() if key != "direct"
        }
        return fields | {
            "index": index,
            "path": path,
            "collectives": [collective(m) for m in fields["collectives"]],
            "outputs": [data["tensors"][x] for x in fields["outputs"]],
        }

    fields = {field.name: data[field.name] for field in dataclasses.fields(Forecast)}
    return fields | {
        "ops": [op_of(*pair) for pair in data["ops"]],
        "results": [collective(m) for m in data["results"]],
        "variables": [
            v | {"tensor": data["tensors"][v["tensor"]]} for v in data["variables"]
        ],
        "live": [v | {"tensor": data["tensors"][v["tensor"]]} for v in data["live"]],
    }


@pytest.mark.parametrize(
    "forecast",
    [SMALL, STAGED, NASTY, large()],
    ids=["small", "staged", "nasty", "large"],
)
def test_the_page_holds_the_forecast(forecast):
    data = embedded(page(forecast))
    assert unpacked(data) == json.loads(json.dumps(forecast.as_dict()))
    plain = {"totals": totals(forecast), "paths": short_paths(forecast)}
    assert {key: data[key] for key in plain} == json.loads(json.dumps(plain))


def test_equal_things_are_held_once():
    data = embedded(page(SMALL))
    assert [len(data[key]) for key in ("tensors", "collectives", "kinds")] == [2, 1, 3]
    assert data["ops"] == [[0, 0, ""], [1, 1, ""], [5, 1, ""], [7, 2, ""]]
    assert [kind["direct"] for kind in data["kinds"]] == [True, True, False]


def test_a_deep_model_on_many_positions_makes_a_small_page():
    forecast = large()
    text = page(forecast)
    assert len(text) < 400_000
    data = embedded(text)
    assert data["folded"] == [[25, list(range(200))]]


def test_the_document_is_whole():
    reader = Reader(page(SMALL))
    assert not reader.open and reader.tags[0][0] == "html"
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert reader.texts["title", ""] == "train - forecast"


@pytest.mark.parametrize(
    "forecast", [SMALL, NASTY, large()], ids=["small", "nasty", "large"]
)
def test_nothing_is_loaded(forecast):
    text = page(forecast)
    assert "default-src 'none'" in text  # and the browser would refuse it
    loads = [
        (tag, key)
        for tag, attrs in Reader(text).tags
        for key in attrs
        if key in ("src", "href", "srcset", "data", "action")
    ]
    assert not loads
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text)
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|importScripts|sendBeacon)\b", text
    )


def test_names_of_a_program_are_never_html():
    plain = Reader(page(named("plain")))
    nasty = Reader(page(NASTY))
    assert [tag for tag, _ in nasty.tags] == [tag for tag, _ in plain.tags]
    assert nasty.texts["title", ""] == f"{HOSTILE} - forecast"
    assert embedded(page(NASTY))["kinds"][0]["function"] == HOSTILE
    assert "<img" not in page(NASTY) and page(NASTY).count("<script") == 2


def test_the_script_writes_text_only():
    script = Reader(page(SMALL)).texts["script", ""]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", script
    )


def test_the_page_can_be_read_without_a_script():
    text = page(SMALL)
    static = re.sub(r"<[^>]*>", " ", text.partition("<script")[0].partition("<main")[2])
    words = " ".join(static.split())
    for expected in (
        "train on 8 devices, costs per device and call mesh data:4; model:2",
        "the plan ends here, after op 7",
        "3 x all_reduce model 384 B",
        "4 B device memory: does not fit, 3 B too much",
        "256 B 2 x activation [ batch:8/data d_model:16] float32 relu, lm/block_*, "
        "mlp.py:3",
        "mlp.py:2",
        "+model",
        "&larr; all_reduce model",
        "2 variables",
    ):
        assert expected in words, expected


def test_light_and_dark():
    text = page(SMALL)
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    names = set(re.findall(r"(--[\w-]+):", light)) - {"--mono"}
    # Every colour that dark pages change is one of the light page's, and no colour is
    # left out.
    assert set(re.findall(r"(--[\w-]+):", dark.split("* { box-sizing")[0])) == names
