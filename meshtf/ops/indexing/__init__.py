"""Ops by integer index: gather, scatter, dynamic slices, one-hot, top-k, and `x["length", 0]`."""

from meshtf.ops.indexing.by_name import index_by_name

# The import registers `index_by_name`, which `x["length", 0]` calls.
__all__ = ["index_by_name"]
