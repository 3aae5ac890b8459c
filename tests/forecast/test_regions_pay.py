"""Two regions move fewer bytes than any single layout that shares the work
(examples/two_regions).

Single layouts that move less are there: the empty one moves nothing. So what is held
is: one that moves no more than the regions has each position do twice the work, or,
where it lies along two axes, one and a half times. Layouts along one axis are all
tried; of those along two, 30 are drawn.
"""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path

import pytest

import meshtf as mtf

PATH = Path(__file__).resolve().parents[2] / "examples" / "two_regions.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(PATH))


@pytest.fixture(scope="module")
def regions(example):
    """The forecast of the two regions, on eight positions."""
    return forecast(example, "all:8", example["FRONT"], example["BACK"])


def forecast(example, axes, rules, back=""):
    """Returns the forecast of a step, or None if the layout is refused."""
    try:
        plan = mtf.explain(
            example["train_step"](mtf.Mesh(axes, rules, devices="abstract"), back),
            example["X"],
        )
    except mtf.LayoutError:
        return None
    return plan if plan.error is None else None


def names_of(plan):
    """Returns all names of dimensions of a program, arguments and variables
    included.
    """
    tensors = [out for op in plan.ops for out in op.outputs] + [
        v.tensor for v in plan.variables
    ]
    return sorted({name for tensor in tensors for name, _ in tensor.shape})


def legal(example, axes, names):
    """Returns the sets of names that a single axis can shard."""
    clash = {
        pair
        for pair in itertools.combinations(names, 2)
        if forecast(example, axes, ";".join(f"{n}:all" for n in pair)) is None
    }
    sets = [()]
    for name in names:
        sets += [(*s, name) for s in sets if not any((n, name) in clash for n in s)]
    return [
        s
        for s in sets
        if len(s) != 1 or forecast(example, axes, f"{s[0]}:all") is not None
    ]


def pays(regions, plan, work):
    """Whether the regions move fewer bytes, or the plan has a position do `work` times
    as much.
    """
    return (
        regions.bytes_moved() < plan.bytes_moved()
        or plan.flops() > work * regions.flops()
    )


def test_no_single_layout_along_one_axis_moves_less(example, regions):
    names = names_of(regions)
    assert {*example["DIMENSIONS"]} < {*names}
    plans = {
        s: forecast(example, "all:8", ";".join(f"{n}:all" for n in s))
        for s in legal(example, "all:8", names)
    }
    assert {"batch"} in map(set, plans) and {"pixels", "heads", "d_ff"} in map(
        set, plans
    )
    assert len(plans) > 20 and all(pays(regions, plan, 2) for plan in plans.values())
    sharing = [plan for plan in plans.values() if plan.flops() < 1.5 * regions.flops()]
    assert len(sharing) > 5
    assert all(plan.bytes_moved() > 1.5 * regions.bytes_moved() for plan in sharing)
    assert regions.memory.peak < min(plan.memory.peak for plan in plans.values())


def test_none_along_two_axes_either(example, regions, rng):
    sets = [s for s in legal(example, "all:4", names_of(regions)) if s]
    pairs = [(a, b) for a in sets for b in sets if not {*a} & {*b}]
    drawn = [pairs[i] for i in rng.choice(len(pairs), 30, replace=False)]
    best = [(("batch",), ("heads", "d_ff")), (("heads", "d_ff"), ("batch",))]
    for data_names, model_names in best + drawn:
        rules = [f"{n}:data" for n in data_names] + [f"{n}:model" for n in model_names]
        plan = forecast(example, "data:4;model:2", ";".join(rules))
        assert pays(regions, plan, 1.5), rules


def test_the_example_says_so_and_learns_the_same(capsys):
    runpy.run_path(str(PATH), run_name="__main__")
    *rows, one, eight = capsys.readouterr().out.splitlines()
    work = [float(row.split()[1]) for row in rows]
    (index,) = (i for i, row in enumerate(rows) if "regions" in row)
    assert min(work[:index]) > 2 * work[index]  # whoever moves less
    losses = [[float(x) for x in line.split(": ")[1].split()] for line in (one, eight)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][2] < losses[0][1] < losses[0][0]
