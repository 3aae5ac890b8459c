"""Texts that models write: prompts of any lengths in, ids out, by one program for all of them.

    decoder = Decoder(model, number=200, prompt_length=64, batch=8, temperature=0.8, top_p=0.95)
    for written in decoder([[7, 4], [9, 1, 3]], seed=1):
      print(written.ids, written.score)

    decoder = Decoder(model, number=64, prompt_length=512, beams=4, end=1)     # EncoderDecoder too

A language model goes on with its prompts; an encoder-decoder reads them as its inputs. Prompts are
filled up to one length and one number, so the program is traced once. Keys and values of what was
read are kept, so each id costs one position. Every layout writes the same ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import gin
import numpy as np

import meshtf as mtf
from transformer.data import DataError, RawBytes, Vocabulary
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

_BEAM = "beam"


class PromptError(DataError):
  """A prompt that a model cannot read."""


class Written(NamedTuple):
  """What was written after a prompt."""

  ids: list[int]         # up to an end, and without it
  score: float           # their log-probability with the end; of beams, over the length penalty


@gin.configurable
class Decoder:
  """Writes on, id by id.

  Args:
    model: what writes.
    number: the most ids that are written after a prompt.
    prompt_length: the most ids of a prompt.
    batch: prompts that are read at a time.
    end: the id that ends a text, or several.
    begin: the id before the first one that is known: before a language model's prompts (None:
      nothing), or what a decoder is given first (None: 0).
    temperature: 0 takes the likeliest; below 1 likely ids become likelier.
    top_k: draw from so many of the likeliest ids.
    top_p: draw from the fewest ids that have this probability together.
    beams: how many beginnings a beam search follows; 0: there is none, and ids are drawn.
    alpha: of the length penalty of a beam search; above 0 longer texts are preferred.
    window: how many of the last ids a position sees; None: all.
    cut: whether prompts that are too long lose their beginning (an encoder's: their end) rather
      than be refused.
    vocab: ids from here on are never written; None: all of the model's may be.

  Raises:
    PlanError: a setting out of its range.
    ShapeError: there are more positions than learned ones.
  """

  def __init__(self, model: LanguageModel | EncoderDecoder, number: int = 200,
               prompt_length: int = 64, batch: int = 8, end: int | Sequence[int] | None = None,
               begin: int | None = None, temperature: float = 0.0, top_k: int | None = None,
               top_p: float | None = None, beams: int = 0, alpha: float = 0.6,
               window: int | None = None, cut: bool = False, vocab: int | None = None) -> None:
    if min(number, prompt_length, batch) < 1:
      raise mtf.PlanError(f"number={number}, prompt_length={prompt_length} and batch={batch} must "
                          "be at least 1.")
    self.model, self.mesh, self.number, self.cut = model, model.mesh, number, cut
    self.encodes, self.beams, self.alpha, self.window = (
        isinstance(model, EncoderDecoder), beams, alpha, window)
    self.begin = 0 if self.encodes and begin is None else begin
    self.vocab = min(vocab or model.architecture.vocab, model.architecture.vocab)
    self._settings: dict[str, Any] = {"end": end, "vocab_size": self.vocab}
    self._drawing: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = int(self.begin is not None)                         # ids before those of a prompt
    self.prompt_length = prompt_length
    self.length = self._even(given + number + (0 if self.encodes else prompt_length), "length",
                             "memory_length")
    self.batch = self._even(batch, "batch")
    self._run = mtf.function(self.write, mesh=self.mesh, texts="batch; length",
                             inputs="batch; inputs_length", until="", seed="", turn="")

  def _even(self, size: int, *names: str) -> int:
    """Returns the next size that the mesh can cut along these dimensions."""
    axes = [self.mesh.axes[axis] for name in names for axis in self.mesh.layout.axes(name)]
    return -(-size // (parts := math.lcm(*axes))) * parts

  def write(self, texts: mtf.Tensor, inputs: mtf.Tensor | None = None,
            until: mtf.Tensor | None = None, seed: Any = 0, turn: Any = 0
            ) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Returns ids, int32 [batch length], and scores, float32 [batch]: the program, in named ops.

    Args:
      texts: int32 [batch length], negative where ids are to be written.
      inputs: of an encoder, [batch inputs_length].
      until: positions from here on are not looked for.
      seed: another seed, other draws.
      turn: likewise; the number of the batch.
    """
    rows = texts.shape.without("length")
    start = self._start(rows + [(_BEAM, self.beams)] if self.beams else rows,
                        texts.shape["length"], inputs)
    settings = {**self._settings, "until": until}
    if self.beams:
      ids, scores = mtf.decoding.beam_search(
          self._step, texts, mtf.Dimension(_BEAM, self.beams), start, alpha=self.alpha, **settings)
      best = mtf.zeros(self.mesh, "", "int32")
      return mtf.gather(ids, best, _BEAM), mtf.gather(scores, best, _BEAM)
    with mtf.seed(seed, turn):
      ids, log_probs = mtf.decoding.sample(self._step, texts, start, **settings, **self._drawing)
    return ids, mtf.reduce_sum(mtf.where(texts < 0, log_probs, 0.0), "length")

  def _start(self, rows: mtf.Shape, positions: int, inputs: mtf.Tensor | None) -> Any:
    if not isinstance(self.model, EncoderDecoder):
      return self.model.start(rows, positions, self.window)
    assert inputs is not None, "an encoder has inputs"
    encoded, _ = self.model.encode({"inputs": inputs})
    return self.model.start(rows, positions, encoded, self.window)

  def _step(self, position: mtf.Tensor, ids: mtf.Tensor, held: Any) -> tuple[mtf.Tensor, Any]:
    return self.model.step(position, ids, held)

  def __call__(self, prompts: Iterable[Sequence[int]], number: int | None = None, seed: int = 0
               ) -> list[Written]:
    """Returns what was written after each prompt.

    Draws follow the seed and the place of a prompt among the others.

    Args:
      prompts: the ids of each.
      number: the most ids after each, if fewer than the decoder's.
      seed: another seed, other draws.

    Raises:
      PromptError: a prompt is empty, too long, or has ids that the model does not have.
      PlanError: more ids are asked for than the decoder was made for.
    """
    return [written for some in self.each(prompts, number, seed) for written in some]

  def each(self, prompts: Iterable[Sequence[int]], number: int | None = None, seed: int = 0
           ) -> Iterator[list[Written]]:
    """Yields what `__call__` returns, batch by batch."""
    number = self.number if number is None else number
    if not 1 <= number <= self.number:
      raise mtf.PlanError(f"{number} ids cannot be written by a decoder made for 1 to "
                          f"{self.number}.\n  Make it for more: number={number}.")
    fitting = [self._fitting(i, [int(x) for x in prompt]) for i, prompt in enumerate(prompts)]
    for first in range(0, len(fitting), self.batch):
      yield self._written(fitting[first:first + self.batch], number, seed, first // self.batch)

  def _written(self, prompts: Sequence[list[int]], number: int, seed: int, turn: int
               ) -> list[Written]:
    """Returns what is written after no more prompts than a batch has."""
    filled = [*prompts, *[prompts[-1]] * (self.batch - len(prompts))]
    before = [] if self.begin is None else [self.begin]
    known = [before if self.encodes else before + prompt for prompt in filled]
    texts = np.zeros((self.batch, self.length), np.int32)
    for row, ids in zip(texts, known):
      row[:len(ids)], row[len(ids):len(ids) + number] = ids, -1
    inputs = np.zeros((self.batch, self._even(self.prompt_length, "inputs_length", "length")),
                      np.int32)
    for row, ids in zip(inputs, filled):
      row[:len(ids)] = ids[:len(row)]
    until = max(map(len, known)) + number
    found, scores = self._run(texts, inputs if self.encodes else None, np.int32(until),
                              np.int32(seed), np.int32(turn))
    return [Written(self._until_end(row[len(ids):len(ids) + number].tolist()), float(score))
            for row, ids, score, _ in zip(found.numpy(), known, scores.numpy(), prompts)]

  def _until_end(self, ids: list[int]) -> list[int]:
    end = self._settings["end"]
    ends = () if end is None else end if isinstance(end, Sequence) else (end,)
    return ids[:next((i for i, x in enumerate(ids) if x in ends), len(ids))]

  def _fitting(self, number: int, ids: list[int]) -> list[int]:
    """Returns a prompt as it is read. Raises PromptError."""
    if not ids and (self.begin is None or self.encodes):
      raise PromptError(f"prompt {number + 1} is empty, and there is nothing to begin with.\n"
                        "  Give it at least one id.")
    wrong = next((x for x in ids if not 0 <= x < self.model.architecture.vocab), None)
    if wrong is not None:
      raise PromptError(f"prompt {number + 1} has the id {wrong}; the model's are 0 to "
                        f"{self.model.architecture.vocab - 1}.\n  Was it made by the vocabulary "
                        "that the model was trained with?")
    if len(ids) > self.prompt_length and not self.cut:
      raise PromptError(f"prompt {number + 1} has {len(ids)} ids, and there is room for "
                        f"{self.prompt_length}.\n  Make room: prompt_length={len(ids)}; or let it "
                        "be cut: cut=True.")
    return ids[:self.prompt_length] if self.encodes else ids[-self.prompt_length:]


@gin.configurable
def sample(model: LanguageModel | EncoderDecoder, length: int, prompt: str = "def ",
           number: int = 200, temperature: float = 0.7, seed: int = 0,
           vocabulary: Vocabulary | None = None, begin: int | None = None) -> str:
  """Returns `prompt` and what a language model goes on with; or what an encoder-decoder answers.

  Args:
    model: what writes.
    length: how many of the last ids it sees.
    prompt: what the text begins with.
    number: the most ids that are written; no more than there are learned positions.
    temperature: below 1 likely ids become likelier; 0 always takes the likeliest.
    seed: another seed, another text.
    vocabulary: what ids stand for; bytes, if none is given.
    begin: the id before every text; see `Decoder`.
  """
  vocabulary = vocabulary or RawBytes()
  ids = vocabulary.encode(prompt).tolist()
  if model.architecture.positions == "learned":
    number = max(min(number, model.architecture.max_length - len(ids) - 1), 1)
  decoder = Decoder(model, number, max(len(ids), 1), batch=1, end=vocabulary.end, begin=begin,
                    temperature=temperature, window=length, vocab=vocabulary.size)
  (written,) = decoder([ids], seed=seed)
  return vocabulary.decode(np.array([*([] if decoder.encodes else ids), *written.ids], np.int32))
