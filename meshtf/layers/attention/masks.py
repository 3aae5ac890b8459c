"""Attention masks, as booleans for each query and key, and as a bias of the scores.

    visible = causal_mask(mesh, "length:128", "kv_length:128")   # [length, kv_length]
    visible = segment_mask(segments) & visible           # packed: [batch, length, kv_length]
    visible = visible & padding_mask(tokens)             # [batch, kv_length]
    y = attention(x, bias=mask_bias(visible))

Positions of keys and values have another name than those of queries, so no tensor has a
name twice, and a layout may shard either. All layers can share one bias. Other masks are
comparisons of all pairs: mtf.outer(mtf.range(mesh, "length:128"),
mtf.range(mesh, "kv_length:128"), mtf.subtract) < 16.
"""

from __future__ import annotations

from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.mesh import Mesh
from meshtf.names import ShapeLike, dtype_name
from meshtf.names.arguments import check_ints
from meshtf.ops.elementwise.arithmetic import equal, greater_equal, outer
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.reshape import rename

# Scores of masked positions by data type: 0 after softmax, yet finite, so that a query whose
# positions are all masked gives no NaN. The smallest float16 is about -6.5e4.
_MASKED_SCORES = {"float16": -3e4}
_DEFAULT_MASKED_SCORE = -1e9


def causal_mask(
    mesh: Mesh | None, length_dim: ShapeLike, kv_length_dim: ShapeLike, stride: int = 1
) -> Tensor:
    """Returns bool [length_dim, kv_length_dim]: whether the position of a key is not
    after the position of a query.

    Args:
      mesh: the mesh of the tensor.
      length_dim: the positions of queries, such as "length:128".
      kv_length_dim: the positions of keys and values, such as "kv_length:128".
      stride: the count of positions that each key is the mean of (see `compress_mean`):
        the key is visible where the last of them is not after the query.
    """
    check_ints(stride=stride)
    # The last of the positions that each key is the mean of; for stride 1, its position.
    last_position = index_range(mesh, kv_length_dim, "int32")
    if stride > 1:
        last_position = last_position * stride + (stride - 1)
    return outer(index_range(mesh, length_dim, "int32"), last_position, greater_equal)


def padding_mask(
    ids: Tensor, length_dim: str = "length", kv_length_dim: str = "kv_length"
) -> Tensor:
    """Returns bool [batch, kv_length_dim]: whether ids [batch, length_dim] are not 0, the
    id of padding.

    Args:
      ids: the ids of tokens, integers [batch, length_dim].
      length_dim: the name of the dimension of positions in `ids`.
      kv_length_dim: the name of the dimension of keys in the result.
    """
    check_tensors(ids=ids)
    return rename(ids != 0, length_dim, kv_length_dim)


def segment_mask(
    segments: Tensor,
    kv_segments: Tensor | None = None,
    length_dim: str = "length",
    kv_length_dim: str = "kv_length",
) -> Tensor:
    """Returns bool [batch, length_dim, kv_length_dim]: whether a query and a key belong
    to the same segment.

    Args:
      segments: the segment of each query: integers [batch, length_dim], such as the
        index of its text in a packed sequence.
      kv_segments: the segment of each key: integers [batch, length_dim] of any length;
        default: `segments`.
      length_dim: the name of the positions of queries.
      kv_length_dim: the name of the positions of keys and values.
    """
    check_tensors(segments=segments)
    if kv_segments is None:
        kv_segments = segments
    return outer(segments, rename(kv_segments, length_dim, kv_length_dim), equal)


def mask_bias(visible: Tensor, dtype: str = "float32") -> Tensor:
    """Returns a bias of scores, with the shape of `visible`: 0 where a position is
    visible, else very negative.
    """
    dtype = dtype_name(dtype)
    masked_score = _MASKED_SCORES.get(dtype, _DEFAULT_MASKED_SCORE)
    return cast(where(visible, 0.0, masked_score), dtype)


def causal_bias(
    mesh: Mesh | None, length_dim: ShapeLike, kv_length_dim: ShapeLike
) -> Tensor:
    """Returns a bias of scores [length_dim, kv_length_dim]: 0 where the key is not after
    the query, else very negative.

    Args:
      mesh: the mesh of the bias.
      length_dim: the dimension of queries, such as "length:128".
      kv_length_dim: the dimension of keys, such as "kv_length:128".
    """
    return mask_bias(causal_mask(mesh, length_dim, kv_length_dim))
