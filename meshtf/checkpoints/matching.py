"""Checks that the names and shapes of variables match a checkpoint; the error lists all
differences.

Example:

    >>> from meshtf.checkpoints.matching import saved_name
    >>> renames = {"encoder": "bert/encoder", "encoder/out": "head"}
    >>> [saved_name(name, renames) for name in ("encoder/wq", "encoder/out/kernel", "encoder_2/wq")]
    ['bert/encoder/wq', 'head/kernel', 'encoder_2/wq']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshtf.checkpoints.manifest import Manifest, Saved
from meshtf.errors import CheckpointError, explain_error, near_misses
from meshtf.names import Shape
from meshtf.runtime.variable import Variable

_MAX_LINES = 12  # for each kind of difference, in the error


def saved_name(name: str, renames: Mapping[str, str]) -> str:
    """Returns the name that a variable has in a checkpoint.

    Args:
      name: the name of the variable.
      renames: the variable's name, or a prefix of it that ends before a slash -> the name
        or prefix in the checkpoint. The longest prefix that matches is used.
    """
    components = name.split("/")
    for k in range(len(components), 0, -1):
        prefix = "/".join(components[:k])
        if prefix in renames:
            return "/".join([renames[prefix], *components[k:]])
    return name


def check_fit(
    path: str,
    manifest: Manifest,
    variables: Sequence[tuple[str, Variable]],
    partly: bool,
) -> None:
    """Checks that variables can be read from a checkpoint.

    Args:
      path: the path of the checkpoint.
      manifest: the manifest of the checkpoint.
      variables: (name in the checkpoint, variable) of each variable to read.
      partly: whether the checkpoint may have tensors that are not read.

    Raises:
      CheckpointError: names, shapes or data types differ; it lists all differences.
    """
    saved = manifest.tensors
    requested = {name for name, _ in variables}
    unused = [name for name in saved if name not in requested]
    not_saved = []
    other_shape = []
    for name, variable in variables:
        if name not in saved:
            not_saved.append(_missing(name, variable, near_misses(name, unused)))
        elif change := difference(saved[name], variable.shape, variable.dtype):
            other_shape.append(f"{name}: {change}")
    not_in_model = [] if partly else [f"{x} {Shape(saved[x].shape)!r}" for x in unused]
    differences = {
        "not saved": not_saved,
        "not in model": not_in_model,
        "other shape": other_shape,
    }
    facts = {kind: _truncated(lines) for kind, lines in differences.items() if lines}
    if facts:
        raise CheckpointError(
            explain_error(
                "the checkpoint is of another model.",
                checkpoint=path,
                **facts,
                way_out="Use the configuration that it was saved with, or another "
                "model_dir; or map names with renames=, read a subset with "
                "partly=True, and leave out variables that were not saved.",
            )
        )


def difference(saved: Saved, shape: Shape, dtype: str) -> str:
    """Returns a text of how shape or data type differ from those of a saved tensor; "" if
    they do not.

    Dimensions may be renamed, but the same names in another order are a difference: the
    values would be transposed.
    """
    saved_shape = Shape(saved.shape)
    same_names = set(saved_shape.names) == set(shape.names)
    reordered = same_names and saved_shape.names != shape.names
    if saved_shape.sizes != shape.sizes or reordered:
        return f"{saved_shape!r} saved, {shape!r} now"
    return "" if saved.dtype == dtype else f"{saved.dtype} saved, {dtype} now"


def _missing(name: str, variable: Variable, similar_names: str) -> str:
    """Returns a line for a variable that the checkpoint does not have."""
    suggestion = f" (close: {similar_names})" if similar_names else ""
    return f"{name} {variable.shape!r}{suggestion}"


def _truncated(lines: Sequence[str]) -> str:
    """Returns the first lines, joined, and how many there are besides."""
    text = "\n".join(lines[:_MAX_LINES])
    num_hidden = len(lines) - _MAX_LINES
    return f"{text}\nand {num_hidden} more" if num_hidden > 0 else text
