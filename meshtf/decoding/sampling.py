"""Sampling: autoregressive generation, one id per step.

    ids, log_probs = mtf.decoding.sample(step, prompt, end=1, temperature=0)      # greedy
    with mtf.seed(7):
      ids, log_probs = mtf.decoding.sample(step, prompt, cache, end=1, temperature=0.8, top_k=40)

With `top_k`, only the k likeliest ids are compared: each shard of a sharded vocabulary
then sends at most k elements, and noise is generated for k ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.decoding.sequences import Sequences, Step, refuse_number
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
    end: int | Sequence[int] | None = None,
    temperature: Any = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    vocab: str = "vocab",
    length: str = "length",
    vocab_size: int | None = None,
    until: Any = None,
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
      end: the id that ends a sequence where it is drawn, or several; what follows is
        `end` again, or the first of them. None: no id.
      temperature: a float or a tensor, such as one element for each sequence; 0 selects
        the likeliest id.
      top_k: draw from the k likeliest ids (Fan et al. 2018, arXiv:1805.04833).
      top_p: draw from the fewest ids, the likeliest, that have this probability
        together (Holtzman et al. 2019, arXiv:1904.09751), among those of `top_k`;
        without `top_k` it sorts all.
      vocab: the name of the dimension of ids.
      length: the name of the dimension of positions.
      vocab_size: ids from here on are padding of the dimension, and never drawn.
      until: positions from here on are not looked for: a number, or int32 [], so that
        one program serves several. What is not given there is filled as after an end.

    Raises:
      ShapeError, DTypeError: prompt or logits are not as said, or `end` is no id.
      PlanError: a setting out of its range, a state of another nesting, or no seed.
    """
    temperature = _checked(temperature, top_k, top_p)
    texts = Sequences(step, prompt, state, end, vocab, length, vocab_size, until)

    def goes_on(
        position: Tensor, ids: Tensor, log_probs: Tensor, ended: Tensor, held: Any
    ) -> Tensor:
        more = less(position, texts.last)
        return logical_and(more, logical_not(reduce_all(ended))) if texts.ends else more

    def turn(
        position: Tensor, ids: Tensor, log_probs: Tensor, ended: Tensor, held: Any
    ) -> Any:
        logits, held = texts.follow(position, texts.at(ids, position), held)
        position = add(position, 1)
        given = texts.at(texts.prompt, position)
        free = less(given, 0)
        drawn = where(
            ended, texts.filler, _draw(logits, vocab, temperature, top_k, top_p)
        )
        chosen = where(free, drawn, given)
        log_prob = subtract(
            gather(logits, chosen, vocab), reduce_logsumexp(logits, vocab)
        )
        log_prob = where(logical_and(ended, free), 0.0, log_prob)
        ended = logical_or(ended, logical_and(free, texts.are_ends(chosen)))
        return (
            position,
            texts.put(ids, position, chosen),
            texts.put(log_probs, position, log_prob),
            ended,
            held,
        )

    mesh = prompt.mesh
    start = (
        zeros(mesh, "", "int32"),
        texts.filled,
        zeros(mesh, prompt.shape),
        full(mesh, texts.batch, False, "bool"),
        texts.state,
    )
    _, ids, log_probs, _, _ = while_loop(goes_on, turn, start)
    return ids, log_probs


def _checked(temperature: Any, top_k: int | None, top_p: float | None) -> Any:
    """Returns the temperature as a number or a tensor."""
    if top_k is not None:
        as_int("top_k", top_k)
    if top_p is not None:
        as_float("top_p", top_p)
    if hasattr(temperature, "tensor"):
        temperature = temperature.tensor()
    elif not isinstance(temperature, Tensor):
        temperature = as_float("temperature", temperature, "a number or a tensor")
    refuse_number(
        isinstance(temperature, Tensor) or temperature >= 0,
        "a temperature is at least 0",
        temperature,
    )
    refuse_number(
        top_k is None or top_k >= 1,
        "top_k is at least 1",
        top_k,
        "Leave it out to draw from all ids.",
    )
    refuse_number(
        top_p is None or 0 < top_p <= 1,
        "top_p is above 0 and at most 1",
        top_p,
        "Leave it out to draw from all ids.",
    )
    return temperature


def _draw(
    logits: Tensor, vocab: str, temperature: Any, top_k: int | None, top_p: float | None
) -> Tensor:
    """Returns ids: logits without `vocab`."""
    if not isinstance(temperature, Tensor) and temperature == 0:
        return argmax(logits, vocab)
    if top_k is None and top_p in (None, 1):
        return categorical(logits, vocab, temperature, name="sample")
    size = logits.shape[vocab]
    best = Dimension(f"{vocab}_best", size if top_k is None else min(top_k, size))
    values, ids = largest(logits, vocab, [best])
    if top_p not in (None, 1):
        # Counted from the largest, which stays 0 where the temperature is 0.
        warmth = (
            temperature
            if isinstance(temperature, Tensor)
            else full(values.mesh, "", temperature)
        )
        scaled = divide(
            subtract(values, reduce_max(values, best.name)), maximum(warmth, 1e-30)
        )
        before = cumsum(softmax(scaled, best.name), best.name, exclusive=True)
        values = where(less(before, top_p), values, -float("inf"))
    return gather(
        ids, categorical(values, best.name, temperature, name="sample"), best.name
    )
