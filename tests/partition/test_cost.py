"""Which ops take shards with padding, and for which the dimension is gathered first; sizes of
shards, and bytes.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.graph import Window
from meshtf.mesh import Mesh, Partial, Placement
from meshtf.names import Shape
from meshtf.partition.cost import (
    bytes_received,
    elements_received,
    local_shape,
    local_size,
    reads_local_only,
)

# Each function takes x[b, d]. Axes do not divide the size 10 of d: shards have 3 elements.
PADDED = {
    "map": lambda x: x * 2.0,
    "sum": lambda x: mtf.reduce_sum(x, "d"),
    "mean": lambda x: mtf.reduce_mean(x, "d"),
    "variance": lambda x: mtf.reduce_variance(x, "d"),
    "max": lambda x: mtf.reduce_max(x, "d"),
    "prod": lambda x: mtf.reduce_prod(x, "d"),
    "logsumexp": lambda x: mtf.reduce_logsumexp(x, "d"),
    "softmax": lambda x: mtf.softmax(x, "d"),
    "log_softmax": lambda x: mtf.log_softmax(x, "d"),
    "layer_norm": lambda x: mtf.layer_norm(x, "d"),
    "rms_norm": lambda x: mtf.rms_norm(x, "d"),
    "cross_entropy": lambda x: mtf.cross_entropy(x, labels(x), "d"),
    "label_smoothing": lambda x: mtf.cross_entropy(
        x, labels(x), "d", label_smoothing=0.1
    ),
    "top_k": lambda x: mtf.top_k(x, "d", "k:4")[0],
    "cumsum": lambda x: mtf.cumsum(x, "d"),
    "cumprod": lambda x: mtf.math.cumprod(x, "d"),
    "cummax": lambda x: mtf.math.cummax(x, "d"),
    "cumulative_logsumexp": lambda x: mtf.math.cumulative_logsumexp(x, "d"),
    "linear_recurrence": lambda x: mtf.math.linear_recurrence(x, x, "d"),
    "shift": lambda x: mtf.shift(x, "d", 1),
}
GATHERED = {
    "roll": lambda x: mtf.roll(x, "d", 1),
    "sort": lambda x: mtf.sort(x, "d"),
    "unflatten": lambda x: mtf.unflatten(x, "d", "e:5;f:2"),
}


def labels(x):
    """Returns the class 0 for each example of x[b, d]."""
    return mtf.cast(mtf.reduce_sum(x, "d") * 0.0, "int32")


def gathers(function, differentiate):
    """Returns whether a program of x[b, d] gathers d, in the forward or the backward pass."""
    mesh = mtf.Mesh("x:4", "d:x", devices="abstract")

    def program(x):
        y = function(x)
        return mtf.gradients([y], [x])[0] if differentiate else y

    x = np.ones((7, 10), "float32")
    forecast = mtf.explain(mtf.function(program, mesh=mesh, x="b;d"), x)
    return any(
        step.kind in ("all_gather", "all_to_all") and "d" in dict(step.tensor.shape)
        for step in forecast.collectives
    )


@pytest.mark.parametrize("differentiate", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", PADDED)
def test_shards_with_padding(name, differentiate):
    assert not gathers(PADDED[name], differentiate)


@pytest.mark.parametrize("name", GATHERED)
def test_gathered_first(name):
    assert gathers(GATHERED[name], differentiate=False)


def test_a_window_that_is_local_for_one_shard_is_exchanged_for_the_others():
    before = Window(lambda a: max(a - 1, 0), lambda b: b)
    assert not reads_local_only(before, factor_size=8, input_size=8, num_shards=2)
    same = Window(lambda a: a, lambda b: b)
    assert reads_local_only(same, factor_size=8, input_size=8, num_shards=2)
    # The last shard ends with padding, which an exchange fills.
    assert not reads_local_only(same, factor_size=7, input_size=7, num_shards=2)
    assert elements_received(before, factor_size=8, input_size=4, num_shards=2) == 1


def test_bytes_of_reshards():
    mesh = Mesh("data:4;model:2")
    shape = Shape("a:8;b:6")
    assert local_shape(shape, Placement("a:data;b:model"), mesh) == Shape("a:2;b:3")
    assert local_shape(shape, Placement("a:data+model"), mesh) == Shape("a:1;b:6")
    assert local_size(shape, Placement("a:data", model=Partial("sum")), mesh) == 12
    assert [
        bytes_received(kind, 80, 4)
        for kind in (
            "slice",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "collective_permute",
            "all_reduce",
        )
    ] == [0, 240, 60, 60, 60, 120]
