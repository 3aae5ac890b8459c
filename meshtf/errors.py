"""The errors and warnings of meshtf.

A message says what is wrong, shows the facts, and says what to write instead.
`explain_error` formats it:

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
from collections.abc import Iterable, Sequence


class MeshtfError(Exception):
    """Base class of every error that meshtf raises on purpose."""

    # TensorFlow's AutoGraph, which rewrites the code of a tf.function, raises errors with
    # this attribute as they are, and others as errors of its own class.
    ag_pass_through = True


class ParseError(MeshtfError, ValueError):
    """A string that describes dimensions, a mesh or a layout cannot be read."""


class ShapeError(MeshtfError, ValueError):
    """Shapes do not match: sizes differ, or names are missing or occur twice."""


class DTypeError(MeshtfError, TypeError):
    """Data types differ, or an op does not take them."""


class ArgumentError(MeshtfError, TypeError):
    """A function does not take an argument of this type or value."""


class LayoutError(MeshtfError, ValueError):
    """A layout cannot shard a tensor: two of its dimensions have the same mesh axis, or
    on a strict mesh, the size of a dimension is no multiple of the number of shards.
    """


class MeshError(MeshtfError, ValueError):
    """A mesh does not match its devices, or one op gets tensors of two meshes."""


class PlanError(MeshtfError, RuntimeError):
    """A program cannot be recorded, differentiated or planned."""


class NoValueError(PlanError):
    """The value of a recorded tensor is needed, but only a run of the function computes it."""


class CheckpointError(MeshtfError, ValueError):
    """A checkpoint does not exist, or belongs to another model."""


class ClusterError(MeshtfError, RuntimeError):
    """A worker does not answer, cannot be reached, or is in use by another program."""


class DamageError(CheckpointError):
    """A file of a checkpoint is damaged: it differs from what was written.

    Args:
      checkpoint: the path of the checkpoint.
      file: the file in it.
      reason: how the file is damaged.
      way_out: a sentence that says what to do; "" for none.
    """

    def __init__(
        self, checkpoint: str, file: str, reason: str, way_out: str = ""
    ) -> None:
        text = f"the checkpoint {checkpoint} is damaged: {file}: {reason}."
        super().__init__(f"{text}\n  {way_out}" if way_out else text)
        self.checkpoint = checkpoint
        self.file = file
        self.reason = reason


class WriteError(CheckpointError):
    """A checkpoint could not be written; earlier checkpoints are unchanged."""


class IndexRangeError(MeshtfError, IndexError):
    """An index that a program computes with is out of range, such as an id that a table
    lacks. It is a `tf.errors.InvalidArgumentError` as well.
    """


class NumericsError(MeshtfError, ArithmeticError):
    """A tensor contains NaN or infinity."""


class DeviceMemoryError(MeshtfError, MemoryError):
    """A program needs more memory than a device of a live mesh has.

    Args:
      program: the name of the program.
      reason: what the runtime of the devices says.
      forecast: the forecast of the program's peak, as text; None: unknown.
      suggestions: changes that would save memory.
    """

    def __init__(
        self,
        program: str,
        reason: str,
        forecast: str | None = None,
        suggestions: Sequence[str] = (),
    ) -> None:
        self.program = program
        self.reason = reason
        way_out = suggestions or [
            "Shard more dimensions, take smaller batches or microbatches, or recompute: "
            "`mtf.explain` and `python -m meshtf explain` show what the peak consists of."
        ]
        facts = {} if forecast is None else {"forecast": forecast}
        super().__init__(
            explain_error(
                f"{program} needs more memory than a device has.",
                devices=reason,
                **facts,
                way_out="\n  ".join(way_out),
            )
        )


class LayoutWarning(UserWarning):
    """A layout is legal, but most likely not what the user intended."""


class TraceWarning(UserWarning):
    """A function is traced very often, although one trace would suffice."""


class MicrobatchWarning(UserWarning):
    """The loss of a batch depends on how it is divided into microbatches."""


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged or could not be written, and the program continues without it."""


def explain_error(headline: str, way_out: object = "", **facts: object) -> str:
    """Returns the message of an error: a headline, a line for each fact, and a way out.

    Args:
      headline: the first line.
      way_out: the last line, which says what to write instead; "" for none.
      **facts: for each fact a label and a value, which become an aligned line. The label
        of `source`, the user's line, is "from".
    """
    # The width of the column of labels.
    width = max([8, *(len(label) + 1 for label in facts)])
    lines = [str(headline)]
    for name, fact in facts.items():
        label = "from" if name == "source" else name.replace("_", " ")
        first_line, *further_lines = str(fact).split("\n")
        lines.append(f"  {label:<{width}} {first_line}")
        indent = " " * (width + 3)
        lines.extend(indent + line for line in further_lines)
    if str(way_out):
        lines.append(f"  {way_out}")
    return "\n".join(lines)


def _is_iterable(x: object) -> bool:
    """Returns whether x can be iterated; False for tensors and arrays."""
    return isinstance(x, Iterable) and not hasattr(x, "dtype")


def near_misses(name: str, known: Iterable[str]) -> str:
    """Returns up to three known names that are similar to `name`, as "a, b"; "" if there
    are none.
    """
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


def __dir__() -> list[str]:
    """Returns the names that this module defines."""
    return sorted(
        name
        for name, value in globals().items()
        if getattr(value, "__module__", "") == __name__ and not name.startswith("_")
    )
