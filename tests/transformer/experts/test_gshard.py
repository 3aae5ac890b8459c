"""The models of GShard's table of results, on as many cores as they have experts,
before they run.

Counts of expert weights are those of arXiv 2006.16668, whose figures are rounded; what
grows with experts and cores, and what does not, is its analysis of operations (section
2.2), where dispatch by number does not grow at all.
"""

from __future__ import annotations

import math

import gin
import pytest

from transformer.cli.command_line import configure
from transformer.training.training_run import Run

# experts, layers -> billions of parameters as the paper has them
TABLE = {
    (2048, 36): 600,
    (2048, 12): 200,
    (512, 36): 150,
    (512, 12): 50,
    (128, 36): 37,
    (128, 12): 12.5,
    (2048, 60): 1000,
}


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def run(experts, layers):
    gin.clear_config()
    configure(
        ["gshard.gin"],
        [
            f"cores = {experts}",
            f"Architecture.blocks = {layers}",
            f'Mesh.axes = "data:{experts}"',
            'Mesh.devices = "abstract"',
        ],
    )
    return Run()


def expert_weights(model):
    return [v for v in model.trainable_variables if "/experts/" in v.path]


@pytest.mark.parametrize("experts, layers", TABLE)
def test_expert_weights_are_those_of_the_table(experts, layers):
    weights = expert_weights(run(experts, layers).trainer.model)
    count = sum(math.prod(v.shape.sizes) for v in weights)
    assert count == layers // 2 * experts * 2 * 1024 * 8192
    assert abs(count / 1e9 / TABLE[experts, layers] - 1) < 0.05


def forward(forecast, names, title):
    """Returns the flops of forward ops of one kind whose output has these names."""
    return sum(
        op.flops
        for op in forecast.ops
        if op.phase == "forward"
        and op.title == title
        and names <= {name for name, _ in op.outputs[0].shape}
    )


def test_what_a_core_does_and_holds_from_128_to_2048_experts():
    few, many = run(128, 12), run(2048, 12)
    small, large = few.explain(), many.explain()
    held = [
        sum(
            held.tensor.bytes
            for held in forecast.variables
            if held.role == "parameter" and "/experts/" in held.name
        )
        for forecast in (small, large)
    ]
    assert held[0] == held[1] == 6 * 2 * 1024 * 8192 * 4  # one expert of each mixture
    routers = 6 * 1024 * 4 * (2048 - 128)
    assert large.memory.parameters - small.memory.parameters == routers
    for names, title, growth in (
        ({"length", "experts_all"}, "einsum", 16),  # gates
        ({"length", "experts_all"}, "softmax", 16),
        ({"choice_sequence"}, "sort", 1),  # queues
        ({"experts_all", "capacity", "d_model"}, "gather", 1),
        ({"experts", "d_ff"}, "einsum", 1),
    ):
        one = forward(small, names, title)
        assert one > 0 and forward(large, names, title) == growth * one, (names, title)


@pytest.mark.parametrize("experts", [128, 2048])
def test_communication_is_that_of_the_formula(experts):
    forecast = run(experts, 12).explain()
    sent = 2 * 2048 * 1024 * 4  # of a core: two choices of 2048 tokens of 1024 numbers
    results = [
        (m.phase, m.bytes) for m in forecast.collectives if m.kind == "all_to_all"
    ]
    each = sent * (experts - 1) / experts
    assert sorted(results) == [("backward", each)] * 12 + [("forward", each)] * 12
    tokens = [
        m
        for m in forecast.collectives
        if m.phase != "update"
        and m.kind != "all_to_all"
        and {"d_model", "length"} <= {name for name, _ in m.tensor.shape}
    ]
    assert not tokens
