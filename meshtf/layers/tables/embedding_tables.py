"""Embedding tables of many features, as recommenders have them: a vector for each.

    embed = EmbeddingTables(
        mesh,
        tables={"users": "users:5000; d:16", "items": "items:100000; d:16"},
        features={
            "user": "users",                            # ids [batch]
            "shown": "items",                           # the same table for two features
            "clicked": Bag("items", "slot", "mean"),    # ids [batch, slot]
        },
    )
    vectors = embed({"user": user_ids, "shown": shown_ids, "clicked": clicked_ids})
    vectors["clicked"]                                  # [batch, d]

A feature has one id at each position, whose vector is the result; or it is a `Bag` of several,
whose vectors are combined. Bags of different lengths are padded with negative ids, which
`pad_ragged` does. A layout shards tables by rows ("items:model"), by columns ("d:model"), or not
at all, each by the names of its dimensions.

The gradient of each table is a sum of the rows that were looked up, so that a step takes time in
proportion to the ids: see `meshtf.optimizers.tables`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.layers.initializers import Initializer, truncated
from meshtf.layers.tables.features import (
    Bag,
    checked_features,
    checked_policy,
    checked_tables,
    located_error,
    no_such,
)
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import ShapeLike, is_integer
from meshtf.names.arguments import as_mapping, refuse
from meshtf.ops.elementwise.arithmetic import divide_no_nan
from meshtf.ops.elementwise.unary import sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import gather
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.runtime.variable import Variable


class EmbeddingTables(Module):
    """Looks up the ids of several features in learned tables, several features in one if wanted.

    A negative id is padding: its vector is zero, and bags do not count it.

    Args:
      mesh: the mesh of the tables.
      tables: the shape of each table by its name, such as {"items": "items:100000; d:16"}: the
        dimension of ids first, then those of a vector. Different tables may have vectors of
        different sizes.
      features: the table of each feature, by the feature's name: the name of the table for one id
        at each position, a `Bag` for several; None: each table has one feature of its name.
      initializer: the initializer of the tables; None: a truncated normal distribution with the
        standard deviation 1 / sqrt(size of a vector).
      out_of_range: what an id does that is too large for its table: "error", it raises
        IndexRangeError when the program runs; "zeros", it is padding; an integer, the id of the
        row that is looked up in its place.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.

    Attributes:
      tables: the variables by the names of the tables.

    Raises:
      ShapeError: a table has no dimensions, or a bag combines a dimension of its table.
      ArgumentError: a feature has a table or a combiner that there is not, or a table lacks the
        row `out_of_range`.
    """

    default_name = "tables"

    def __init__(
        self,
        mesh: Mesh,
        tables: Mapping[str, ShapeLike],
        features: Mapping[str, str | Bag] | None = None,
        initializer: Initializer | None = None,
        out_of_range: Literal["error", "zeros"] | int = "error",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        shapes = checked_tables(tables)
        if features is None:
            features = {table: table for table in shapes}
        self.features = checked_features(features, shapes)
        self.out_of_range = checked_policy(out_of_range, shapes)
        self.tables: dict[str, Variable] = {}
        with self.scope():
            for table, shape in shapes.items():
                vector_size = shape.without(shape.names[0]).size
                default = truncated(1 / math.sqrt(vector_size))
                self.tables[table] = Variable(
                    mesh,
                    shape,
                    default if initializer is None else initializer,
                    name=table,
                )

    def __call__(
        self,
        ids: Mapping[str, Tensor],
        weights: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Returns the vector [..., d] of each feature of `ids`.

        Args:
          ids: the ids of all or some features by their names: integers [...], such as [batch]; of
            a bag [..., dim], such as [batch, slot].
          weights: the weights of the ids of bags, by the names of features: [..., dim]; of other
            bags and by default, all weights are 1.

        Raises:
          ArgumentError: there is no such feature, or weights belong to no bag of `ids`.
          ShapeError: ids lack the dimension of their bag, or have one of their table; weights have
            other dimensions than their ids.
          DTypeError: ids are no integers.
        """
        ids = as_mapping("ids", ids, "a dict of the ids of each feature")
        if weights is None:
            weights = {}
        weights = as_mapping("weights", weights, "a dict of the weights of bags")
        for feature in weights:
            self._check_weighted(feature, ids)
        return {
            feature: self._vectors(feature, x, weights.get(feature))
            for feature, x in ids.items()
        }

    def _vectors(self, feature: str, ids: Any, weights: Any) -> Tensor:
        """Returns the vectors [..., d] of a feature: see `__call__`."""
        bag = self._feature(feature)
        table = self.tables[bag.table]
        vocab = table.shape.names[0]
        ids = self._checked_ids(feature, bag, ids)
        size = table.shape[vocab]
        if isinstance(self.out_of_range, int):
            ids = where(ids >= size, self.out_of_range, ids)
        if self.out_of_range == "zeros":
            vectors = gather(table, ids, vocab, out_of_range="zeros")
        else:
            vectors = gather(table, ids, vocab, zero_negative=True)
        if not bag.dim:
            return vectors
        if weights is None and bag.combiner == "sum":
            return reduce_sum(vectors, bag.dim)
        is_counted = ids >= 0
        if self.out_of_range == "zeros":
            is_counted = is_counted & (ids < size)
        shares = cast(is_counted, table.dtype)
        if weights is not None:
            shares = shares * cast(_as_weights(feature, weights, ids), table.dtype)
        shares = _normalized(shares, bag)
        # Shares are complete before the product, so that it adds up the rows of other shards.
        return einsum([vectors, shares], vectors.shape.without(bag.dim))

    def _feature(self, feature: Any) -> Bag:
        """Returns a feature; `dim` is "" if it has one id at each position. Raises ArgumentError
        if there is none of this name.
        """
        if not isinstance(feature, str) or feature not in self.features:
            raise no_such("feature", feature, self.features)
        return self.features[feature]

    def _check_weighted(self, feature: Any, ids: Mapping[str, Tensor]) -> None:
        """Raises ArgumentError unless weights belong to a bag whose ids there are."""
        if not self._feature(feature).dim:
            refuse(
                "weights",
                feature,
                "the weights of bags",
                way_out=f"Feature {feature!r} has one id at each position: multiply its vectors.",
            )
        if feature not in ids:
            refuse("weights", feature, f"features of `ids`: {', '.join(ids)}")

    def _checked_ids(self, feature: str, bag: Bag, ids: Any) -> Tensor:
        """Returns the ids of a feature as a tensor. Raises errors as `__call__`."""
        ids = as_tensor("ids", ids)
        table = self.tables[bag.table]
        facts = {
            "feature": repr(feature),
            "ids": f"{ids.shape!r} {ids.dtype}",
            "table": f"{table.shape!r} {bag.table!r}",
        }
        if not is_integer(ids.dtype):
            raise located_error(
                DTypeError,
                f"the ids of feature {feature!r} are integers, not {ids.dtype}.",
                facts,
                "Look strings up and hash numbers before: tf.keras.layers.StringLookup, Hashing.",
            )
        if bag.dim and bag.dim not in ids.shape:
            raise located_error(
                ShapeError,
                f'feature {feature!r} is a bag along "{bag.dim}", which its ids lack.',
                facts,
                f"Give ids [..., {bag.dim}]; for one id at each position, declare "
                f"features={{{feature!r}: {bag.table!r}}}.",
            )
        for dim in ids.shape.names:
            if dim in table.shape:
                raise located_error(
                    ShapeError,
                    f'the ids of feature {feature!r} have the dimension "{dim}" of their table.',
                    facts,
                    f'Rename it: mtf.rename(ids, "{dim}", "{dim}_out").',
                )
        # So that the size of the table is a number of their type.
        return ids if ids.dtype in ("int32", "int64") else cast(ids, "int64")


def _as_weights(feature: str, weights: Any, ids: Tensor) -> Tensor:
    """Returns the weights of a bag. Raises ShapeError if they do not lie as ids do."""
    weights = as_tensor("weights", weights)
    if set(weights.shape) != set(ids.shape):
        raise located_error(
            ShapeError,
            f"the weights of feature {feature!r} have other dimensions than its ids.",
            {"weights": repr(weights.shape), "ids": repr(ids.shape)},
            "Give one weight for each id: mtf.broadcast(weights, ids.shape) if several share it.",
        )
    return weights


def _normalized(shares: Tensor, bag: Bag) -> Tensor:
    """Returns weights [..., dim], 0 for padding, divided as the combiner says."""
    if bag.combiner == "sum":
        return shares
    if bag.combiner == "mean":
        return divide_no_nan(shares, reduce_sum(shares, bag.dim))
    return divide_no_nan(shares, sqrt(reduce_sum(square(shares), bag.dim)))
