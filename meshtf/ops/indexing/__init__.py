"""Elements by their index."""

from meshtf.ops.indexing.by_name import index_by_name

__all__ = ["index_by_name"]  # in the table of operators, for `x["length", 0]`
