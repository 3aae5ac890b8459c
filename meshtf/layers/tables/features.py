"""Features of embedding tables as users declare them, and what is refused.

Bag("items", "slot", "mean")      # ids [batch, slot] of the table "items" -> vectors [batch, d]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from meshtf.errors import ArgumentError, MeshtfError, ShapeError, explain_error
from meshtf.graph import Source
from meshtf.names import Shape
from meshtf.names.arguments import as_choice, as_int, as_mapping, as_text, refuse
from meshtf.ops.common.checks import did_you_mean

Combiner: TypeAlias = Literal["sum", "mean", "sqrtn"]


class Bag(NamedTuple):
    """A feature with several ids at each position, whose vectors are combined into one.

    With weights w, 1 by default and 0 for padding, the result is the sum of w * vector, divided by
    1 for "sum", by the sum of w for "mean", by the root of the sum of w**2 for "sqrtn"; zeros for a
    bag without ids. These are the combiners of `tf.nn.safe_embedding_lookup_sparse`.

    Attributes:
      table: the name of the table.
      dim: the name of the dimension of ids that is combined, such as "slot" of [batch, slot].
      combiner: "sum", "mean" or "sqrtn".
    """

    table: str
    dim: str
    combiner: Combiner = "sum"


def checked_tables(tables: Any) -> dict[str, Shape]:
    """Returns the shape of each table. Raises ArgumentError or ShapeError."""
    takes = 'a dict of shapes, such as {"items": "items:1000; d:16"}'
    shapes = {
        as_text("tables", name): Shape(shape)
        for name, shape in as_mapping("tables", tables, takes).items()
    }
    for name, shape in shapes.items():
        if not shape.names:
            raise located_error(
                ShapeError,
                f"table {name!r} has no dimension of ids.",
                {"tables": ", ".join(f"{x!r} {s!r}" for x, s in shapes.items())},
                f'Give one: {{{name!r}: "{name}:1000; d:16"}}.',
            )
    return shapes


def checked_features(features: Any, shapes: dict[str, Shape]) -> dict[str, Bag]:
    """Returns each feature as a bag, whose `dim` is "" for one id at each position.

    Raises:
      ArgumentError, ShapeError: as `EmbeddingTables`.
    """
    takes = "a dict with the table or the `Bag` of each feature"
    result = {}
    for name, feature in as_mapping("features", features, takes).items():
        as_text("features", name)
        if isinstance(feature, Bag):
            bag = feature
            as_text("table", bag.table)
            if not as_text("dim", bag.dim):
                refuse("dim", bag.dim, f"the dimension of the ids of feature {name!r}")
            as_choice(f"combiner of {name}", bag.combiner, get_args(Combiner))
        else:
            bag = Bag(as_text("features", feature, takes), "")
        if bag.table not in shapes:
            raise no_such("table", bag.table, shapes, feature=repr(name))
        if bag.dim in shapes[bag.table]:
            raise located_error(
                ShapeError,
                f'feature {name!r} combines "{bag.dim}", a dimension of its table.',
                {"table": f"{shapes[bag.table]!r} {bag.table!r}"},
                'Name the dimension of its ids, such as "slot" of [batch, slot].',
            )
        result[name] = bag
    return result


def checked_policy(out_of_range: Any, shapes: dict[str, Shape]) -> str | int:
    """Returns "error", "zeros", or the index of a row that all tables have. Raises
    ArgumentError.
    """
    if isinstance(out_of_range, str):
        return as_choice("out_of_range", out_of_range, ("error", "zeros"))
    row = as_int("out_of_range", out_of_range, least=0)
    for name, shape in shapes.items():
        if row >= shape.sizes[0]:
            refuse("out_of_range", row, f"a row of table {name!r}, {shape!r}")
    return row


def no_such(
    kind: str, name: Any, names: Mapping[str, Any], **facts: str
) -> MeshtfError:
    """Returns the error for a feature or table that there is not."""
    similar = did_you_mean(name, names) if isinstance(name, str) else ""
    facts[f"{kind}s"] = ", ".join(names)
    message = f"there is no {kind} {name!r}.{similar}"
    return located_error(ArgumentError, message, facts, f"Declare it in `{kind}s`.")


def located_error(
    kind: type[MeshtfError], message: str, facts: dict[str, str], way_out: str
) -> MeshtfError:
    """Returns an error with the line of the caller."""
    return kind(
        explain_error(message, **facts, source=Source.of_caller(), way_out=way_out)
    )
