"""The language model as one program of a replica: ten steps under XLA's collectives, by
PJRT.

A step is exported as a module, run by as many CPU devices as there are replicas, and
the variables stay on the devices from step to step. Losses, variables and what Adam
keeps must be those of one device under TensorFlow, and the module that XLA makes must
communicate what was planned.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meshtf as mtf
from meshtf.partition import GatherStatisticsStep, ReshardStep, WindowStep
from meshtf.partition.cost import local_shape
from tests.support.module_runner import Runner
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

pytestmark = [
    pytest.mark.slow,
]
STEPS, BATCH, LENGTH, VOCAB = 10, 8, 8, 16
TENSOR = "heads:model; d_ff:model; vocab:model"
LAYOUTS = {
    "data": {"axes": "data:8", "layout": "batch:data"},
    "tensor": {"axes": "model:4", "layout": TENSOR},
    "2x2": {"axes": "data:2; model:2", "layout": "batch:data;" + TENSOR},
    "4x2": {"axes": "data:4; model:2", "layout": "batch:data;" + TENSOR},
    "2x4": {"axes": "data:2; model:4", "layout": "batch:data;" + TENSOR},
    "FSDP": {
        "axes": "data:4",
        "layout": "batch:data",
        "variable_layout": "d_model:data",
    },
    "ZeRO-1": {
        "axes": "data:8",
        "layout": "batch:data",
        "optimizer_layout": "d_model:data",
    },
    "length": {"axes": "seq:4", "layout": "length:seq"},
    "vocab": {"axes": "model:8", "layout": "vocab:model"},
    "width": {"axes": "model:4", "layout": "d_model:model"},
    "two axes": {
        "axes": "data:2; fsdp:2",
        "layout": "batch:data+fsdp",
        "variable_layout": "d_model:data+fsdp",
    },
    "2x2x2": {
        "axes": "data:2; seq:2; model:2",
        "variable_layout": "d_model:data",
        "layout": "batch:data; length:seq;" + TENSOR,
    },
}


def trainer(**mesh: Any) -> Trainer:
    """Returns a small model on a mesh, with dropout, Adam and clipping.

    With a smaller epsilon Adam would make a whole step of a rounding error, where a
    gradient is 0.
    """
    model = LanguageModel(
        mtf.Mesh(**mesh),
        Architecture(
            VOCAB, d_model=16, d_ff=32, heads=4, d_kv=8, blocks=1, dropout=0.2
        ),
    )
    return Trainer(
        model,
        lambda variables: mtf.optimizers.AdamW(
            variables, 0.01, weight_decay=0.1, epsilon=1e-4
        ),
        seed=7,
    )


def text(step: int) -> dict[str, np.ndarray]:
    """Returns the batch of a step."""
    sequences = (
        np.random.default_rng(step)
        .integers(0, VOCAB, (BATCH, LENGTH + 1))
        .astype("int32")
    )
    return {
        "tokens": np.ascontiguousarray(sequences[:, :-1]),
        "targets": np.ascontiguousarray(sequences[:, 1:]),
    }


@functools.cache
def on_one_device() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns losses and norms [steps, 2] of TensorFlow on one device, and all
    variables after.
    """
    one = trainer(axes="")
    curve = np.array(
        [[float(x) for x in one.step(text(step))] for step in range(STEPS)]
    )
    return curve, {name: v.numpy() for name, v in one.variables.items()}


@functools.cache
def exported(name: str) -> tuple[Trainer, mtf.Export, Runner]:
    """Returns a trainer that never ran, its step as a module, and the
    module compiled.
    """
    made = trainer(**LAYOUTS[name])
    export = made.export(text(0))
    return made, export, Runner(export, quick=True)


def train(
    export: mtf.Export, runner: Runner
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns losses and norms of ten steps by PJRT, and all variables after them."""
    mesh = export.mesh
    held = {
        port.name: runner.put(port.shard(export.values[port.name], mesh))
        for port in export.inputs
        if port.name in export.values
    }
    curve = []
    for step in range(STEPS):
        call = {f"batch_{name}": x for name, x in text(step).items()} | {
            "step": np.int32(step)
        }
        out = runner.run(
            [
                held[port.name]
                if port.name in held
                else runner.put(port.shard(call[port.name], mesh))
                for port in export.inputs
            ]
        )
        held |= {
            port.name: out[port.output]
            for port in export.inputs
            if port.output is not None
        }
        curve.append(
            [
                float(port.gather(runner.get(y), mesh))
                for port, y in zip(export.results, out)
            ]
        )
    after = {
        port.name: port.gather(runner.get(held[port.name]), mesh)
        for port in export.inputs
        if port.name in held
    }
    return np.array(curve), after


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_ten_steps_equal_one_device(name):
    _, export, runner = exported(name)
    check_equals_one_device(name, *train(export, runner))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_ten_steps_on_a_live_mesh_equal_one_device(name):
    live = trainer(**LAYOUTS[name], devices="spmd:cpu")
    curve = [[float(x) for x in live.step(text(step))] for step in range(STEPS)]
    after = {name: v.numpy() for name, v in live.variables.items()}
    check_equals_one_device(name, np.array(curve), after)


def check_equals_one_device(name, have, after):
    """Compares losses, norms and variables with those of one device."""
    want, variables = on_one_device()
    np.testing.assert_allclose(have, want, rtol=5e-5)
    assert after.keys() <= variables.keys()
    assert {v.name for v in exported(name)[0].model.trainable_variables} < after.keys()
    for name, value in after.items():
        scale = np.sqrt(
            (variables[name] ** 2).mean()
        )  # relative to a variable's own size
        np.testing.assert_allclose(
            value, variables[name], rtol=5e-5, atol=5e-5 * scale, err_msg=name
        )


_LINE = re.compile(
    r" = (.+?) (all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)"
    r"(?:-start)?\(.*?replica_groups=\{(\{.*?\})\}"
)
Collective = tuple[
    str, tuple[tuple[int, ...], ...], int
]  # kind, groups, elements of a result


def announced(made: Trainer) -> tuple[Counter[Collective], Counter[Collective]]:
    """Returns the collectives of a planned step: all, and those of one source
    but once.
    """
    mesh = made.model.mesh
    every: list[tuple[object, Collective]] = []
    for step in made._step.lower(text(0), np.int32(0)).program.steps:
        assert not isinstance(step, WindowStep)
        if isinstance(step, ReshardStep) and step.reshard.kind != "slice":
            shape = local_shape(step.out.spec.shape, step.out.placement, mesh)
            every.append(
                (
                    (step.src, step.reshard),
                    (
                        step.reshard.kind.replace("_", "-"),
                        mesh.groups(*step.reshard.axes),
                        shape.size,
                    ),
                )
            )
        elif isinstance(step, GatherStatisticsStep):
            groups = mesh.groups(*step.axes)
            every += [
                ((step, i), ("all-gather", groups, told.shape.size * len(groups[0])))
                for i, told in enumerate(step.specs(mesh))
            ]
    return Counter(what for _, what in every), Counter(dict(every).values())


def in_hlo(hlo: str) -> Iterator[Collective]:
    """Yields the collectives of optimised HLO, those that were merged one by one."""
    for result, kind, groups in _LINE.findall(hlo):
        where = tuple(
            tuple(map(int, group.split(",")))
            for group in re.findall(r"[\d,]+", groups)
            if group != ","
        )
        sizes = [
            math.prod(map(int, filter(None, dims.split(","))))
            for dims in re.findall(r"\w\d*\[([\d,]*)\]", result)
        ]
        yield from (
            (kind, where, size)
            for size in ([sum(sizes)] if kind == "all-to-all" else sizes)
        )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_xla_communicates_what_was_planned(name):
    made, _, runner = exported(name)
    every, once = announced(made)
    found = Counter(in_hlo(runner.hlo))
    assert found.total() > 0
    assert found <= every, f"the plan does not know {found - every}"
    assert found >= once, f"XLA left out {once - found}"


def test_what_xla_merges():
    """Sums side by side are one all-reduce; on CPUs FSDP's second gathering is the
    first one.
    """

    def kinds(counter):
        total: Counter[str] = Counter()
        for (kind, _, _), number in counter.items():
            total[kind] += number
        return total

    made, _, runner = exported("FSDP")
    every, once = map(kinds, announced(made))
    assert kinds(Counter(in_hlo(runner.hlo))) == once
    assert every["all-gather"] > once["all-gather"] and every["reduce-scatter"] == 11
    # The count of labels, which the gradient is divided by, comes before all else.
    count, sums = _LINE.findall(exported("data")[2].hlo)
    assert count[:2] == ("f32[]", "all-reduce") and sums[1] == "all-reduce"
