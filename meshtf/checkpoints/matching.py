"""What a checkpoint holds beside what is asked of it: names, and a diff where they do
not fit.

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

_MOST = 12  # lines of one kind of difference that are shown


def renamed(name: str, renames: Mapping[str, str]) -> str:
    """Returns what a name is called in a checkpoint; of several that fit, the longest
    rename counts.

    Args:
      name: of a variable.
      renames: names, or first parts of names as they are between slashes, and what they
        are there.
    """
    parts = name.split("/")
    for k in range(len(parts), 0, -1):
        if (first := "/".join(parts[:k])) in renames:
            return "/".join([renames[first], *parts[k:]])
    return name


def check_fit(
    path: str, manifest: Manifest, named: Sequence[tuple[str, Variable]], partly: bool
) -> None:
    """Sees that variables can be read. Raises CheckpointError, with all that differs.

    Args:
      path: of the checkpoint.
      manifest: what it holds.
      named: what is asked of it, with the names that it has there.
      partly: whether it may hold more.
    """
    saved, asked = manifest.tensors, {name for name, _ in named}
    left = [name for name in saved if name not in asked]
    facts = {
        "not saved": [
            _missing(name, v, near_misses(name, left))
            for name, v in named
            if name not in saved
        ],
        "not in model": [
            f"{name} {Shape(saved[name].shape)!r}" for name in left if not partly
        ],
        "other shape": [
            f"{name}: {how}"
            for name, v in named
            if name in saved and (how := difference(saved[name], v.shape, v.dtype))
        ],
    }
    if any(facts.values()):
        raise CheckpointError(
            explain_error(
                "the checkpoint is of another model.",
                checkpoint=path,
                **{kind: _some(lines) for kind, lines in facts.items() if lines},
                way_out="Use the configuration that it was saved with, or another "
                "model_dir; or read it in part, with renames.",
            )
        )


def difference(saved: Saved, shape: Shape, dtype: str) -> str:
    """Returns in words how what is saved does not fit, or "".

    Dimensions may have other names now, but not the same names in another order.
    """
    there = Shape(saved.shape)
    reordered = there.names != shape.names and set(there.names) == set(shape.names)
    if there.sizes != shape.sizes or reordered:
        return f"{there!r} saved, {shape!r} now"
    return "" if saved.dtype == dtype else f"{saved.dtype} saved, {dtype} now"


def _missing(name: str, variable: Variable, close: str) -> str:
    return f"{name} {variable.shape!r}" + (f" (close: {close})" if close else "")


def _some(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    return "\n".join([*lines[:_MOST], *more])
