"""Maps indices of dimensions that were made of a microbatch's examples to the batch.

    with microbatch("batch", num_microbatches=4, index=index):
      # x[batch:4 length:8] has examples index, index + 4, ... of the batch.
      y = mtf.flatten(x, ["batch", "length"], "tokens")
      y = mtf.dropout(y, 0.1)                    # the mask that the batch has for these tokens

A random op in a microbatch must draw the numbers that it would draw for the same elements
of the batch. For this, `rename`, `flatten`, `unflatten` and `reshape` record here how the
new dimensions follow from the batch's dimension. An index of a dimension is written in mixed
radix, as *digits*, the most significant first:

    index = digit_0 * size_1 * size_2 + digit_1 * size_2 + digit_2

Above, an index of tokens:32 has two digits: one of size 4, which counts examples, and one of
size 8. If a digit counts all examples of the microbatch, indices of the dimension have known
indices in the batch. If a reshape splits this digit into sections, they have none: section k
of a microbatch's examples is not a section of the batch's examples. Random ops then draw
numbers that differ by microbatch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Source, current
from meshtf.names import Dimension, Shape


class Digit(NamedTuple):
    """One digit of a mixed-radix index.

    Attributes:
      batch: the dimension of the microbatch whose examples the digit counts; None: it
        counts something else.
      size: the number of values of the digit.
      stride: the number of examples between one value of the digit and the next; 0: not
        known.
      num_examples: the number of examples of the microbatch.
    """

    batch: str | None
    size: int
    stride: int = 1
    num_examples: int = 0

    @property
    def counts_examples(self) -> bool:
        """Whether the digit counts examples of a microbatch."""
        return self.batch is not None

    @property
    def is_section(self) -> bool:
        """Whether the digit counts only a section of the microbatch's examples."""
        if not self.counts_examples:
            return False
        return self.stride != 1 or self.size != self.num_examples


Digits = tuple[Digit, ...]
# The digits of dimensions, by the name and size of the dimension.
DigitsByDim = dict[tuple[str, int], Digits]
# The only digit of a dimension that was made of the batch in two ways.
_AMBIGUOUS_DIGIT = Digit(batch="", size=0)
_AMBIGUOUS: Digits = (_AMBIGUOUS_DIGIT,)


class Microbatch(NamedTuple):
    """The examples index, index + num_microbatches, ... of a batch.

    Attributes:
      num_microbatches: the number of microbatches of the batch.
      index: the index of this microbatch: an int, or a scalar int32 tensor.
      has_batch_indices: whether its examples have known indices in the batch.
    """

    num_microbatches: int
    index: Any
    has_batch_indices: bool = True


class Strided(NamedTuple):
    """Maps the indices of a dimension of a microbatch to those of the batch.

    Index i of `dim` is index
    (i // inner_size * num_microbatches + m) * inner_size + i % inner_size
    of the batch, since example k of microbatch m is example k * num_microbatches + m.

    Attributes:
      dim: the name of the dimension.
      num_microbatches: the number of microbatches of the batch.
      inner_size: the number of consecutive indices that belong to one example.
    """

    dim: str
    num_microbatches: int
    inner_size: int

    def in_batch(self, index: Any, microbatch: Any) -> Any:
        """Returns indices of the dimension as those of the batch of this microbatch."""
        if self.inner_size == 1:
            return index * self.num_microbatches + microbatch
        example_in_batch = index // self.inner_size * self.num_microbatches + microbatch
        return example_in_batch * self.inner_size + index % self.inner_size


class UnknownIndex(NamedTuple):
    """An ambiguous index in the batch: a random op that needs it raises the error."""

    error: PlanError


class MicrobatchState:
    """The active microbatches by dimension, and the recorded digits of dimensions."""

    def __init__(
        self, microbatches: Mapping[str, Microbatch], digits_by_dim: DigitsByDim
    ) -> None:
        self.microbatches = dict(microbatches)
        self.digits_by_dim = digits_by_dim

    def digits(self, dim: Dimension) -> Digits:
        """Returns the digits of an index of `dim`."""
        recorded_digits = self.digits_by_dim.get((dim.name, dim.size))
        if recorded_digits is not None:
            return recorded_digits
        if dim.name in self.microbatches:
            return (Digit(batch=dim.name, size=dim.size, num_examples=dim.size),)
        return (Digit(batch=None, size=dim.size),)

    def record(self, dim: Dimension, digits: Digits) -> None:
        """Records the digits of `dim`, which is ambiguous if it has other digits already."""
        key = (dim.name, dim.size)
        if _AMBIGUOUS_DIGIT in digits:
            if key not in self.digits_by_dim and dim.name not in self.microbatches:
                self.digits_by_dim[key] = _AMBIGUOUS
            return
        digits = _merge_adjacent(digits)
        if self.digits_by_dim.setdefault(key, digits) != digits:
            self.digits_by_dim[key] = _AMBIGUOUS

    def nested(
        self, dim: str, num_microbatches: int, index: Any, digits_by_dim: DigitsByDim
    ) -> MicrobatchState:
        """Returns the state of a microbatch that starts while this state is active.

        Args:
          dim: the name of the dimension of its examples.
          num_microbatches: the number of microbatches.
          index: the index of the microbatch.
          digits_by_dim: the dictionary in which the digits of new dimensions are recorded.
        """
        outer = self.microbatches.get(dim)
        if outer is not None:
            # A microbatch of a microbatch.
            index = index * outer.num_microbatches + outer.index
            num_microbatches *= outer.num_microbatches
            has_batch_indices = outer.has_batch_indices
        else:
            has_batch_indices = not self._is_made_of_batch(dim)
        # Dimensions that do not count examples of `dim` keep their digits.
        for (name, size), digits in self.digits_by_dim.items():
            counts_examples_of_dim = any(digit.batch == dim for digit in digits)
            if name != dim and not counts_examples_of_dim:
                digits_by_dim.setdefault((name, size), digits)
        microbatch = Microbatch(num_microbatches, index, has_batch_indices)
        return MicrobatchState({**self.microbatches, dim: microbatch}, digits_by_dim)

    def _is_made_of_batch(self, name: str) -> bool:
        """Returns whether a dimension of this name was made of a batch's dimension."""
        for (recorded_name, _), digits in self.digits_by_dim.items():
            if recorded_name == name and any(digit.counts_examples for digit in digits):
                return True
        return False

    def strided(self, dim: Dimension) -> Strided | None:
        """Returns how indices of `dim` map to the batch; None if they have no known index
        in the batch.

        Raises:
          PlanError: the dimension is ambiguous.
        """
        digits = self.digits(dim)
        if digits == _AMBIGUOUS:
            raise _ambiguity_error(dim)
        example_digits = [digit for digit in digits if digit.counts_examples]
        if len(example_digits) != 1:
            return None
        (example_digit,) = example_digits
        if example_digit.is_section:
            return None
        microbatch = self.microbatches.get(example_digit.batch or "")
        if microbatch is None or not microbatch.has_batch_indices:
            return None
        lower_digits = digits[digits.index(example_digit) + 1 :]
        return Strided(
            dim=dim.name,
            num_microbatches=microbatch.num_microbatches,
            inner_size=math.prod(digit.size for digit in lower_digits),
        )

    def has_examples(self, dim: Dimension) -> bool:
        """Returns whether indices of `dim` count examples of a microbatch."""
        return any(digit.counts_examples for digit in self.digits(dim))

    def index_of(self, dim: Dimension) -> Any:
        """Returns the index of the microbatch whose examples `dim` counts."""
        for digit in self.digits(dim):
            if digit.batch is not None:
                return self.microbatches[digit.batch].index
        raise AssertionError(f"{dim!r} counts no examples of a microbatch")

    def num_microbatches(self, name: str) -> int:
        """Returns into how many microbatches the examples of a dimension are divided, or 1."""
        if name in self.microbatches:
            return self.microbatches[name].num_microbatches
        counts = [1]
        for (recorded_name, _), digits in self.digits_by_dim.items():
            if recorded_name != name:
                continue
            for digit in digits:
                # Neither None nor "", the batch of the ambiguous digit.
                if digit.batch:
                    counts.append(self.microbatches[digit.batch].num_microbatches)
        return max(counts)

    @property
    def indices(self) -> list[Any]:
        """The indices of all active microbatches."""
        return [microbatch.index for microbatch in self.microbatches.values()]


def _ambiguity_error(dim: Dimension) -> PlanError:
    """Returns the error of a random op for a dimension with ambiguous digits."""
    return PlanError(
        explain_error(
            f'dimension "{dim.name}" of size {dim.size} is made of the batch '
            "in two ways, or was another dimension before. So it is ambiguous "
            "which random numbers are those of this microbatch.",
            source=Source.of_caller(),
            way_out="Give one of them another name where it is renamed, merged "
            "or split.",
        )
    )


def record_rename(shape: Shape, pairs: Mapping[str, str]) -> None:
    """Records that dimensions of a shape are renamed.

    Args:
      shape: the shape before.
      pairs: the new name of each renamed dimension, by its old name.
    """
    state = current().microbatches
    if state is None or _has_internal_name((*pairs, *pairs.values())):
        return
    # All digits are read before any are recorded, since names may be exchanged.
    records = [
        (Dimension(new, shape[old]), state.digits(shape.dim(old)))
        for old, new in pairs.items()
    ]
    for dim, digits in records:
        state.record(dim, digits)


def record_reshape(old: Sequence[Dimension], new: Sequence[Dimension]) -> None:
    """Records that dimensions `old` became dimensions `new`, in row-major order."""
    state = current().microbatches
    if state is None or _has_internal_name(dim.name for dim in (*old, *new)):
        return
    old_digits: list[Digit] = []
    for dim in old:
        old_digits.extend(state.digits(dim))
    new_digits = _distribute(old_digits, [dim.size for dim in new])
    for dim, digits in zip(new, new_digits):
        if dim not in old or state.digits(dim) != digits:
            state.record(dim, digits)


def _has_internal_name(names: Iterable[str]) -> bool:
    """Returns whether one of the names is that of a temporary dimension of an op."""
    return any(name.startswith(".") for name in names)


def index_in_batch(dim: Dimension, index: Any) -> Any:
    """Returns the index in the batch of index `index` of `dim`, for the key of a random op.

    If the index in the batch is not known, the result is a number that differs by
    microbatch. If it is ambiguous, the result is an `UnknownIndex`.
    """
    state = current().microbatches
    if state is None or not state.has_examples(dim):
        return index
    try:
        strided = state.strided(dim)
    except PlanError as error:
        return UnknownIndex(error)
    if strided is None:
        for microbatch in state.microbatches.values():
            index = index * microbatch.num_microbatches + microbatch.index
        return index
    return strided.in_batch(index, state.index_of(dim))


def _distribute(digits: Sequence[Digit], sizes: Sequence[int]) -> list[Digits]:
    """Returns the digits of each of several dimensions.

    Args:
      digits: the digits of the index over all of these dimensions in row-major order.
      sizes: the sizes of the dimensions.
    """
    if _AMBIGUOUS_DIGIT in digits:
        return [_AMBIGUOUS] * len(sizes)
    remaining = deque(
        digit for digit in digits if digit.size > 1 or digit.counts_examples
    )
    digits_of_dims = []
    for k, size in enumerate(sizes):
        next_is_one = k + 1 < len(sizes) and sizes[k + 1] == 1
        dim_digits = _take_digits(remaining, size, next_is_one)
        if dim_digits is None:
            return _unknown_digits(digits, sizes)
        digits_of_dims.append(_merge_adjacent(dim_digits))
    return digits_of_dims


def _take_digits(
    remaining: deque[Digit], size: int, next_is_one: bool
) -> list[Digit] | None:
    """Removes the digits of one dimension from the start of `remaining`, and returns them.

    Args:
      remaining: the digits of this dimension and of those after it.
      size: the size of this dimension.
      next_is_one: whether the next dimension has size 1. If so, a digit of size 1 after the
        first one is left to it.

    Returns:
      The digits; None if no product of digits is `size`.
    """
    dim_digits: list[Digit] = []
    missing_size = size  # the size of the digits that are still to be removed
    while remaining:
        # A digit of size 1 after a complete dimension belongs to the dimension too, unless the
        # next dimension has size 1 and needs it.
        takes_one = remaining[0].size == 1 and not (next_is_one and dim_digits)
        if missing_size <= 1 and not takes_one:
            break
        digit = remaining.popleft()
        if digit.size > missing_size and digit.size % missing_size == 0:
            # The digit is split: this dimension gets its upper section.
            lower_size = digit.size // missing_size
            remaining.appendleft(digit._replace(size=lower_size))
            # A digit that counts no examples has no stride.
            stride = 1 if digit.batch is None else digit.stride * lower_size
            digit = digit._replace(size=missing_size, stride=stride)
        elif missing_size % digit.size:
            return None
        dim_digits.append(digit)
        missing_size //= digit.size
    return dim_digits


def _unknown_digits(digits: Sequence[Digit], sizes: Sequence[int]) -> list[Digits]:
    """Returns one digit for each dimension, with an unknown stride if `digits` count
    examples.
    """
    example_digits = [digit for digit in digits if digit.counts_examples]
    if not example_digits:
        return [(Digit(batch=None, size=size),) for size in sizes]
    # An unknown stride is 0.
    return [(example_digits[0]._replace(size=size, stride=0),) for size in sizes]


def _merge_adjacent(digits: Sequence[Digit]) -> Digits:
    """Returns the digits, with adjacent digits merged where possible."""
    merged: list[Digit] = []
    for digit in digits:
        if merged and _are_mergeable(merged[-1], digit):
            digit = digit._replace(size=merged.pop().size * digit.size)
        merged.append(digit)
    return tuple(merged)


def _are_mergeable(major: Digit, minor: Digit) -> bool:
    """Returns whether two adjacent digits (i, j) can be merged to i * minor.size + j."""
    if major.batch != minor.batch:
        return False
    if minor.batch is None:
        return True
    # Digits that count examples: the examples of the merged digit must be equally spaced.
    return (
        major.num_examples == minor.num_examples
        and minor.stride > 0
        and major.stride == minor.size * minor.stride
    )
