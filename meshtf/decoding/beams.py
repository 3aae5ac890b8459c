"""Beam search: the best sequences, by extending the best unfinished ones side by side.

    ids, scores = mtf.decoding.beam_search(step, prompt, "beam:4", cache, eos_id=1)

    alive        the `beam` best unfinished sequences, by log-probability
    finished     the `beam` best finished sequences, by log-probability / length penalty
    iteration    extends each alive sequence by each id. The candidates are the best 2 * beam of
                 all these, of which at most `beam` end. The best unfinished candidates become
                 the alive sequences; the rest compete with the finished ones

Where the vocabulary is sharded, each shard sends its 2 * beam best ids for each beam: the
best of all shards are among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.decoding.sequences import (
    Sequences,
    Step,
    check_name_is_free,
    check_setting,
)
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
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.indexing.top_k import top_k
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.reductions.logsumexp import reduce_logsumexp
from meshtf.ops.reductions.reduce import reduce_any, reduce_max, reduce_min
from meshtf.ops.scans.cumulative import cumsum
from meshtf.ops.shapes.reshape import flatten, rename, transpose
from meshtf.ops.shapes.slice import concat
from meshtf.ops.variables.fill import full, zeros

ABSENT = -float("inf")  # the score of a beam without a sequence


def beam_search(
    step: Step,
    prompt: Tensor,
    beam: ShapeLike,
    state: Any = None,
    eos_id: int | Sequence[int] | None = None,
    alpha: float = 0.6,
    vocab: str = "vocab",
    length: str = "length",
    vocab_size: int | None = None,
    max_length: Any = None,
) -> tuple[Tensor, Tensor]:
    """Returns the best sequences and their scores, best first: int32 [*batch, beam,
    length] and float32 [*batch, beam].

    A score is the log-probability of the n ids that follow the prompt, the end of sequence
    included, divided by ((5 + n) / 6) ** alpha (Wu et al. 2016, arXiv:1609.08144,
    equation 14). If no sequence of an example ends, its unfinished ones are returned. If
    there are fewer sequences than beams, the remaining scores are -inf. The loop stops when
    no alive sequence can get a better score than a finished one.

    Args:
      step: `logits, state = step(position, ids, state)` with a position, int32 [], the
        ids [*batch, beam] at that position, and the logits [*batch, beam, vocab] of the
        next ids.
      prompt: integers [*batch, length]: the ids of the prompt, and negative elements
        where ids are to be generated. The initial id of each sequence must not be
        negative.
      beam: the name and the number of beams, such as "beam:4".
      state: the carry of the step: tensors, in any nesting, of constant names and sizes;
        or None. Tensors with dimension `beam` are reordered with their beams; the rest
        is shared by all beams.
      eos_id: the id that ends a sequence where it is generated, or several such ids; the
        positions after it are filled with `eos_id`, or the first of several. None: no
        id ends a sequence.
      alpha: the exponent of the length penalty. 0 compares log-probabilities, which
        prefers short sequences; 1 compares roughly their means per id.
      vocab: the name of the dimension of ids.
      length: the name of the dimension of positions.
      vocab_size: ids from here on are padding of the dimension, and never generated.
      max_length: how many positions are filled: an integer, or int32 [], so that one
        program serves several lengths. Positions after it are filled as after `eos_id`.

    Raises:
      ShapeError, DTypeError: prompt, state or logits have other dimensions or types, or
        `eos_id` is no id.
      PlanError: a negative alpha, or a state of another nesting.
    """
    alpha = as_float("alpha", alpha)
    check_setting(alpha >= 0, "alpha is at least 0", alpha)
    sequences = Sequences(
        step, prompt, state, eos_id, vocab, length, vocab_size, max_length
    )
    search = _BeamSearch(sequences, single_dim(beam), alpha)
    carry = while_loop(search.is_unfinished, search.iterate, search.initial_carry())
    return search.result(*carry)


class _BeamSearch:
    """The loop of a beam search.

    Its carry: the position, int32 []; ids [*batch, beam, length] and log-probabilities
    [*batch, beam] of alive sequences; ids and scores of finished sequences; the tensors
    of the step's state.

    Attributes:
      shape: [*batch, beam].
      all_dim: the name of the dimension of all extensions of all beams of an example.
      pool_dim: the name of the dimension of candidates: the best 2 * beam extensions.
      parent_dim: the name of the dimension of beams before they are reordered.
      generated_counts: how many ids up to a position are generated: int32 [*batch, length].
    """

    def __init__(self, sequences: Sequences, beam: Dimension, alpha: float) -> None:
        prompt = sequences.prompt
        check_name_is_free(
            prompt.shape + Dimension(sequences.vocab, 1),
            beam.name,
            "the dimension of beams",
        )
        check_setting(beam.size >= 1, "the number of beams is at least 1", beam.size)
        self.sequences = sequences
        self.beam = beam
        self.alpha = alpha
        self.all_dim = f"{beam.name}_all"
        self.pool_dim = f"{beam.name}_pool"
        self.parent_dim = f"{beam.name}_before"
        for x in sequences.state:
            _check_state(x, beam, sequences.batch)
        self.shape = sequences.batch + beam
        is_generated = cast(less(prompt, 0), "int32")
        self.generated_counts = cumsum(is_generated, sequences.length)

    def initial_carry(self) -> tuple[Any, ...]:
        """Returns the carry before the first iteration: the prompt is alive in one beam."""
        mesh = self.sequences.prompt.mesh
        is_first_beam = equal(index_range(mesh, self.beam), 0)
        log_probs = broadcast(where(is_first_beam, 0.0, ABSENT), self.shape)
        length = self.sequences.prompt.shape.dim(self.sequences.length)
        ids = broadcast(self.sequences.initial_ids, self.shape + length)
        position = zeros(mesh, "", "int32")
        finished_scores = full(mesh, self.shape, ABSENT)
        return position, ids, log_probs, ids, finished_scores, self.sequences.state

    def is_unfinished(
        self,
        position: Tensor,
        ids: Tensor,
        log_probs: Tensor,
        finished_ids: Tensor,
        finished_scores: Tensor,
        state: Sequence[Tensor],
    ) -> Tensor:
        """Returns whether an alive sequence may still get a better score than a finished
        one.

        Log-probabilities never rise, and the length penalty is largest at the maximum
        length: so this bounds the score of every extension.
        """
        longest = reduce_max(self.generated_counts, self.sequences.length)
        best_log_prob = reduce_max(log_probs, self.beam.name)
        bound = divide(best_log_prob, self.length_penalty(longest))
        can_improve = less(reduce_min(finished_scores, self.beam.name), bound)
        has_positions = less(position, self.sequences.last_position)
        return logical_and(has_positions, reduce_any(can_improve))

    def iterate(
        self,
        position: Tensor,
        ids: Tensor,
        log_probs: Tensor,
        finished_ids: Tensor,
        finished_scores: Tensor,
        state: Sequence[Tensor],
    ) -> tuple[Any, ...]:
        """Returns the carry after one more id."""
        sequences = self.sequences
        last_ids = sequences.read(ids, position)
        logits, state = sequences.next_logits(position, last_ids, state)
        position = add(position, 1)
        prompt_ids = sequences.read(sequences.prompt, position)
        log_probs, new_ids, parents = self.candidates(logits, log_probs, prompt_ids)
        ids = sequences.write(self.of_parents(ids, parents), position, new_ids)
        ends = logical_and(less(prompt_ids, 0), sequences.is_eos(new_ids))
        count = sequences.read(self.generated_counts, position)
        scores = divide(where(ends, log_probs, ABSENT), self.length_penalty(count))
        finished_scores, (finished_ids,) = self.best(
            self.with_candidates(finished_scores, scores),
            self.with_candidates(finished_ids, ids),
        )
        log_probs, (ids, parents) = self.best(
            where(ends, ABSENT, log_probs), ids, parents
        )
        state = [self.of_parents(x, parents) for x in state]
        return position, ids, log_probs, finished_ids, finished_scores, state

    def candidates(
        self, logits: Tensor, log_probs: Tensor, prompt_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns log-probabilities, new ids and parent beams of the best 2 * beam
        extensions: [*batch, pool].

        Args:
          logits: of the next ids, [*batch, beam, vocab].
          log_probs: of the alive sequences, [*batch, beam].
          prompt_ids: the ids of the prompt at this position, [*batch]; negative where
            ids are generated.
        """
        vocab = self.sequences.vocab
        num_candidates = 2 * self.beam.size
        best = Dimension(f"{vocab}_best", min(num_candidates, logits.shape[vocab]))
        values, ids = top_k(logits, vocab, [best])
        is_possible = greater(values, ABSENT)  # else -inf - -inf would be NaN
        id_log_probs = subtract(values, reduce_logsumexp(logits, vocab))
        id_log_probs = where(is_possible, id_log_probs, ABSENT)
        # Where the prompt gives the id, it is the only extension of a beam.
        is_first = equal(index_range(logits.mesh, best), 0)
        prompt_log_probs = where(is_first, 0.0, ABSENT)
        is_free = less(prompt_ids, 0)
        id_log_probs = where(is_free, id_log_probs, prompt_log_probs)
        values = self._flatten_beams(add(id_log_probs, log_probs), best)
        ids = self._flatten_beams(where(is_free, ids, prompt_ids), best)
        pool = Dimension(self.pool_dim, min(num_candidates, values.shape[self.all_dim]))
        values, indices = top_k(values, self.all_dim, [pool])
        ids = gather(ids, indices, self.all_dim)
        return values, ids, floordiv(indices, best.size)

    def _flatten_beams(self, x: Tensor, best: Dimension) -> Tensor:
        """Returns x[*batch, beam, best] as [*batch, all_dim]."""
        x = transpose(x, self.shape + best)
        return flatten(x, (self.beam.name, best.name), self.all_dim)

    def with_candidates(self, finished: Tensor, candidates: Tensor) -> Tensor:
        """Returns finished sequences and candidates along one dimension: [*batch, pool,
        ...].
        """
        finished = rename(finished, self.beam.name, self.pool_dim)
        return concat([finished, candidates], self.pool_dim)

    def best(self, scores: Tensor, *values: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns the best scores of a pool, and values of the same sequences: [*batch,
        beam, ...].
        """
        best_scores, indices = top_k(scores, self.pool_dim, [self.beam])
        best_scores = transpose(best_scores, self.shape)
        best_values = []
        for x in values:
            selected = gather(x, indices, self.pool_dim)
            best_values.append(self._beams_first(selected))
        return best_scores, best_values

    def of_parents(self, x: Tensor, parents: Tensor) -> Tensor:
        """Returns x[..., beam, ...] of the beams that sequences extend; x itself if it is
        shared by all beams.

        Args:
          x: ids, or a tensor of the step's state.
          parents: indices of beams, [*batch, beam] or [*batch, pool].
        """
        if self.beam.name not in x.shape:
            return x
        new_dim = parents.shape.names[-1]
        x = rename(x, self.beam.name, self.parent_dim)
        names = [new_dim if n == self.parent_dim else n for n in x.shape.names]
        return transpose(gather(x, parents, self.parent_dim), names)

    def _beams_first(self, x: Tensor) -> Tensor:
        """Returns x as [*batch, beam, ...]."""
        return transpose(x, [*self.shape, *x.shape.without(*self.shape.names)])

    def length_penalty(self, count: Tensor) -> Tensor:
        """Returns the length penalty of sequences of `count` generated ids."""
        return pow(divide(add(cast(count, "float32"), 5.0), 6.0), self.alpha)

    def result(
        self,
        position: Tensor,
        ids: Tensor,
        log_probs: Tensor,
        finished_ids: Tensor,
        finished_scores: Tensor,
        state: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Returns ids and scores: of finished sequences, or of alive ones where none is
        finished.
        """
        sequences = self.sequences
        has_finished = greater(reduce_max(finished_scores, self.beam.name), ABSENT)
        count = sequences.read(self.generated_counts, position)
        alive_scores = divide(log_probs, self.length_penalty(count))
        scores = where(has_finished, finished_scores, alive_scores)
        scores = transpose(scores, self.shape)
        ids = where(has_finished, finished_ids, ids)
        ids = where(greater(scores, ABSENT), ids, sequences.initial_ids)
        return self._beams_first(ids), scores


def _check_state(x: Tensor, beam: Dimension, batch: Shape) -> None:
    """Raises ShapeError if a tensor of the state has beams, but not those of each
    example.
    """
    if beam.name not in x.shape:
        return
    if x.shape[beam.name] == beam.size and set(batch) <= set(x.shape):
        return
    names = " ".join(map(repr, batch + beam))
    raise ShapeError(
        explain_error(
            f'a state with dimension "{beam.name}" has an element for each beam of '
            "each example.",
            tensor=repr(x.shape),
            beams=repr(batch + beam),
            **{"from": Source.of_caller()},
            way_out=f"Make it [{names} ...]: mtf.broadcast(x, shape).",
        )
    )
