"""Beam search: finds sequences of token ids of high probability by extending the `beam` best
sequences in parallel.

    ids, scores = mtf.decoding.beam_search(step, prompt, "beam:4", cache, eos_id=1)

The loop has two sets of sequences for each example:

    alive        the `beam` best unfinished sequences, by log-probability
    finished     the `beam` best finished sequences, by log-probability / length penalty

An iteration extends each alive sequence by each id. The 2 * beam likeliest extensions are
the candidates. With one `eos_id`, at most `beam` of them end, so at least `beam` are
unfinished. The best unfinished candidates become the alive sequences; candidates that end
compete with the finished sequences. A pool, [*batch, pool], has the sequences that the best
`beam` are selected from: the candidates, or finished sequences and candidates.

Where the vocabulary is sharded, each shard sends its 2 * beam best ids for each beam: the
best of all shards are among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshtf.decoding.checks import check_name_is_free, check_setting
from meshtf.decoding.sequences import Sequences, Step
from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Source, Tensor
from meshtf.names import Dimension, Shape, ShapeLike
from meshtf.names.arguments import as_float
from meshtf.ops.common.checks import single_dim
from meshtf.ops.control.cond_and_while_loop import while_unfinished
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

ABSENT = -float("inf")  # the log-probability and score of a beam without a sequence


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
    no alive sequence can get a better score than the worst finished one.

    Args:
      step: a function, called as `logits, state = step(position, ids, state)`: position
        is int32 [], ids are those at the position, [*batch, beam], and logits are those
        of the next ids, [*batch, beam, vocab].
      prompt: the ids of the prompt, integers [*batch, length], negative where ids are to
        be generated. The first id of each sequence must not be negative.
      beam: the dimension of beams, such as "beam:4".
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
      vocab_size: the count of ids that may be generated; larger ids are padding of the
        dimension. None: all ids.
      max_length: the count of positions to fill: an integer, or int32 [], so that one
        program serves several lengths, or int32 [*batch], a count for each sequence; None:
        all positions. The remaining positions are filled as after `eos_id`.

    Raises:
      ShapeError, DTypeError: prompt, state or logits have other dimensions or types, or
        `eos_id` is no id.
      PlanError: a negative alpha, or a state of another nesting.
    """
    alpha = as_float("alpha", alpha)
    check_setting(alpha >= 0, "alpha is at least 0", alpha)
    sequences = Sequences(
        step,
        prompt,
        state,
        eos_id=eos_id,
        vocab=vocab,
        length=length,
        vocab_size=vocab_size,
        max_length=max_length,
    )
    search = _BeamSearch(sequences, single_dim(beam), alpha)
    carry = while_unfinished(
        search.is_unfinished, search.iterate, search.initial_carry()
    )
    return search.result(carry)


class _Carry(NamedTuple):
    """The carry of the loop: the tensors that one iteration passes to the next. The loop
    passes them to its functions as separate arguments.

    Attributes:
      position: the last position with ids, int32 [].
      ids: the ids of alive sequences, int32 [*batch, beam, length].
      log_probs: the log-probabilities of alive sequences, float32 [*batch, beam].
      finished_ids: the ids of finished sequences, int32 [*batch, beam, length].
      finished_scores: the scores of finished sequences, float32 [*batch, beam].
      state: the tensors of the step's state.
    """

    position: Tensor
    ids: Tensor
    log_probs: Tensor
    finished_ids: Tensor
    finished_scores: Tensor
    state: Sequence[Tensor]


class _Candidates(NamedTuple):
    """The best 2 * beam extensions of the alive sequences.

    Attributes:
      log_probs: the log-probabilities of the extended sequences, float32 [*batch, pool].
      new_ids: the ids that are appended, int32 [*batch, pool].
      parents: the indices of the beams that are extended, int32 [*batch, pool].
    """

    log_probs: Tensor
    new_ids: Tensor
    parents: Tensor


class _BeamSearch:
    """The loop of a beam search.

    Attributes:
      sequences: the prompt and the step function.
      beam: the dimension of beams.
      alpha: the exponent of the length penalty.
      shape: the dimensions [*batch, beam].
      extensions_dim: the name of the dimension of all extensions of an example.
      pool_dim: the name of the dimension of a pool.
      parent_dim: the name of the dimension of beams before they are reordered.
      generated_counts: the count of ids up to each position that are generated, int32
        [*batch, length].
    """

    def __init__(self, sequences: Sequences, beam: Dimension, alpha: float) -> None:
        prompt = sequences.prompt
        used_dims = prompt.shape + Dimension(sequences.vocab, 1)
        check_name_is_free(used_dims, beam.name, purpose="the dimension of beams")
        check_setting(beam.size >= 1, "the number of beams is at least 1", beam.size)
        self.sequences = sequences
        self.beam = beam
        self.alpha = alpha
        self.extensions_dim = f"{beam.name}_all"
        self.pool_dim = f"{beam.name}_pool"
        self.parent_dim = f"{beam.name}_before"
        for x in sequences.state:
            _check_state(x, beam, sequences.batch)
        self.shape = sequences.batch + beam
        is_generated = cast(less(prompt, 0), "int32")
        self.generated_counts = cumsum(is_generated, sequences.length)

    def initial_carry(self) -> _Carry:
        """Returns the carry before the first iteration.

        Only the first beam of each example has a sequence: the prompt. With the prompt in
        all beams, all beams would be extended equally.
        """
        mesh = self.sequences.prompt.mesh
        is_first_beam = equal(index_range(mesh, self.beam), 0)
        log_probs = broadcast(where(is_first_beam, 0.0, ABSENT), self.shape)
        length = self.sequences.prompt.shape.dim(self.sequences.length)
        ids = broadcast(self.sequences.initial_ids, self.shape + length)
        return _Carry(
            position=zeros(mesh, shape="", dtype="int32"),
            ids=ids,
            log_probs=log_probs,
            finished_ids=ids,
            finished_scores=full(mesh, self.shape, ABSENT),
            state=self.sequences.state,
        )

    def is_unfinished(self, *elements: Any) -> Tensor:
        """Returns whether an alive sequence may still get a better score than the worst
        finished one: bool [].

        Log-probabilities never rise, and the length penalty is largest at the maximum
        length. So the current log-probability, divided by that penalty, bounds the score
        of every extension.
        """
        carry = _Carry(*elements)
        max_count = reduce_max(self.generated_counts, self.sequences.length)
        best_log_prob = reduce_max(carry.log_probs, self.beam.name)
        bound = divide(best_log_prob, self.length_penalty(max_count))
        worst_finished_score = reduce_min(carry.finished_scores, self.beam.name)
        can_improve = less(worst_finished_score, bound)
        has_positions = less(carry.position, self.sequences.last_position)
        return reduce_any(logical_and(can_improve, has_positions))

    def iterate(self, *elements: Any) -> _Carry:
        """Returns the carry after one more id of each sequence."""
        carry = _Carry(*elements)
        sequences = self.sequences
        last_ids = sequences.read(carry.ids, carry.position)
        logits, state = sequences.next_logits(carry.position, last_ids, carry.state)
        position = add(carry.position, 1)
        prompt_ids = sequences.read(sequences.prompt, position)
        candidates = self.best_extensions(logits, carry.log_probs, prompt_ids)
        parent_ids = self.gather_parents(carry.ids, candidates.parents)
        ids = sequences.write(parent_ids, position, candidates.new_ids)
        # An eos_id in the prompt does not end a sequence.
        is_generated = less(prompt_ids, 0)
        ends = logical_and(is_generated, sequences.is_eos(candidates.new_ids))
        count = sequences.read(self.generated_counts, position)
        ended_log_probs = where(ends, candidates.log_probs, ABSENT)
        scores = divide(ended_log_probs, self.length_penalty(count))
        finished_scores, (finished_ids,) = self.select_best(
            self.concat_candidates(carry.finished_scores, scores),
            self.concat_candidates(carry.finished_ids, ids),
        )
        alive_log_probs = where(ends, ABSENT, candidates.log_probs)
        log_probs, (ids, parents) = self.select_best(
            alive_log_probs, ids, candidates.parents
        )
        return _Carry(
            position=position,
            ids=ids,
            log_probs=log_probs,
            finished_ids=finished_ids,
            finished_scores=finished_scores,
            state=[self.gather_parents(x, parents) for x in state],
        )

    def best_extensions(
        self, logits: Tensor, log_probs: Tensor, prompt_ids: Tensor
    ) -> _Candidates:
        """Returns the best 2 * beam extensions of the alive sequences.

        Args:
          logits: the logits of the next ids, [*batch, beam, vocab].
          log_probs: the log-probabilities of the alive sequences, [*batch, beam].
          prompt_ids: the ids of the prompt at the next position, [*batch]; negative where
            ids are generated.
        """
        vocab = self.sequences.vocab
        num_candidates = 2 * self.beam.size
        # Only these ids of each beam can be among the best of all beams.
        num_best = min(num_candidates, logits.shape[vocab])
        best_dim = Dimension(f"{vocab}_best", num_best)
        best_logits, best_ids = top_k(logits, vocab, [best_dim])
        is_possible = greater(best_logits, ABSENT)  # for others, -inf - -inf may be NaN
        id_log_probs = subtract(best_logits, reduce_logsumexp(logits, vocab))
        id_log_probs = where(is_possible, id_log_probs, ABSENT)
        # Where the prompt has the next id, it is the only extension of a beam.
        is_first = equal(index_range(logits.mesh, best_dim), 0)
        prompt_log_probs = where(is_first, 0.0, ABSENT)
        is_generated = less(prompt_ids, 0)
        id_log_probs = where(is_generated, id_log_probs, prompt_log_probs)
        best_ids = where(is_generated, best_ids, prompt_ids)
        extended_log_probs = self._flatten_beams(add(id_log_probs, log_probs), best_dim)
        num_extensions = extended_log_probs.shape[self.extensions_dim]
        pool = Dimension(self.pool_dim, min(num_candidates, num_extensions))
        pool_log_probs, indices = top_k(extended_log_probs, self.extensions_dim, [pool])
        extension_ids = self._flatten_beams(best_ids, best_dim)
        return _Candidates(
            log_probs=pool_log_probs,
            new_ids=gather(extension_ids, indices, self.extensions_dim),
            # Each beam has `best_dim.size` consecutive extensions.
            parents=floordiv(indices, best_dim.size),
        )

    def _flatten_beams(self, x: Tensor, best_dim: Dimension) -> Tensor:
        """Returns x [*batch, beam, best_dim] as [*batch, extensions_dim]."""
        x = transpose(x, self.shape + best_dim)
        return flatten(x, (self.beam.name, best_dim.name), self.extensions_dim)

    def concat_candidates(self, finished: Tensor, candidates: Tensor) -> Tensor:
        """Returns finished sequences [*batch, beam, ...] and candidates [*batch, pool, ...]
        along one dimension: [*batch, pool, ...].
        """
        finished = rename(finished, self.beam.name, self.pool_dim)
        return concat([finished, candidates], self.pool_dim)

    def select_best(
        self, scores: Tensor, *values: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the best scores of a pool, [*batch, beam], and the entries of each of
        `values` for the same sequences, [*batch, beam, ...].

        Args:
          scores: the scores of all sequences of the pool, [*batch, pool].
          values: tensors [*batch, pool, ...].
        """
        best_scores, indices = top_k(scores, self.pool_dim, [self.beam])
        best_scores = transpose(best_scores, self.shape)
        best_values = []
        for x in values:
            selected = gather(x, indices, self.pool_dim)
            best_values.append(self._beams_first(selected))
        return best_scores, best_values

    def gather_parents(self, x: Tensor, parents: Tensor) -> Tensor:
        """Returns the entries of x for the beams that sequences extend; x itself if it is
        shared by all beams.

        Args:
          x: ids or a tensor of the step's state, [..., beam, ...].
          parents: the index of the beam that each sequence extends, [*batch, beam] or
            [*batch, pool].
        """
        if self.beam.name not in x.shape:
            return x
        # [..., parent_dim, ...] -> [..., beam or pool, ...]
        new_dim = parents.shape.names[-1]
        x = rename(x, self.beam.name, self.parent_dim)
        names = [new_dim if name == self.parent_dim else name for name in x.shape.names]
        return transpose(gather(x, parents, self.parent_dim), names)

    def _beams_first(self, x: Tensor) -> Tensor:
        """Returns x as [*batch, beam, ...]."""
        return transpose(x, [*self.shape, *x.shape.without(*self.shape.names)])

    def length_penalty(self, count: Tensor) -> Tensor:
        """Returns ((5 + count) / 6) ** alpha, the length penalty of sequences of `count`
        generated ids: float32, with the shape of `count`.
        """
        return pow(divide(add(cast(count, "float32"), 5.0), 6.0), self.alpha)

    def result(self, carry: _Carry) -> tuple[Tensor, Tensor]:
        """Returns the ids [*batch, beam, length] and scores [*batch, beam] of the finished
        sequences; for an example without finished sequences, those of the alive ones.
        """
        sequences = self.sequences
        has_finished = greater(
            reduce_max(carry.finished_scores, self.beam.name), ABSENT
        )
        count = sequences.read(self.generated_counts, carry.position)
        alive_scores = divide(carry.log_probs, self.length_penalty(count))
        scores = where(has_finished, carry.finished_scores, alive_scores)
        scores = transpose(scores, self.shape)
        ids = where(has_finished, carry.finished_ids, carry.ids)
        ids = where(greater(scores, ABSENT), ids, sequences.initial_ids)
        return self._beams_first(ids), scores


def _check_state(x: Tensor, beam: Dimension, batch: Shape) -> None:
    """Checks a tensor of the state.

    Raises:
      ShapeError: it has a dimension of beams, but not one entry for each beam of each
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
            source=Source.of_caller(),
            way_out=f"Make it [{names} ...]: mtf.broadcast(x, shape).",
        )
    )
