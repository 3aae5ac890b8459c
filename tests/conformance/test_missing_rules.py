"""No op communicates where computing shard by shard would be right, but for a known list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meshtf.graph import EffectOp, LocalTensors, Op, Role, Sample, Spec, Specs
from meshtf.testing import label, registered_ops
from tests.conformance.missing_rules import missing_rules

OPS = [
    op
    for op in registered_ops()
    if op.conformance_samples and not issubclass(op, EffectOp)
]
# Ops that communicate for another reason, or save no bytes without: docs/explain/testing.md.
SHARDED = {"reshape.Rename", "slice.Slice"}
LINEAR = {
    "activations.LeakyReluGrad",
    "binary_op.Binary",
    "binary_op.BinaryGrad",
    "cross_entropy.CrossEntropyGrad",
    "dynamic_slice.DynamicUpdate",
    "layout_region.Relayout",
    "merge_sort.WithGradientOf",
    "moments.ProdGrad",
    "normalization.NormalizeGrad",
    "optimizer_updates.ReducePartialSums",
    "pooling.Pool",
    "scalar_op.Scalar",
    "slicewise.Slicewise",
    "softmax.SoftmaxGrad",
    "sort_op.Reorder",
    "unary_op.UnaryGrad",
    "where_cast_clip.ClipGrad",
    "where_cast_clip.Where",
}


@pytest.mark.sampled(20)
@pytest.mark.parametrize("op", OPS, ids=label)
def test_known_list_is_complete(op, seed):
    for rule in missing_rules(op, seed):
        known = LINEAR if "partial sums" in rule.inputs else SHARDED
        assert rule.op in known, str(rule)


class _Negation(Op):
    """-x, which declares neither that shards are independent nor that it is linear."""

    conformance_samples = (Sample(inputs=("b:4;d:6",), gradient=False),)

    def output_specs(self, x: Spec) -> Specs:
        return (x,)

    def role(self, factor: str) -> Role:
        return Role.UNSHARDED if factor == "d" else Role.MAP

    def local(self, context: Any, x: Any) -> LocalTensors:
        return (-x,)


def placements(op) -> Iterator[tuple[str, str]]:
    for rule in missing_rules(op):
        yield rule.inputs, rule.outputs


def test_missing_rules_of_an_op_are_found():
    assert set(placements(_Negation)) == {
        ("d sharded", "d sharded"),
        ("partial sums in all inputs", "partial sums"),
    }
    assert "all_to_all" in str(missing_rules(_Negation)[0])
