"""Names and shapes of variables against those of a checkpoint, with a diff in the error.

Example:

    >>> from meshtf.checkpoints.matching import renamed
    >>> renames = {"encoder": "bert/encoder", "encoder/out": "head"}
    >>> [renamed(name, renames) for name in ("encoder/wq", "encoder/out/kernel", "encoder_2/wq")]
    ['bert/encoder/wq', 'head/kernel', 'encoder_2/wq']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshtf.checkpoints.manifest import Manifest, Saved
from meshtf.errors import CheckpointError, explain_error, near_misses
from meshtf.names import Shape
from meshtf.runtime.variable import Variable

_MAX_LINES = 12  # that are shown of one kind of difference


def renamed(name: str, renames: Mapping[str, str]) -> str:
    """Returns the name of a variable in a checkpoint; the longest matching rename is used.

    Args:
      name: of a variable.
      renames: the variable's name, or a prefix of it that ends before a slash -> the name
        or prefix in the checkpoint.
    """
    components = name.split("/")
    for k in range(len(components), 0, -1):
        prefix = "/".join(components[:k])
        if prefix in renames:
            return "/".join([renames[prefix], *components[k:]])
    return name


def check_fit(
    path: str, manifest: Manifest, named: Sequence[tuple[str, Variable]], partly: bool
) -> None:
    """Checks that variables can be read. Raises CheckpointError, with all differences.

    Args:
      path: of the checkpoint.
      manifest: of the checkpoint.
      named: the variables to read, with their names in the checkpoint.
      partly: whether the checkpoint may have other tensors as well.
    """
    saved = manifest.tensors
    requested = {name for name, _ in named}
    unused = [name for name in saved if name not in requested]
    differences = {
        "not saved": [
            _missing(name, v, near_misses(name, unused))
            for name, v in named
            if name not in saved
        ],
        "not in model": [
            f"{name} {Shape(saved[name].shape)!r}" for name in unused if not partly
        ],
        "other shape": [
            f"{name}: {change}"
            for name, v in named
            if name in saved and (change := difference(saved[name], v.shape, v.dtype))
        ],
    }
    if any(differences.values()):
        raise CheckpointError(
            explain_error(
                "the checkpoint is of another model.",
                checkpoint=path,
                **{
                    kind: _truncated(lines)
                    for kind, lines in differences.items()
                    if lines
                },
                way_out="Use the configuration that it was saved with, or another "
                "model_dir; or read it in part, with renames.",
            )
        )


def difference(saved: Saved, shape: Shape, dtype: str) -> str:
    """Returns how shape or data type differ from those of a saved tensor, or "".

    Dimensions may have other names now, but not the same names in another order.
    """
    saved_shape = Shape(saved.shape)
    same_names = set(saved_shape.names) == set(shape.names)
    reordered = same_names and saved_shape.names != shape.names
    if saved_shape.sizes != shape.sizes or reordered:
        return f"{saved_shape!r} saved, {shape!r} now"
    return "" if saved.dtype == dtype else f"{saved.dtype} saved, {dtype} now"


def _missing(name: str, variable: Variable, close: str) -> str:
    return f"{name} {variable.shape!r}" + (f" (close: {close})" if close else "")


def _truncated(lines: Sequence[str]) -> str:
    shown = list(lines[:_MAX_LINES])
    if len(lines) > _MAX_LINES:
        shown.append(f"and {len(lines) - _MAX_LINES} more")
    return "\n".join(shown)
