"""Which dimensions come from a batch of which a microbatch is worked on, and where its
rows lie.

    with microbatch("batch", 4, number):                     # rows number, number + 4, ...
      y = mtf.merge(x, ["batch", "length"], "tokens")
      y = mtf.dropout(y, 0.1)                                # the masks of the tokens of these rows

`rename`, `merge`, `split_dim` and `reshape` note here what they make of the dimensions
of a batch. A dimension is a row of *digits*, the major one first: index = digit * size
of those after it + ... One that has a microbatch's rows as one of its digits has a
place in the batch, element by element. A piece of them has none, since another piece of
the batch was cut otherwise: groups of 4 rows of a microbatch are no groups of the
batch. There random ops draw numbers that differ by microbatch.
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
    """A part of an index: some of a microbatch's rows, or (batch None)
    anything else.
    """

    batch: str | None
    size: int
    stride: int = 1  # in rows of the microbatch; 0: nobody knows
    whole: int = 0  # how many rows the microbatch has

    @property
    def is_piece(self) -> bool:
        """Whether it is not all of the microbatch's rows."""
        return self.batch is not None and (self.stride != 1 or self.size != self.whole)


Digits = tuple[Digit, ...]
_TWO_MEANINGS: Digits = (Digit("", 0),)


class Microbatch(NamedTuple):
    """Rows number, number + microbatches, ... of a batch."""

    microbatches: int
    number: Any  # an int, or a scalar int32 tensor
    placed: bool = True  # whether a row's place in the batch is known


class Strided(NamedTuple):
    """Index i of `dim` is (i // inner * microbatches + number) * inner + i % inner in
    the batch.
    """

    dim: str
    microbatches: int
    inner: int


class UnknownIndex(NamedTuple):
    """An index in the batch that nobody knows, which is an error for random
    ops alone.
    """

    error: PlanError


class MicrobatchState:
    """The microbatches in force, by their dimension, and the dimensions that were made
    of them.
    """

    def __init__(
        self,
        microbatches: Mapping[str, Microbatch],
        known: dict[tuple[str, int], Digits],
    ) -> None:
        self.microbatches, self.known = dict(microbatches), known

    def digits(self, dim: Dimension) -> Digits:
        """Returns what a dimension is made of."""
        known = self.known.get((dim.name, dim.size))
        if known is not None:
            return known
        if dim.name in self.microbatches:
            return (Digit(dim.name, dim.size, 1, dim.size),)
        return (Digit(None, dim.size),)

    def note(self, dim: Dimension, digits: Digits) -> None:
        """Remembers what a dimension is made of."""
        key = dim.name, dim.size
        if _TWO_MEANINGS[0] in digits:
            if key not in self.known and dim.name not in self.microbatches:
                self.known[key] = _TWO_MEANINGS
        elif self.known.setdefault(key, _joined(digits)) != _joined(digits):
            self.known[key] = _TWO_MEANINGS

    def within(
        self, dim: str, count: int, number: Any, known: dict[tuple[str, int], Digits]
    ) -> MicrobatchState:
        """Returns the microbatches in force within one more."""
        outer = self.microbatches.get(dim)
        if outer is not None:  # a part of a part
            number = number * outer.microbatches + outer.number
            count, placed = count * outer.microbatches, outer.placed
        else:
            placed = not any(
                name == dim and any(d.batch is not None for d in digits)
                for (name, _), digits in self.known.items()
            )
        for key, digits in self.known.items():
            if key[0] != dim and not any(d.batch == dim for d in digits):
                known.setdefault(key, digits)
        return MicrobatchState(
            {**self.microbatches, dim: Microbatch(count, number, placed)}, known
        )

    def place(self, dim: Dimension) -> Strided | None:
        """Returns where a dimension lies in the batch. Raises PlanError if there are
        two answers.
        """
        digits = self.digits(dim)
        if digits == _TWO_MEANINGS:
            raise PlanError(
                explain_error(
                    f'dimension "{dim.name}" of size {dim.size} is made of the batch '
                    "in two ways, or was another dimension before, so that nobody "
                    "knows which random numbers are those of this microbatch.",
                    **{"from": Source.here()},
                    way_out="Give one of them another name where it is renamed, merged "
                    "or split.",
                )
            )
        rows = [k for k, d in enumerate(digits) if d.batch is not None]
        if len(rows) != 1 or digits[rows[0]].is_piece:
            return None
        batch = self.microbatches.get(digits[rows[0]].batch or "")
        if batch is None or not batch.placed:
            return None
        return Strided(
            dim.name,
            batch.microbatches,
            math.prod(d.size for d in digits[rows[0] + 1 :]),
        )

    def is_of_batch(self, dim: Dimension) -> bool:
        """Returns whether a dimension has rows of a microbatch."""
        return any(d.batch is not None for d in self.digits(dim))

    def number_of(self, dim: Dimension) -> Any:
        """Returns the number of the microbatch whose rows a dimension has."""
        return next(
            self.microbatches[d.batch].number
            for d in self.digits(dim)
            if d.batch is not None
        )

    def count(self, name: str) -> int:
        """Returns how many microbatches have rows of a dimension of this name: 1 if it
        is another.
        """
        if name in self.microbatches:
            return self.microbatches[name].microbatches
        found = [
            d.batch
            for (known, _), digits in self.known.items()
            for d in digits
            if known == name
        ]
        return max((self.microbatches[b].microbatches for b in found if b), default=1)

    @property
    def numbers(self) -> list[Any]:
        """The numbers of all microbatches in force."""
        return [m.number for m in self.microbatches.values()]


def record_rename(shape: Shape, pairs: Mapping[str, str]) -> None:
    """Notes that dimensions of a shape got other names."""
    part = current().part
    if part is not None and not _of_ops_alone((*pairs, *pairs.values())):
        found = [
            (Dimension(new, shape[old]), part.digits(shape.dim(old)))
            for old, new in pairs.items()
        ]
        for dim, digits in found:
            part.note(dim, digits)


def record_reshape(old: Sequence[Dimension], new: Sequence[Dimension]) -> None:
    """Notes that dimensions became others, in row-major order."""
    part = current().part
    if part is None or _of_ops_alone(d.name for d in (*old, *new)):
        return
    digits = [d for dim in old for d in part.digits(dim)]
    for dim, found in zip(new, _shared_out(digits, [d.size for d in new])):
        if dim not in old or part.digits(dim) != found:
            part.note(dim, found)


def _of_ops_alone(names: Iterable[str]) -> bool:
    """Returns whether ops split a dimension for a while: with names that no
    user has.
    """
    return any(name.startswith(".") for name in names)


def index_in_batch(dim: Dimension, index: Any) -> Any:
    """Returns which element of the batch an element of a dimension is: another one in
    each microbatch; an `UnknownIndex` where there are two answers."""
    part = current().part
    if part is None or not part.is_of_batch(dim):
        return index
    try:
        place = part.place(dim)
    except PlanError as error:
        return UnknownIndex(error)
    if place is not None and place.inner == 1:
        return index * place.microbatches + part.number_of(dim)
    if place is not None:
        row = (index // place.inner) * place.microbatches + part.number_of(dim)
        return row * place.inner + index % place.inner
    for batch in part.microbatches.values():
        index = index * batch.microbatches + batch.number
    return index


def _shared_out(digits: Sequence[Digit], sizes: Sequence[int]) -> list[Digits]:
    """Returns the digits of dimensions of these sizes, that have these
    digits together.
    """
    if _TWO_MEANINGS[0] in digits:
        return [_TWO_MEANINGS] * len(sizes)
    left = deque(d for d in digits if d.size > 1 or d.batch is not None)
    found = []
    for k, size in enumerate(sizes):
        mine: list[Digit] = []
        while left and (
            size > 1
            or left[0].size == 1
            and sizes[k + 1 : k + 2] != [1]
            or not mine
            and left[0].size == 1
        ):
            digit = left.popleft()
            if digit.size > size and digit.size % size == 0:
                rest = digit.size // size
                left.appendleft(digit._replace(size=rest))
                # Of what is no batch, all pieces of a size are alike, whatever they
                # were cut from.
                stride = 1 if digit.batch is None else digit.stride * rest
                digit = digit._replace(size=size, stride=stride)
            elif size % digit.size:
                return _unknown(digits, sizes)
            mine.append(digit)
            size //= digit.size
        found.append(_joined(mine))
    return found


def _unknown(digits: Sequence[Digit], sizes: Sequence[int]) -> list[Digits]:
    """Returns digits of dimensions of which nobody knows where they have the batch."""
    batch = next((d for d in digits if d.batch is not None), None)
    return [
        (
            Digit(None, size)
            if batch is None
            else Digit(batch.batch, size, 0, batch.whole),
        )
        for size in sizes
    ]


def _joined(digits: Sequence[Digit]) -> Digits:
    """Returns digits with neighbours as one that are one number."""
    found: list[Digit] = []
    for digit in digits:
        last = found[-1] if found else None
        if (
            last is not None
            and last.batch == digit.batch
            and (
                digit.batch is None
                or last.whole == digit.whole
                and digit.stride
                and last.stride == digit.size * digit.stride
            )
        ):
            digit = Digit(
                digit.batch, last.size * digit.size, digit.stride, digit.whole
            )
            found.pop()
        found.append(digit)
    return tuple(found)
