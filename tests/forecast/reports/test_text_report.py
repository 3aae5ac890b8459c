"""Forecasts as text and as JSON: lines, units, what is folded, sums, and the position of
an error.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from meshtf.forecast import Forecast
from meshtf.forecast.report_data import (
    PHASES,
    Collective,
    Computation,
    Memory,
    PlacedTensor,
    StoredTensor,
)
from meshtf.forecast.reports.text_report import as_json, table
from meshtf.forecast.reports.totals import fold, gathered_dims, totals
from meshtf.forecast.reports.units import bytes_text, flops_text
from meshtf.forecast.reports.user_lines import short_paths

AXES = (("data", 4), ("model", 2))
LAYOUT = "batch:data; d_ff:model"
X = PlacedTensor(
    (("batch", 8), ("d_model", 16)), "float32", ("batch", "replicated"), (2, 16), 128.0
)
PARTIAL = dataclasses.replace(X, states=("batch", "sum"))
WHOLE = dataclasses.replace(
    X, states=("replicated", "replicated"), local=(8, 16), bytes=512.0
)
H = PlacedTensor(
    (("batch", 8), ("d_ff", 32)), "float32", ("batch", "d_ff"), (2, 16), 128.0
)
W = PlacedTensor(
    (("d_model", 16), ("d_ff", 32)), "float32", ("replicated", "d_ff"), (16, 16), 1024.0
)
REDUCE = Collective("all_reduce", "model", PARTIAL, X, 128.0, "forward")
GATHER = Collective("all_gather", "data", X, WHOLE, 384.0, "backward")
SLICE = Collective("slice", "data", WHOLE, X, 0.0, "backward")


def op(index, title, line, outputs, collectives=(), flops=0.0, **overrides):
    """An op called by its own name in the forward pass."""
    fields = {"function": title, "file": "/a/mlp.py", "phase": "forward", "repeated": 1}
    fields |= overrides
    return Computation(
        index,
        title,
        line=line,
        outputs=outputs,
        collectives=collectives,
        flops=flops,
        **fields,
    )


OPS = (
    op(0, "einsum", 9, (H,), flops=1024.0),
    op(1, "relu", 9, (H,), flops=32.0),
    op(2, "einsum", 10, (PARTIAL,), flops=1024.0),
    op(3, "dropout_mask", 11, (X,), flops=96.0, repeated=2, function="Dropout"),
    op(4, "add", 11, (X,), (REDUCE,), flops=32.0, repeated=2),
    op(5, "einsum", 10, (W,), (GATHER, SLICE), flops=4096.0, phase="backward"),
    op(
        6,
        "update",
        20,
        (W,),
        flops=3072.0,
        phase="update",
        repeated=4,
        file="/b/mlp.py",
    ),
)
SMALL = Forecast(
    "train",
    AXES,
    LAYOUT,
    LAYOUT,
    LAYOUT + "; d_model:data",
    OPS,
    (REDUCE,),
    (StoredTensor("w", W, "parameter"),),
    Memory(2048, 4096, 0, 128, 2048, 1536, 3 * 2**20),
    notes=("layout rule 'head:model': no dimension is called so.",),
)


def deep(layers, ops):
    """A forecast of equal layers on 2,048 positions."""
    one = [op(0, "einsum", line, (H,), (REDUCE,), flops=8.0) for line in range(ops)]
    every = (dataclasses.replace(one[i % ops], index=i) for i in range(layers * ops))
    return dataclasses.replace(
        SMALL, axes=(("data", 64), ("model", 32)), results=(), ops=(*OPS, *every)
    )


def test_the_head_and_the_sums():
    assert table(SMALL).split("\n")[:12] == [
        "train on 8 devices, costs per device and call",
        "  mesh              data:4; model:2",
        "  layout            batch:data; d_ff:model",
        "  optimizer_layout  batch:data; d_ff:model; d_model:data",
        "",
        "                                         forward      backward        "
        "update           all",
        "  FLOPs                               2.21 kFLOP    4.10 kFLOP    3.07 "
        "kFLOP    9.38 kFLOP",
        "    redundant FLOPs                      64 FLOP             -    2.30 "
        "kFLOP    2.37 kFLOP",
        "  bytes received per device                256 B         384 B             "
        "-         640 B",
        "    1 x all_gather data                        -         384 B             "
        "-         384 B",
        "    2 x all_reduce model                   256 B             -             "
        "-         256 B",
        "",
    ]


def test_memory_notes_and_what_costs():
    assert table(SMALL).split("\n")[12:33] == [
        "  memory",
        "    parameters            2.00 KiB",
        "    optimizer state       4.00 KiB",
        "    other variables              0",
        "    arguments                128 B",
        "    gradients             2.00 KiB",
        "    activations           1.50 KiB",
        "    peak                  3.00 MiB",
        "",
        "  notes",
        "    layout rule 'head:model': no dimension is called so.",
        "",
        "  gathered dimensions",
        "         384 B  1 x batch over data, for einsum at a/mlp.py:10",
        "",
        "  redundant FLOPs",
        "    2.30 kFLOP  update at b/mlp.py:20: identical on 4 devices",
        "       48 FLOP  Dropout at a/mlp.py:11: identical on 2 devices",
        "       16 FLOP  add at a/mlp.py:11: identical on 2 devices",
        "",
        "  ops",
    ]


def squeezed(text):
    """Returns the rows of the op table, with single spaces."""
    rows = text.split("  ops\n")[1].split("\n")[2:]
    return [" ".join(row.split()) for row in rows]


def test_ops_stand_under_the_users_line():
    assert squeezed(table(SMALL)) == [
        "forward",
        "a/mlp.py:9",
        "einsum [batch:8/data d_ff:32/model] 1.02 kFLOP",
        "relu [batch:8/data d_ff:32/model] 32 FLOP",
        "a/mlp.py:10",
        "einsum [batch:8/data d_model:16] +model 1.02 kFLOP",
        "a/mlp.py:11 Dropout",
        "dropout_mask [batch:8/data d_model:16] 96 FLOP identical on 2",
        "add [batch:8/data d_model:16] 32 FLOP identical on 2",
        "<- all_reduce model [batch:8/data d_model:16] +model 128 B",
        "backward",
        "a/mlp.py:10",
        "einsum [d_model:16 d_ff:32/model] 4.10 kFLOP",
        "<- all_gather data [batch:8/data d_model:16] 384 B",
        "<- slice data [batch:8 d_model:16] -> [batch:8/data d_model:16] 0",
        "update",
        "b/mlp.py:20",
        "update [d_model:16 d_ff:32/model] 3.07 kFLOP identical on 4",
        "results",
        "<- all_reduce model [batch:8/data d_model:16] +model 128 B",
    ]


def test_columns_of_the_op_table():
    rows = table(SMALL).split("\n")
    (einsum,) = (row for row in rows if "relu" in row)
    (collective,) = (row for row in rows if "<- all_gather" in row)
    assert einsum.startswith("        relu          [batch:8/data d_ff:32/model]   ")
    assert len(einsum) == len(collective) and collective.startswith(
        "          <- all_gather data  [batch"
    )


def test_equal_layers_are_written_once():
    forecast = deep(24, 200)
    text = table(forecast)
    rows = squeezed(text)
    assert "24 times these 200 ops, each time 1.60 kFLOP and 25.0 KiB received" in rows
    assert rows.count("| einsum [batch:8/data d_ff:32/model] 8 FLOP") == 200
    assert len(text.split("\n")) < 700
    assert max(map(len, text.split("\n"))) <= 110


def test_long_shapes_go_on_below_themselves():
    long = dataclasses.replace(
        X, shape=tuple((f"a_dimension_{i}", 7) for i in range(9))
    )
    text = table(dataclasses.replace(SMALL, ops=(op(0, "einsum", 1, (long, H)),)))
    assert max(map(len, text.split("\n"))) <= 110
    assert (
        all(f"a_dimension_{i}:7" in text for i in range(9))
        and "[batch:8/data d_ff:32/m" in text
    )


@pytest.mark.parametrize(
    "keys, folded",
    [
        ("", ()),
        ("abc", (0, 1, 2)),
        ("aaaa", (0, 1, 2, 3)),  # saves too little
        ("aaaaa", ((5, (0,)),)),
        ("ababab", ((3, (0, 1)),)),
        ("xababababy", (0, (4, (1, 2)), 9)),
        ("abcdabcda", ((2, (0, 1, 2, 3)), 8)),
        ("aaaaabaaaaab", ((2, ((5, (0,)), 5)),)),  # a stretch within a stretch
        ("abababcabababc", ((2, ((3, (0, 1)), 6)),)),
        (
            "ababababcabab" * 2,
            ((2, ((4, (0, 1)), 8, 9, 10, 11, 12)),),
        ),  # not into the next one
        ("aabaabaabab", ((3, (0, 1, 2)), 9, 10)),
    ],
)
def test_folding(keys, folded):
    assert fold(keys) == folded


def unfolded(items, shift=0):
    """Returns the indices of a folded sequence, a repeated run by its first
    occurrences.
    """
    for item in items:
        yield from [item] if isinstance(item, int) else [*unfolded(item[1])] * item[0]


def test_folding_loses_nothing():
    keys = [i * i % 7 for i in range(300)] + [1, 2, 1, 2, 3] * 40 + [5] * 60
    assert [keys[i] for i in unfolded(fold(keys))] == keys


def test_ops_that_differ_only_in_their_moves_are_not_folded():
    ops = tuple(
        op(i, "add", 3, (X,), (REDUCE,) if i % 7 == 0 else ()) for i in range(14)
    )
    rows = squeezed(table(dataclasses.replace(SMALL, ops=ops, results=())))
    assert rows[0] == "forward"
    assert rows[1] == "2 times these 7 ops, each time 0 and 128 B received"
    assert sum("<-" in row for row in rows) == 1


def test_an_error_stands_where_the_plan_ends():
    broken = dataclasses.replace(
        SMALL, error="LayoutError: no.\n  layout  d_ff:model", results=()
    )
    assert table(broken).split("\n")[-3:] == [
        "!! the plan ends here, after op 6, update at b/mlp.py:20:",
        "!! LayoutError: no.",
        "!!   layout  d_ff:model",
    ]
    early = table(dataclasses.replace(broken, ops=()))
    assert "!! the plan ends here, before the first op:\n!! LayoutError" in early
    assert "  ops" not in early and "!!" not in table(SMALL)


@pytest.mark.parametrize(
    "amount, text",
    [
        (0, "0"),
        (1, "1 B"),
        (6.4, "6 B"),
        (1023, "1023 B"),
        (1023.7, "1.00 KiB"),
        (1024, "1.00 KiB"),
        (10230, "9.99 KiB"),
        (10240, "10.0 KiB"),
        (102400, "100 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (3.5 * 2**30, "3.50 GiB"),
        (2**50, "1.00 PiB"),
        (2**62, "4096 PiB"),
    ],
)
def test_bytes(amount, text):
    assert bytes_text(amount) == text


@pytest.mark.parametrize(
    "amount, text",
    [
        (0, "0"),
        (999, "999 FLOP"),
        (1000, "1.00 kFLOP"),
        (12345, "12.3 kFLOP"),
        (2e6, "2.00 MFLOP"),
        (999.6e6, "1.00 GFLOP"),
        (3e12, "3.00 TFLOP"),
        (1e18, "1.00 EFLOP"),
    ],
)
def test_flops(amount, text):
    assert flops_text(amount) == text


def test_files_of_one_name_are_told_apart():
    ops = tuple(
        op(i, "add", 1, (X,), file=file)
        for i, file in enumerate(
            ["/p/a/model.py", "/p/b/model.py", "/p/b/train.py", "model.py", ""]
        )
    )
    assert short_paths(dataclasses.replace(SMALL, ops=ops)) == {
        "/p/a/model.py": "a/model.py",
        "/p/b/model.py": "b/model.py",
        "/p/b/train.py": "train.py",
        "model.py": "model.py",
    }


def test_only_a_dimension_that_becomes_whole_is_gathered():
    assert [*map(gathered_dims, (GATHER, REDUCE, SLICE))] == [["batch"], [], []]
    both = dataclasses.replace(X, states=("batch", "batch"))
    assert not gathered_dims(Collective("all_gather", "model", both, X, 1.0, "forward"))


def test_totals_agree_with_the_forecast():
    forecast = deep(3, 5)
    sums = totals(forecast)
    for phase in PHASES:
        assert sums["flops"][phase] == forecast.flops(phase)
        assert sums["repeated_flops"][phase] == pytest.approx(
            forecast.repeated_flops(phase)
        )
        for name in ("collectives", "lines"):
            assert sum(row[phase] for row in sums[name]) == forecast.bytes_moved(
                phase=phase
            )
    assert sums["flops"]["all"] == forecast.flops() and sums["positions"] == 2048
    for row in sums["collectives"]:
        assert row["all"] == forecast.bytes_moved(row["kind"], row["axis"])
        assert row["times"] == sum(
            (m.kind, m.axis) == (row["kind"], row["axis"]) for m in forecast.collectives
        )


def test_json_holds_everything():
    saved = json.loads(as_json(SMALL))
    sums = saved.pop("totals")
    assert sums == json.loads(json.dumps(totals(SMALL)))
    assert saved == json.loads(json.dumps(SMALL.as_dict()))
    assert saved["ops"][4]["collectives"][0]["tensor"]["states"] == ["batch", "sum"]
    assert [*saved] == [field.name for field in dataclasses.fields(Forecast)]


def test_json_has_a_line_for_each_op():
    lines = as_json(SMALL).split("\n")
    assert sum(line.startswith('{"index": ') for line in lines) == len(OPS)


def test_json_has_no_number_that_is_none():
    add = op(0, "add", 1, (X,), flops=float("nan"))
    with pytest.raises(ValueError):
        as_json(dataclasses.replace(SMALL, ops=(add,)))


def test_a_forecast_of_nothing():
    nothing = Forecast("f", (), "", "", "", (), (), (), Memory(0, 0, 0, 0, 0, 0, 0))
    text = table(nothing)
    assert text.startswith(
        "f on 1 device, costs per device and call\n  mesh              (one device)\n"
        "  layout            (shards nothing)\n"
    )
    assert "ops" not in text
