"""The names, the mask and the dropout of attention, as its kernels have them.

AttentionDims("length", "kv_length", "key", q=("batch", "heads", "length", "key"), ...).scores
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.ops.random.mask_words import mask_of

Names = tuple[str, ...]


class Mask(NamedTuple):
    """Which keys each query attends to.

    Attributes:
      causal: whether query i attends to keys from 0 to i.
      window: to how many of the last of these it attends; 0: all.
    """

    causal: bool
    window: int


class AttentionDims(NamedTuple):
    """The names of the dimensions of attention.

    Attributes:
      length: the positions of queries.
      kv_length: the positions of keys and values.
      key: the dimension that the product of q and k sums over.
      q, k, v, bias: the dimensions of the inputs; bias: None: there is none.
    """

    length: str
    kv_length: str
    key: str
    q: Names
    k: Names
    v: Names
    bias: Names | None

    @property
    def queries(self) -> Names:
        """The dimensions of q but `key`."""
        return tuple(name for name in self.q if name != self.key)

    @property
    def scores(self) -> Names:
        """The dimensions of the scores."""
        return (*self.queries, self.kv_length)

    @property
    def batch(self) -> Names:
        """The dimensions that all of q, k and v have, but for the last one."""
        return self._of_keys[:-1]

    @property
    def shared_heads(self) -> Names:
        """The last of these dimensions: the heads that keys and values have."""
        return self._of_keys[-1:]

    @property
    def further_heads(self) -> Names:
        """The heads that share keys and values."""
        heads = (name for name in self.queries if name != self.length)
        return tuple(name for name in heads if name not in self.k)

    @property
    def _of_keys(self) -> Names:
        return tuple(name for name in self.queries if name in self.k)

    @property
    def value(self) -> str:
        """The dimension of the values that the result has."""
        (name,) = (name for name in self.v if name not in self.scores)
        return name

    @property
    def y(self) -> Names:
        """The dimensions of the result."""
        return (*self.queries, self.value)

    @property
    def value_names(self) -> Names:
        """The dimensions of v, the value under a name that no other tensor has."""
        return tuple("." if name == self.value else name for name in self.v)

    @property
    def y_names(self) -> Names:
        """The dimensions of the result, the value under a name that no other tensor has."""
        return (*self.queries, ".")

    @property
    def tensors(self) -> tuple[Names, ...]:
        """The dimensions of the inputs, the value of v under a name of its own."""
        inputs = (self.q, self.k, self.value_names)
        return inputs if self.bias is None else (*inputs, self.bias)

    def sizes(self, q: Any, k: Any, v: Any) -> dict[str, int]:
        """Returns the size of each dimension, given the inputs as tensors."""
        pairs = [(self.q, q), (self.k, k), (self.value_names, v)]
        return {
            name: int(size) for names, x in pairs for name, size in zip(names, x.shape)
        }


class WeightDropout(NamedTuple):
    """Dropout of the weights.

    Attributes:
      rate: the fraction of weights that becomes zero.
      words: the random words of the mask by dimension: see `random.mask_words`.
    """

    rate: float
    words: dict[str, tuple[Any, Any]]

    def dropped(self, x: Any, names: Names) -> Any:
        """Returns x [*names] with elements dropped, and the others divided by 1 - rate."""
        mask = mask_of(self.words, self.rate)
        mask = tf.reshape(
            mask, [size if n in self.words else 1 for n, size in zip(names, x.shape)]
        )
        scaled = x * tf.constant(1 / (1 - self.rate), x.dtype)
        return tf.where(mask, scaled, tf.zeros([], x.dtype))


class Result(NamedTuple):
    """What attention has computed, and the cotangent of y.

    Attributes:
      y: the result.
      log_sums: the logarithms of the sums of exponentials of scores.
      dy: the cotangent of y.
    """

    y: Any
    log_sums: Any
    dy: Any
