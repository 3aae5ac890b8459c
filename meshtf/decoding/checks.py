"""Checks of the arguments of sampling and beam search, and their errors."""

from __future__ import annotations

from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph import Source, Tensor
from meshtf.names import Shape


def check_setting(
    is_legal: bool, requirement: str, value: object, way_out: str = ""
) -> None:
    """Checks a setting of sampling or beam search.

    Args:
      is_legal: whether the setting is legal.
      requirement: the requirement in words, such as "top_k is at least 1".
      value: the value of the setting.
      way_out: a correction, for the error.

    Raises:
      PlanError: "<requirement>, not <value>.", if the setting is not legal.
    """
    if not is_legal:
        raise error(PlanError, f"{requirement}, not {value}.", way_out=way_out)


def check_name_is_free(shape: Shape, name: str, purpose: str) -> None:
    """Checks that a shape has no dimension of a name.

    Args:
      shape: the shape.
      name: the name of a dimension that is to be added.
      purpose: the purpose of the dimension, for the error, such as "the dimension of
        beams".

    Raises:
      ShapeError: the shape already has a dimension of this name.
    """
    if name in shape:
        raise error(
            ShapeError,
            f'"{name}" cannot be {purpose}: the tensor already has this dimension.',
            tensor=repr(shape),
            way_out="Use another name.",
        )


def error(
    error_class: type[Exception], headline: str, way_out: str = "", **facts: Any
) -> Exception:
    """Returns an error that shows facts about the call, and the user's line.

    Args:
      error_class: the class of the error.
      headline: the first line of the message.
      way_out: a correction.
      **facts: the lines of the message: a text or a tensor by the title of its line. Of a
        tensor, the data type and shape are shown.
    """
    texts: dict[str, Any] = {}
    for name, fact in facts.items():
        if isinstance(fact, Tensor):
            texts[name] = f"{fact.dtype} {fact.shape!r}"
        else:
            texts[name] = fact
    texts["from"] = Source.of_caller()
    return error_class(explain_error(headline, way_out, **texts))
