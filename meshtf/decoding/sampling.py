"""Sampling: autoregressive generation, one id per step.

    ids, log_probs = mtf.decoding.sample(step, prompt, eos_id=1, temperature=0)   # greedy
    with mtf.seed(7):
      ids, log_probs = mtf.decoding.sample(step, prompt, cache, eos_id=1, top_k=40)

With `top_k`, only the k likeliest ids are compared: each shard of a sharded vocabulary
then sends at most k elements, and noise is generated for k ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.decoding.sequences import Sequences, Step, check_setting
from meshtf.graph import Tensor
from meshtf.names import Dimension
from meshtf.names.arguments import as_float, as_int
from meshtf.ops.control.cond_and_while_loop import while_loop
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
from meshtf.ops.indexing.top_k import top_k as largest
from meshtf.ops.nn.softmax import softmax
from meshtf.ops.random.random import categorical
from meshtf.ops.reductions.logsumexp import reduce_logsumexp
from meshtf.ops.reductions.reduce import reduce_all, reduce_max
from meshtf.ops.scans.cumulative import cumsum
from meshtf.ops.variables.fill import full, zeros


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
    layout. The loop stops when all sequences have ended. Log-probabilities are
    log_softmax(logits) at the ids, including those of the prompt; they are 0 at the
    initial id and after an end.

    Args:
      step: `logits, state = step(position, ids, state)` with a position, int32 [], the
        ids [*batch] at that position, and the logits [*batch, vocab] of the next ids.
      prompt: integers [*batch, length]: the ids of the prompt, and negative elements
        where ids are to be drawn. The initial id of each sequence must not be negative.
      state: the carry of the step: tensors, in any nesting, of constant names and sizes;
        or None.
      eos_id: the id that ends a sequence where it is drawn, or several such ids; the
        positions after it are filled with `eos_id`, or the first of several. None: no
        id ends a sequence.
      temperature: a float or a tensor, such as one element for each sequence; 0 selects
        the likeliest id.
      top_k: draw from the k likeliest ids (Fan et al. 2018, arXiv:1805.04833).
      top_p: draw from the fewest ids, the likeliest, that have this probability
        together (Holtzman et al. 2019, arXiv:1904.09751), among those of `top_k`;
        without `top_k` it sorts all.
      vocab: the name of the dimension of ids.
      length: the name of the dimension of positions.
      vocab_size: ids from here on are padding of the dimension, and never drawn.
      max_length: how many positions are filled: an integer, or int32 [], so that one
        program serves several lengths. Positions after it are filled as after `eos_id`.

    Raises:
      ShapeError, DTypeError: prompt or logits have other dimensions or types, or `eos_id`
        is no id.
      PlanError: a setting out of its range, a state of another nesting, or no seed.
    """
    temperature = _check_settings(temperature, top_k, top_p)
    sequences = Sequences(
        step, prompt, state, eos_id, vocab, length, vocab_size, max_length
    )

    def is_unfinished(
        position: Tensor, ids: Tensor, log_probs: Tensor, ended: Tensor, state: Any
    ) -> Tensor:
        has_positions = less(position, sequences.last_position)
        if not sequences.eos_ids:
            return has_positions
        return logical_and(has_positions, logical_not(reduce_all(ended)))

    def iterate(
        position: Tensor, ids: Tensor, log_probs: Tensor, ended: Tensor, state: Any
    ) -> Any:
        last_ids = sequences.read(ids, position)
        logits, state = sequences.next_logits(position, last_ids, state)
        position = add(position, 1)
        prompt_ids = sequences.read(sequences.prompt, position)
        is_free = less(prompt_ids, 0)
        drawn = _draw(logits, vocab, temperature, top_k, top_p)
        drawn = where(ended, sequences.fill_id, drawn)
        new_ids = where(is_free, drawn, prompt_ids)
        log_normalizer = reduce_logsumexp(logits, vocab)
        log_prob = subtract(gather(logits, new_ids, vocab), log_normalizer)
        log_prob = where(logical_and(ended, is_free), 0.0, log_prob)
        ended = logical_or(ended, logical_and(is_free, sequences.is_eos(new_ids)))
        ids = sequences.write(ids, position, new_ids)
        log_probs = sequences.write(log_probs, position, log_prob)
        return position, ids, log_probs, ended, state

    mesh = prompt.mesh
    carry = (
        zeros(mesh, "", "int32"),
        sequences.initial_ids,
        zeros(mesh, prompt.shape),
        full(mesh, sequences.batch, False, "bool"),
        sequences.state,
    )
    _, ids, log_probs, _, _ = while_loop(is_unfinished, iterate, carry)
    return ids, log_probs


def _check_settings(temperature: Any, top_k: int | None, top_p: float | None) -> Any:
    """Returns the temperature as a float or a tensor. Raises PlanError."""
    if top_k is not None:
        as_int("top_k", top_k)
    if top_p is not None:
        as_float("top_p", top_p)
    if hasattr(temperature, "tensor"):
        temperature = temperature.tensor()
    elif not isinstance(temperature, Tensor):
        temperature = as_float("temperature", temperature, "a float or a tensor")
    check_setting(
        isinstance(temperature, Tensor) or temperature >= 0,
        "a temperature is at least 0",
        temperature,
    )
    check_setting(
        top_k is None or top_k >= 1,
        "top_k is at least 1",
        top_k,
        "Leave it out to draw from all ids.",
    )
    check_setting(
        top_p is None or 0 < top_p <= 1,
        "top_p is above 0 and at most 1",
        top_p,
        "Leave it out to draw from all ids.",
    )
    return temperature


def _draw(
    logits: Tensor, vocab: str, temperature: Any, top_k: int | None, top_p: float | None
) -> Tensor:
    """Returns ids [*batch] for logits [*batch, vocab]."""
    if not isinstance(temperature, Tensor) and temperature == 0:
        return argmax(logits, vocab)
    if top_k is None and top_p in (None, 1):
        return categorical(logits, vocab, temperature, name="sample")
    size = logits.shape[vocab]
    candidates = Dimension(f"{vocab}_best", size if top_k is None else min(top_k, size))
    values, ids = largest(logits, vocab, [candidates])
    if top_p is not None and top_p != 1:
        values = _mask_unlikely(values, candidates.name, temperature, top_p)
    choice = categorical(values, candidates.name, temperature, name="sample")
    return gather(ids, choice, candidates.name)


def _mask_unlikely(logits: Tensor, dim: str, temperature: Any, top_p: float) -> Tensor:
    """Returns sorted logits with -inf after the likeliest whose probabilities sum to
    `top_p`.
    """
    if not isinstance(temperature, Tensor):
        temperature = full(logits.mesh, "", temperature)
    # The largest becomes 0 before the division, so it stays finite at temperature 0.
    shifted = subtract(logits, reduce_max(logits, dim))
    scaled = divide(shifted, maximum(temperature, 1e-30))
    preceding = cumsum(softmax(scaled, dim), dim, exclusive=True)
    return where(less(preceding, top_p), logits, -float("inf"))
