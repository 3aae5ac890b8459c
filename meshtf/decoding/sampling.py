"""Sampling: autoregressive generation of token ids, one per step.

    ids, log_probs = mtf.decoding.sample(step, prompt, eos_id=1, temperature=0)   # greedy
    with mtf.seed(7):
      ids, log_probs = mtf.decoding.sample(step, prompt, cache, eos_id=1, top_k=40)

The loop appends one id to all sequences of the batch in each iteration. `Sequences`
(`sequences.py`) has the prompt and the step function, and reads and writes the entries of a
position.

With `top_k`, the k likeliest ids are found first. Each shard of a sharded vocabulary then
sends at most k elements, and random numbers are generated for k ids only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshtf.decoding.checks import check_setting
from meshtf.decoding.sequences import Sequences, Step
from meshtf.graph import Tensor
from meshtf.names import Dimension
from meshtf.names.arguments import as_float, check_floats, check_ints
from meshtf.ops.control.cond_and_while_loop import while_unfinished
from meshtf.ops.elementwise.arithmetic import (
    add,
    divide,
    less,
    logical_and,
    logical_or,
    maximum,
    subtract,
)
from meshtf.ops.elementwise.unary import logical_not
from meshtf.ops.elementwise.where_cast_clip import where
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.top_k import argmax
from meshtf.ops.indexing.top_k import top_k as select_top_k
from meshtf.ops.nn.softmax import softmax
from meshtf.ops.random.random import categorical
from meshtf.ops.reductions.logsumexp import reduce_logsumexp
from meshtf.ops.reductions.reduce import reduce_any, reduce_max
from meshtf.ops.scans.cumulative import cumsum
from meshtf.ops.variables.fill import full, zeros


class _Carry(NamedTuple):
    """The carry of the loop: the tensors that one iteration passes to the next. The loop
    passes them to its functions as separate arguments.

    Attributes:
      position: the last position with ids, int32 [].
      ids: the ids of the sequences, int32 [*batch, length].
      log_probs: the log-probability of each id, float32 [*batch, length].
      has_ended: whether each sequence has ended, bool [*batch].
      state: the tensors of the step's state.
    """

    position: Tensor
    ids: Tensor
    log_probs: Tensor
    has_ended: Tensor
    state: Sequence[Tensor]


def sample(
    step: Step,
    prompt: Tensor,
    state: Any = None,
    eos_id: int | Sequence[int] | None = None,
    temperature: Any = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    vocab: str = "vocab",
    length: str = "length",
    vocab_size: int | None = None,
    max_length: Any = None,
) -> tuple[Tensor, Tensor]:
    """Returns ids and their log-probabilities: int32 and float32 [*batch, length].

    Ids are drawn one after another, each from softmax(logits / temperature). Draws
    depend on the seed of the context (`with mtf.seed(...)`) and are identical under every
    layout. The loop stops when all sequences have ended. Log-probabilities are those of
    log_softmax(logits) for each id, including the ids of the prompt. They are 0 for the
    first id of a sequence, and after its end.

    Args:
      step: a function, called as `logits, state = step(position, ids, state)`: position
        is int32 [], ids are those at the position, [*batch], and logits are those of the
        next ids, [*batch, vocab].
      prompt: the ids of the prompt, integers [*batch, length], negative where ids are to
        be drawn. The first id of each sequence must not be negative.
      state: the carry of the step: tensors, in any nesting, of constant names and sizes;
        or None.
      eos_id: the id that ends a sequence where it is drawn, or several such ids; the
        positions after it are filled with `eos_id`, or the first of several. None: no
        id ends a sequence.
      temperature: a float or a tensor, such as one element for each sequence; 0 selects
        the likeliest id.
      top_k: the count of likeliest ids to draw from (Fan et al. 2018, arXiv:1805.04833);
        None, or more than there are: all ids.
      top_p: the probability of the nucleus, the smallest set of likeliest ids that have
        at least this probability together, to draw from (Holtzman et al. 2019,
        arXiv:1904.09751). It is a subset of the ids of `top_k`; without `top_k` all ids
        are sorted. None: no limit.
      vocab: the name of the dimension of ids.
      length: the name of the dimension of positions.
      vocab_size: the count of ids that may be drawn; larger ids are padding of the
        dimension. None: all ids.
      max_length: the count of positions to fill: an integer, or int32 [], so that one
        program serves several lengths, or int32 [*batch], a count for each sequence; None:
        all positions. The remaining positions are filled as after `eos_id`.

    Raises:
      ShapeError, DTypeError: prompt or logits have other dimensions or types, or `eos_id`
        is no id.
      PlanError: a setting out of its range, a state of another nesting, or no seed.
    """
    temperature = _check_settings(temperature, top_k, top_p)
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

    def is_unfinished(*elements: Any) -> Tensor:
        """Returns whether the loop continues, bool []."""
        carry = _Carry(*elements)
        has_positions = less(carry.position, sequences.last_position)
        if not sequences.eos_ids:
            return reduce_any(has_positions)
        is_alive = logical_not(carry.has_ended)
        return reduce_any(logical_and(is_alive, has_positions))

    def iterate(*elements: Any) -> _Carry:
        """Returns the carry after one more id of each sequence."""
        carry = _Carry(*elements)
        last_ids = sequences.read(carry.ids, carry.position)
        logits, state = sequences.next_logits(carry.position, last_ids, carry.state)
        position = add(carry.position, 1)
        prompt_ids = sequences.read(sequences.prompt, position)
        is_generated = less(prompt_ids, 0)
        drawn_ids = _draw(logits, vocab, temperature, top_k=top_k, top_p=top_p)
        drawn_ids = where(carry.has_ended, sequences.fill_id, drawn_ids)
        new_ids = where(is_generated, drawn_ids, prompt_ids)
        log_prob = _log_probs(logits, new_ids, vocab)
        log_prob = where(carry.has_ended, 0.0, log_prob)
        ends = logical_and(is_generated, sequences.is_eos(new_ids))
        return _Carry(
            position=position,
            ids=sequences.write(carry.ids, position, new_ids),
            log_probs=sequences.write(carry.log_probs, position, log_prob),
            has_ended=logical_or(carry.has_ended, ends),
            state=state,
        )

    carry = while_unfinished(is_unfinished, iterate, _initial_carry(sequences))
    if sequences.is_beyond is None:
        return carry.ids, carry.log_probs
    return carry.ids, where(sequences.is_beyond, 0.0, carry.log_probs)


def _initial_carry(sequences: Sequences) -> _Carry:
    """Returns the carry before the first iteration."""
    prompt = sequences.prompt
    return _Carry(
        position=zeros(prompt.mesh, shape="", dtype="int32"),
        ids=sequences.initial_ids,
        log_probs=zeros(prompt.mesh, prompt.shape),
        has_ended=full(prompt.mesh, sequences.batch, value=False, dtype="bool"),
        state=sequences.state,
    )


def _check_settings(temperature: Any, top_k: int | None, top_p: float | None) -> Any:
    """Returns the temperature as a float or a tensor.

    Raises:
      ArgumentError, PlanError: the temperature, `top_k` or `top_p` is not valid.
    """
    if top_k is not None:
        check_ints(top_k=top_k)
    if top_p is not None:
        check_floats(top_p=top_p)
    if hasattr(temperature, "tensor"):
        temperature = temperature.tensor()  # the value of a variable
    elif not isinstance(temperature, Tensor):
        temperature = as_float("temperature", temperature, "a float or a tensor")
    check_setting(
        isinstance(temperature, Tensor) or temperature >= 0,
        requirement="a temperature is at least 0",
        value=temperature,
    )
    check_setting(
        top_k is None or top_k >= 1,
        requirement="top_k is at least 1",
        value=top_k,
        way_out="Leave it out to draw from all ids.",
    )
    check_setting(
        top_p is None or 0 < top_p <= 1,
        requirement="top_p is above 0 and at most 1",
        value=top_p,
        way_out="Leave it out to draw from all ids.",
    )
    return temperature


def _log_probs(logits: Tensor, ids: Tensor, vocab: str) -> Tensor:
    """Returns the log-probabilities [*batch] of ids [*batch] for logits [*batch, vocab]."""
    return subtract(gather(logits, ids, vocab), reduce_logsumexp(logits, vocab))


def _draw(
    logits: Tensor, vocab: str, temperature: Any, top_k: int | None, top_p: float | None
) -> Tensor:
    """Returns random ids [*batch] for logits [*batch, vocab]; the other arguments are
    those of `sample`.
    """
    if not isinstance(temperature, Tensor) and temperature == 0:
        return argmax(logits, vocab)
    if top_k is None and top_p in (None, 1):
        return categorical(logits, vocab, temperature, name="sample")
    num_candidates = logits.shape[vocab]
    if top_k is not None:
        num_candidates = min(top_k, num_candidates)
    candidates_dim = Dimension(f"{vocab}_best", num_candidates)
    # In descending order of the logits.
    candidate_logits, candidate_ids = select_top_k(logits, vocab, [candidates_dim])
    if top_p is not None and top_p != 1:
        candidate_logits = _mask_unlikely(
            candidate_logits, candidates_dim.name, temperature, top_p
        )
    choice = categorical(
        candidate_logits, candidates_dim.name, temperature, name="sample"
    )
    return gather(candidate_ids, choice, candidates_dim.name)


def _mask_unlikely(logits: Tensor, dim: str, temperature: Any, top_p: float) -> Tensor:
    """Returns logits with -inf for all ids outside of the nucleus: the likeliest ids whose
    probabilities sum to `top_p`.

    Args:
      logits: logits in descending order along `dim`, [*batch, dim].
      dim: the name of the dimension of ids.
      temperature: the temperature of the softmax, a float or a tensor.
      top_p: the probability of the nucleus.
    """
    if not isinstance(temperature, Tensor):
        temperature = full(logits.mesh, shape="", value=temperature)
    # The largest logit becomes 0 before the division, so it stays finite if a temperature of
    # a tensor is 0.
    shifted_logits = subtract(logits, reduce_max(logits, dim))
    scaled_logits = divide(shifted_logits, maximum(temperature, 1e-30))
    # For each id, the sum of the probabilities of all likelier ids: less than top_p for every
    # id of the nucleus.
    preceding_probability = cumsum(softmax(scaled_logits, dim), dim, exclusive=True)
    return where(less(preceding_probability, top_p), logits, -float("inf"))
