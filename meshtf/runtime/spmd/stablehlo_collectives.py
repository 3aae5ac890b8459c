"""Collectives as StableHLO: what one replica says, for any number of them.

TensorFlow has ops for only some of XLA's collectives, and for only some data types. So
all of them are small StableHLO modules, embedded as they are:

    all_reduce(x, ((0, 1), (2, 3)), "sum")       # groups of replicas

All take a tensor and the groups of replicas among which it is exchanged, each group in
its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.xla_ops import call_stablehlo

Groups = Sequence[Sequence[int]]
_TYPES = {
    "bool": "i1",
    "int8": "i8",
    "uint8": "ui8",
    "int16": "i16",
    "uint16": "ui16",
    "int32": "i32",
    "uint32": "ui32",
    "int64": "i64",
    "uint64": "ui64",
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
}
_COMBINE = {"sum": "add", "max": "maximum", "min": "minimum"}
_COMBINE_BOOL = {"max": "or", "min": "and"}


def all_reduce(x: Any, groups: Groups, kind: str) -> Any:
    """Returns the sum, maximum or minimum over each group."""
    return _call(
        x, "all_reduce", x.shape, f"replica_groups = {_table(groups)}", _region(x, kind)
    )


def reduce_scatter(x: Any, groups: Groups, kind: str, axis: int) -> Any:
    """Returns piece j along `axis` of the reduced tensor, for replica j of
    each group.
    """
    return _call(
        x,
        "reduce_scatter",
        _resized(x, axis, 1 / len(groups[0])),
        f"scatter_dimension = {axis} : i64, replica_groups = {_table(groups)}",
        _region(x, kind),
    )


def all_gather(x: Any, groups: Groups, axis: int) -> Any:
    """Returns the tensors of a group, joined along `axis`."""
    return _call(
        x,
        "all_gather",
        _resized(x, axis, len(groups[0])),
        f"all_gather_dim = {axis} : i64, replica_groups = {_table(groups)}",
    )


def all_to_all(x: Any, groups: Groups, cut: int, join: int) -> Any:
    """Returns piece j along `cut` of every tensor of a group, joined along `join`."""
    number = len(groups[0])
    shape = _resized(x, cut, 1 / number)
    shape[join] *= number
    return _call(
        x,
        "all_to_all",
        shape,
        f"split_dimension = {cut} : i64, concat_dimension = {join} : i64, split_count "
        f"= {number} : i64, replica_groups = {_table(groups)}",
    )


def permute(x: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Returns what replica `source` holds, for each (source, target); zeros where no
    one sends.
    """
    return _call(
        x, "collective_permute", x.shape, f"source_target_pairs = {_table(pairs)}"
    )


def stack(x: Any, groups: Groups) -> Any:
    """Returns the tensors of a group as rows of one."""
    return all_gather(tf.expand_dims(x, 0), groups, 0)


def _call(x: Any, op: str, shape: Any, attributes: str, region: str = "") -> Any:
    shape = [int(n) for n in shape]
    before = _type(x, x.shape)
    after = _type(x, shape)
    return call_stablehlo(
        x,
        f"""module {{
  func.func @main(%x: {before}) -> {after} {{
    %y = "stablehlo.{op}"(%x) <{{{attributes}}}> {region} : ({before}) -> {after}
    return %y : {after}
  }}
}}""",
        shape,
    )


def _region(x: Any, kind: str) -> str:
    element = _type(x, ())
    combine = (_COMBINE_BOOL if x.dtype == tf.bool else _COMBINE)[kind]
    return f"""({{
    ^bb0(%a: {element}, %b: {element}):
      %c = stablehlo.{combine} %a, %b : {element}
      stablehlo.return %c : {element}
    }})"""


def _type(x: Any, shape: Sequence[int]) -> str:
    return f"tensor<{'x'.join([*map(str, shape), _TYPES[x.dtype.name]])}>"


def _table(rows: Sequence[Sequence[int]]) -> str:
    text = ", ".join(f"[{', '.join(map(str, row))}]" for row in rows)
    return f"dense<[{text}]> : tensor<{len(rows)}x{len(rows[0])}xi64>"


def _resized(x: Any, axis: int, factor: float) -> list[int]:
    shape = list(map(int, x.shape))
    shape[axis] = round(shape[axis] * factor)
    return shape
