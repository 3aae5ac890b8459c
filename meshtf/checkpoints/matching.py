"""Checks that the names and shapes of variables match a checkpoint.

    check_fit(path, Manifest.read(path), [(v.name, v) for v in model.variables], partly=False)

The error lists all differences. Names of variables can be mapped to names in the checkpoint:

    >>> from meshtf.checkpoints.matching import saved_name
    >>> renames = {"encoder": "bert/encoder", "encoder/out": "head"}
    >>> [saved_name(name, renames) for name in ("encoder/wq", "encoder/out/kernel", "encoder_2/wq")]
    ['bert/encoder/wq', 'head/kernel', 'encoder_2/wq']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshtf.checkpoints.manifest import Manifest, SavedTensor
from meshtf.errors import CheckpointError, explain_error, near_misses
from meshtf.names import Shape
from meshtf.runtime.variable import Variable

_MAX_LINES = 12  # the maximum count of lines in the error for each kind of difference


def saved_name(name: str, renames: Mapping[str, str]) -> str:
    """Returns the name that a variable has in a checkpoint.

    Args:
      name: the name of the variable.
      renames: a dict from names of variables, or prefixes of names that end before a
        slash, to the names or prefixes in the checkpoint. The longest prefix that matches
        is used.
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
      variables: each variable to read, with its name in the checkpoint.
      partly: whether the checkpoint may have tensors that are not read.

    Raises:
      CheckpointError: names, shapes or data types differ; the error lists all differences.
    """
    saved = manifest.tensors
    by_name = dict(variables)
    unused_names = [name for name in saved if name not in by_name]
    not_saved = []
    other_shape = []
    for name, variable in variables:
        if name not in saved:
            similar_names = near_misses(name, unused_names)
            not_saved.append(_not_saved_line(name, variable, similar_names))
            continue
        change = difference(saved[name], variable.shape, variable.dtype)
        if not change and _is_slot_of_other_dims(name, variable, saved, by_name):
            change = f"{Shape(saved[name].shape)!r} saved, {variable.shape!r} now"
        if change:
            other_shape.append(f"{name}: {change}")
    not_in_model = []
    if not partly:
        for name in unused_names:
            not_in_model.append(f"{name} {Shape(saved[name].shape)!r}")
    differences = {
        "not saved": not_saved,
        "not in model": not_in_model,
        "other shape": other_shape,
    }
    facts = {
        kind: _truncated_list(lines) for kind, lines in differences.items() if lines
    }
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


def difference(saved: SavedTensor, shape: Shape, dtype: str) -> str:
    """Returns how a shape or data type differ from those of a saved tensor, in words, or "".

    Dimensions may be renamed. But the same names in another order are a difference, since
    the values would have to be transposed.

    Args:
      saved: the saved tensor.
      shape: the shape to compare with.
      dtype: the data type to compare with.
    """
    saved_shape = Shape(saved.shape)
    same_names = set(saved_shape.names) == set(shape.names)
    reordered = same_names and saved_shape.names != shape.names
    if saved_shape.sizes != shape.sizes or reordered:
        return f"{saved_shape!r} saved, {shape!r} now"
    if saved.dtype != dtype:
        return f"{saved.dtype} saved, {dtype} now"
    return ""


def _is_slot_of_other_dims(
    name: str,
    slot: Variable,
    saved: Mapping[str, SavedTensor],
    variables: Mapping[str, Variable],
) -> bool:
    """Returns whether a slot, a variable with state of an optimizer, has other dimensions of
    its variable than the saved slot, though of the same sizes: such as the mean squares over
    rows, where those over layers were saved.

    Args:
      name: the name in the checkpoint, such as "adafactor/encoder/wq/row".
      slot: a variable of any kind.
      saved: the tensors of the checkpoint by name.
      variables: the variables that are read, by their names in the checkpoint.
    """
    components = name.split("/")[:-1]
    for start in range(1, len(components)):
        owner = "/".join(components[start:])
        if owner in saved and owner in variables:
            saved_names = Shape(saved[owner].shape).names
            new_names = dict(zip(saved_names, variables[owner].shape.names))
            slot_names = Shape(saved[name].shape).names
            return slot.shape.names != tuple(new_names.get(n, n) for n in slot_names)
    return False


def _not_saved_line(name: str, variable: Variable, similar_names: str) -> str:
    """Returns a line of the error for a variable that the checkpoint does not have."""
    suggestion = f" (close: {similar_names})" if similar_names else ""
    return f"{name} {variable.shape!r}{suggestion}"


def _truncated_list(lines: Sequence[str]) -> str:
    """Returns the first lines as one text, and the count of the remaining lines."""
    text = "\n".join(lines[:_MAX_LINES])
    num_hidden = len(lines) - _MAX_LINES
    if num_hidden > 0:
        text += f"\nand {num_hidden} more"
    return text
