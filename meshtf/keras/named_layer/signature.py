"""What the inputs of a call are: their sizes, of which that of the batch may be unknown.

signature = signature_of({"x": "batch; d_model"}, [x], training=False)
any_batch(names, signature)                 # that of the same call for any batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.names import names_of


class Signature(NamedTuple):
    """What the inputs of a call are.

    Attributes:
        inputs: The sizes of each input, and its type; None: the batch may have any size.
        training: Whether the function is told that it is in training.
    """

    inputs: tuple[tuple[tuple[int | None, ...], str], ...]
    training: bool = False

    @property
    def is_any_batch(self) -> bool:
        """Whether the size of the batch is unknown."""
        return any(None in sizes for sizes, _ in self.inputs)


def signature_of(
    names: Mapping[str, str], tensors: Sequence[Any], training: bool
) -> Signature:
    """Returns the signature of a call.

    Args:
        names: The dimensions of its inputs, by parameter.
        tensors: The inputs, as Keras or TensorFlow has them.
        training: Whether it is one in training.

    Raises:
        ShapeError: A tensor has another number of dimensions, or lacks the size of one that is
            not the batch: the first dimension of the first input.
    """
    batch = batch_of(names)
    batch_size = None  # perhaps one of the inputs has it
    for (name, text), x in zip(names.items(), tensors):
        _check_axes(name, text, x.shape, batch)
        if batch in names_of(text):
            batch_size = batch_size or x.shape[names_of(text).index(batch)]
    inputs = []
    for x in tensors:
        sizes = tuple(batch_size if size is None else size for size in x.shape)
        inputs.append((sizes, tf.as_dtype(x.dtype).name))
    return Signature(tuple(inputs), training)


def _check_axes(name: str, text: str, shape: Any, batch: str | None) -> None:
    """Raises ShapeError for an input that does not have its dimensions, or not their sizes."""
    dims, sizes = names_of(text), tuple(shape)
    unknown = [dim for dim, size in zip(dims, sizes) if size is None and dim != batch]
    if len(dims) != len(sizes):
        problem = f"has {len(sizes)} axes, but {len(dims)} names."
    elif unknown:
        problem = f"has no size along {unknown[0]!r}."
    else:
        return
    raise ShapeError(
        explain_error(
            f"the input {name!r} of a layer of named dimensions {problem}",
            shape=sizes,
            names=text,
            way_out="Name each axis, the batch too. Only the batch, the first dimension of the "
            "first input, may be of any size; give others theirs: keras.Input([16, 64]).",
        )
    )


def any_batch(names: Mapping[str, str], signature: Signature) -> Signature:
    """Returns the signature of the same call for a batch of any size.

    Args:
        names: The dimensions of its inputs, by parameter.
        signature: The sizes and types of its inputs.
    """
    batch = batch_of(names)
    inputs = []
    for text, (sizes, dtype) in zip(names.values(), signature.inputs):
        pairs = zip(names_of(text), sizes)
        inputs.append((tuple(None if d == batch else size for d, size in pairs), dtype))
    return Signature(tuple(inputs), signature.training)


def batch_of(names: Mapping[str, str]) -> str | None:
    """Returns the batch's dimension: the first one of the first input; None for a scalar."""
    return next(iter(names_of(next(iter(names.values())))), None)
