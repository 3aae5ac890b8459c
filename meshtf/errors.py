"""The errors of meshtf: what came, what clashes, and the way out.

Every message is built by `explain_error`, so that all of them read alike:

    >>> from meshtf.errors import explain_error
    >>> print(explain_error("two dimensions of one tensor want mesh axis \\"model\\".",
    ...                     tensor="[batch:8 heads:4 d_ff:32]", layout="heads:model; d_ff:model",
    ...                     way_out="Give one of them another axis."))
    two dimensions of one tensor want mesh axis "model".
      tensor   [batch:8 heads:4 d_ff:32]
      layout   heads:model; d_ff:model
      Give one of them another axis.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MeshtfError(Exception):
    """Base class of every error that meshtf raises on purpose."""


class ParseError(MeshtfError, ValueError):
    """A string of dimensions, of a mesh or of a layout cannot be read."""


class ShapeError(MeshtfError, ValueError):
    """Named shapes that do not fit: sizes that clash, names that are missing
    or double.
    """


class DTypeError(MeshtfError, TypeError):
    """Data types that clash, or that an op does not take."""


class ArgumentError(MeshtfError, TypeError):
    """An argument of a type, or a value of a setting, that a function does not take."""


class LayoutError(MeshtfError, ValueError):
    """A layout that cannot hold a tensor: two names on one axis, a size that does not
    divide.
    """


class MeshError(MeshtfError, ValueError):
    """A mesh that does not fit its devices, or tensors of two meshes."""


class PlanError(MeshtfError, RuntimeError):
    """A program that cannot be recorded, differentiated or planned."""


class NoValueError(PlanError):
    """The elements of a recorded tensor are asked for, which has none until its
    function runs.
    """


class CheckpointError(MeshtfError, ValueError):
    """A checkpoint that is absent, or is not this model's."""


class ClusterError(MeshtfError, RuntimeError):
    """Workers that do not answer, are taken, or cannot be reached."""


class DamageError(CheckpointError):
    """A file of a checkpoint is not as it was written."""

    def __init__(
        self, checkpoint: str, file: str, reason: str, way_out: str = ""
    ) -> None:
        text = f"the checkpoint {checkpoint} is damaged: {file}: {reason}."
        super().__init__(f"{text}\n  {way_out}" if way_out else text)
        self.checkpoint = checkpoint
        self.file = file
        self.reason = reason


class WriteError(CheckpointError):
    """A checkpoint could not be written; those before it are as they were."""


class NumericsError(MeshtfError, ArithmeticError):
    """A tensor that holds a number that is not finite."""


class LayoutWarning(UserWarning):
    """A layout that is legal but most likely not what was meant."""


class TraceWarning(UserWarning):
    """A function is traced again and again, where one trace would do."""


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, or could not be written, and the work goes on without
    it.
    """


def explain_error(headline: str, way_out: object = "", **facts: object) -> str:
    """Returns a message: a headline, one aligned line for each fact, and the
    way out.
    """
    width = max([8, *(len(name) + 1 for name in facts)])
    lines = [str(headline)]
    for name, fact in facts.items():
        first, *rest = str(fact).split("\n")
        lines.append(f"  {name.replace('_', ' '):<{width}} {first}")
        lines.extend(" " * (width + 3) + line for line in rest)
    if str(way_out):
        lines.append(f"  {way_out}")
    return "\n".join(lines)


def _is_iterable(x: object) -> bool:
    return isinstance(x, Iterable) and not hasattr(x, "dtype")  # no tensors, no arrays


def near_misses(name: str, known: Iterable[str]) -> str:
    """Returns known names that resemble `name`, as "a, b", or an empty string."""
    if not isinstance(name, str) or isinstance(known, str) or not _is_iterable(known):
        raise ArgumentError(
            explain_error(
                "near misses of a string are found among strings, not of "
                f"{type(name).__name__} among {type(known).__name__}.",
                way_out='Write near_misses("bach", ["batch"]).',
            )
        )
    strings = sorted(word for word in known if isinstance(word, str))
    return ", ".join(difflib.get_close_matches(name, strings, n=3, cutoff=0.5))
