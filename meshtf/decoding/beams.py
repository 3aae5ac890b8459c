"""Beam search: the best sequences, by following the best beginnings of sequences side
by side.

    ids, scores = mtf.decoding.beam_search(step, prompt, "beam:4", cache, end=1)

    alive    the `beam` best beginnings that have not ended, by log-probability
    done     the `beam` best sequences that have, by log-probability over a length penalty
    turn     each alive one with each id that may follow: the best 2 * beam of all these, of which
             at most `beam` end. The best that have not ended live on; the others meet
             the done ones

Of a cut vocabulary each slice tells its 2 * beam best for each beam, which leaves
nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.decoding.sequences import Sequences, Step, check_free, refuse_number
from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Source, Tensor
from meshtf.names import Dimension, Shape, ShapeLike
from meshtf.names.arguments import as_float
from meshtf.ops.common.checks import single_dim
from meshtf.ops.control.cond_and_while_loop import while_loop
from meshtf.ops.elementwise.arithmetic import (
    add,
    divide,
    equal,
    floordiv,
    greater,
    less,
    logical_and,
    pow,
    subtract,
)
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.gather import range as numbers
from meshtf.ops.indexing.top_k import top_k
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.reductions.logsumexp import reduce_logsumexp
from meshtf.ops.reductions.reduce import reduce_any, reduce_max, reduce_min
from meshtf.ops.scans.cumulative import cumsum
from meshtf.ops.shapes.reshape import flatten, rename, transpose
from meshtf.ops.shapes.slice import concat
from meshtf.ops.variables.fill import full, zeros

NONE = -float("inf")  # the score of a sequence that there is not


def beam_search(
    step: Step,
    prompt: Tensor,
    beam: ShapeLike,
    state: Any = None,
    end: int | Sequence[int] | None = None,
    alpha: float = 0.6,
    vocab: str = "vocab",
    length: str = "length",
    vocab_size: int | None = None,
    until: Any = None,
) -> tuple[Tensor, Tensor]:
    """Returns the best sequences and their scores, best first: int32 [*batch, beam,
    length] and float32 [*batch, beam].

    A score is the log-probability of what follows the prompt, n ids with the end,
    divided by ((5 + n) / 6) ** alpha (Wu et al. 2016, arXiv:1609.08144, equation 14).
    Where no sequence of the beams has ended, the result is the unfinished ones. Places
    beyond the sequences that were found have the score -inf. The loop ends when no
    alive beam can come before any finished one.

    Args:
      step: `logits, state = step(position, ids, state)` with a position, int32 [], the
        ids [*batch, beam] there, and the logits [*batch, beam, vocab] of the ids that follow.
      prompt: integers [*batch, length]; ids that are given, and negative where they are
        searched for. The first of each sequence must be given.
      beam: the name and the number of beams, such as "beam:4"; more of them miss less.
      state: what the step keeps: tensors, in any nesting, of unchanging names and
        sizes; or None. Those with dimension `beam` follow their beams; others are
        common to all.
      end: the id that ends a sequence where it is found, or several; what follows is
        `end` again, or the first of them. None: no id.
      alpha: 0 prefers short sequences; 1 goes by the log-probability per id, almost.
      vocab: the name of the dimension of ids.
      length: the name of the dimension of positions.
      vocab_size: ids from here on are padding of the dimension, and never taken.
      until: positions from here on are not looked for: a number, or int32 [], so that
        one program serves several. What is not given there is filled as after an end.

    Raises:
      ShapeError, DTypeError: prompt, state or logits are not as said, or `end` is no
        id.
      PlanError: a negative alpha, or a state of another nesting.
    """
    alpha = as_float("alpha", alpha)
    refuse_number(alpha >= 0, "alpha is at least 0", alpha)
    texts = Sequences(step, prompt, state, end, vocab, length, vocab_size, until)
    search = _Search(texts, single_dim(beam), alpha)
    return search.result(*while_loop(search.goes_on, search.turn, search.start()))


class _Search:
    """The loop of a beam search. Its state: position, alive ids and log-probabilities,
    done ids and scores, and what the step keeps."""

    def __init__(self, texts: Sequences, beam: Dimension, alpha: float) -> None:
        check_free(
            texts.prompt.shape + Dimension(texts.vocab, 1),
            beam.name,
            "the dimension of beams",
        )
        refuse_number(beam.size >= 1, "there is at least one beam", beam.size)
        self.texts = texts
        self.beam = beam
        self.alpha = alpha
        self.all = f"{beam.name}_all"
        self.pool = f"{beam.name}_pool"
        self.before = f"{beam.name}_before"
        for x in texts.state:
            _check_state(x, beam, texts.batch)
        self.shape = texts.batch + beam
        self.counts = cumsum(cast(less(texts.prompt, 0), "int32"), texts.length)

    def start(self) -> tuple[Any, ...]:
        """Returns the state before the first turn: one beam is alive."""
        mesh = self.texts.prompt.mesh
        first = equal(numbers(mesh, self.beam), 0)
        alive = broadcast(where(first, 0.0, NONE), self.shape)
        ids = self._each(self.texts.filled)
        return (
            zeros(mesh, "", "int32"),
            ids,
            alive,
            ids,
            full(mesh, self.shape, NONE),
            self.texts.state,
        )

    def _each(self, ids: Tensor) -> Tensor:
        return broadcast(ids, self.shape + ids.shape.dim(self.texts.length))

    def goes_on(
        self,
        position: Tensor,
        ids: Tensor,
        alive: Tensor,
        done_ids: Tensor,
        done: Tensor,
        held: Sequence[Tensor],
    ) -> Tensor:
        """Returns whether a beam may still come before a finished one: no
        log-probability rises, and no penalty lasts longer than that of the whole
        length."""
        longest = self.penalty(reduce_max(self.counts, self.texts.length))
        hope = divide(reduce_max(alive, self.beam.name), longest)
        worse = less(reduce_min(done, self.beam.name), hope)
        return logical_and(less(position, self.texts.last), reduce_any(worse))

    def turn(
        self,
        position: Tensor,
        ids: Tensor,
        alive: Tensor,
        done_ids: Tensor,
        done: Tensor,
        held: Sequence[Tensor],
    ) -> tuple[Any, ...]:
        """Returns the state after one more id."""
        texts = self.texts
        logits, held = texts.follow(position, texts.at(ids, position), held)
        position = add(position, 1)
        given = texts.at(texts.prompt, position)
        log_probs, new, parents = self.candidates(logits, alive, given)
        grown = texts.put(self.take(ids, parents), position, new)
        ends = logical_and(less(given, 0), texts.are_ends(new))
        scores = divide(
            where(ends, log_probs, NONE), self.penalty(texts.at(self.counts, position))
        )
        done, (done_ids,) = self.best(
            self.both(done, scores), self.both(done_ids, grown)
        )
        alive, (ids, parents) = self.best(where(ends, NONE, log_probs), grown, parents)
        return (
            position,
            ids,
            alive,
            done_ids,
            done,
            [self.take(x, parents) for x in held],
        )

    def candidates(
        self, logits: Tensor, alive: Tensor, given: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns log-probabilities, ids and beams of the best 2 * beam to go on:
        [*batch, pool].
        """
        vocab = self.texts.vocab
        most = Dimension(f"{vocab}_best", min(2 * self.beam.size, logits.shape[vocab]))
        values, ids = top_k(logits, vocab, [most])
        free = less(given, 0)
        values = where(
            greater(values, NONE),  # where nothing can follow, that stays so
            subtract(values, reduce_logsumexp(logits, vocab)),
            NONE,
        )
        only = where(equal(numbers(logits.mesh, most), 0), 0.0, NONE)
        values = add(where(free, values, only), alive)
        ids = where(free, ids, given)
        values, ids = (
            flatten(
                transpose(x, self.shape + most), (self.beam.name, most.name), self.all
            )
            for x in (values, ids)
        )
        pool = Dimension(self.pool, min(2 * self.beam.size, values.shape[self.all]))
        values, places = top_k(values, self.all, [pool])
        return values, gather(ids, places, self.all), floordiv(places, most.size)

    def both(self, done: Tensor, new: Tensor) -> Tensor:
        """Returns beams and candidates as one pool."""
        return concat([rename(done, self.beam.name, self.pool), new], self.pool)

    def best(self, scores: Tensor, *others: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns the best of a pool, and what else is known of them: [*batch, beam,
        ...].
        """
        scores, places = top_k(scores, self.pool, [self.beam])
        return (
            transpose(scores, self.shape),
            [self._ordered(gather(x, places, self.pool)) for x in others],
        )

    def take(self, x: Tensor, parents: Tensor) -> Tensor:
        """Returns x of other beams, if it has beams."""
        if self.beam.name not in x.shape:
            return x
        before = rename(x, self.beam.name, self.before)
        return transpose(
            gather(before, parents, self.before),
            [
                parents.shape.names[-1] if n == self.beam.name else n
                for n in x.shape.names
            ],
        )

    def _ordered(self, x: Tensor) -> Tensor:
        return transpose(x, [*self.shape, *x.shape.without(*self.shape.names)])

    def penalty(self, count: Tensor) -> Tensor:
        """Returns the length penalty of so many ids."""
        return pow(divide(add(cast(count, "float32"), 5.0), 6.0), self.alpha)

    def result(
        self,
        position: Tensor,
        ids: Tensor,
        alive: Tensor,
        done_ids: Tensor,
        done: Tensor,
        held: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Returns ids and scores: of done sequences, or of alive ones where none is
        done.
        """
        some = greater(reduce_max(done, self.beam.name), NONE)
        alive = divide(alive, self.penalty(self.texts.at(self.counts, position)))
        scores = transpose(where(some, done, alive), self.shape)
        ids = where(
            greater(scores, NONE), where(some, done_ids, ids), self.texts.filled
        )
        return self._ordered(ids), scores


def _check_state(x: Tensor, beam: Dimension, batch: Shape) -> None:
    if beam.name not in x.shape:
        return
    way_out = (
        f"Make it [{' '.join(map(repr, batch + beam))} ...]: mtf.broadcast(x, shape)."
    )
    if x.shape[beam.name] != beam.size or not set(batch) <= set(x.shape):
        raise ShapeError(
            explain_error(
                f'a state with dimension "{beam.name}" has one row for each beam of '
                "each sequence.",
                tensor=repr(x.shape),
                beams=repr(batch + beam),
                **{"from": Source.of_caller()},
                way_out=way_out,
            )
        )
