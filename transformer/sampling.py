"""Text from a language model, byte by byte.

    text = sample(model, length=128, prompt="def ", number=200)

The model sees a window of fixed length, so one compiled program draws all bytes. The window has no
batch: its one name is "length", and whatever the layout says of it holds here too.
"""

from __future__ import annotations

import gin
import numpy as np

import meshtf as mtf
from transformer.model import LanguageModel


@gin.configurable
def sample(model: LanguageModel, length: int, prompt: str = "def ", number: int = 200,
           temperature: float = 0.7, seed: int = 0) -> str:
  """Returns `prompt` and `number` bytes that the model goes on with.

  Args:
    model: what draws them.
    length: how many of the last bytes it sees.
    prompt: what the text begins with; at least one byte.
    number: how many bytes are drawn.
    temperature: below 1 likely bytes become likelier; 0 always takes the likeliest.
    seed: another seed, another text.
  """
  @mtf.function(mesh=model.mesh, tokens="length", place="", step="")
  def draw(tokens: mtf.Tensor, place: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
    logits = mtf.gather(model(tokens), place, "length")
    if not temperature:
      return mtf.argmax(logits, "vocab")
    with mtf.seed(seed, step):
      return mtf.categorical(logits, "vocab", temperature=temperature)

  text = list(prompt.encode())
  if not text:
    raise ValueError("a prompt must have at least one byte.")
  for step in range(number):
    seen = text[-length:]
    window = np.zeros(length, np.int32)
    window[:len(seen)] = seen
    text.append(int(draw(window, np.int32(len(seen) - 1), np.int32(step))))
  return bytes(text).decode(errors="replace")
