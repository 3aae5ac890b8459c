"""What a Transformer is made of: its sizes, and which kind of each part it has.

    Architecture(d_model=512, d_ff=2048, heads=8, d_kv=64, blocks=6)        # rotary, RMS norm
    Architecture(norm="layer", positions="learned", use_bias=True, tied=True, scaled_logits=False)

In gin each stack of blocks may have one of its own: `decoder/Architecture.blocks = 2`.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

import gin

import meshtf as mtf
from transformer.experts.moe_layer import MixtureOfExperts

_KINDS = {
    "norm": ("rms", "layer"),
    "norm_place": ("before", "after"),
    "positions": ("rotary", "learned", "sinusoidal", "relative", "sloped", "none"),
    "attention": ("full", "blockwise", "local"),
    "dtype": ("float32", "bfloat16"),
}
_AT_LEAST = {  # integers; those that may be None are listed below
    **dict.fromkeys(
        (
            "vocab",
            "d_model",
            "d_ff",
            "heads",
            "d_kv",
            "blocks",
            "kv_heads",
            "max_length",
            "buckets",
            "max_distance",
            "vocab_multiple",
            "embedding_size",
            "block_length",
        ),
        1,
    ),
    "token_types": 0,
    "moe_every": 0,
}
_MAY_BE_NONE = ("kv_heads", "embedding_size")


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Architecture:
    """The sizes of a Transformer, and the kinds of its parts.

    Attributes:
      vocab: how many different tokens there are.
      vocab_multiple: the dimension `vocab` is filled up to a multiple of this, so that
        a mesh can cut it; no such further token is ever predicted.
      d_model: the size of the stream that runs through all blocks.
      d_ff: the size inside of the feed-forward halves.
      heads: the number of attention heads.
      d_kv: the size of a head.
      blocks: the number of blocks.
      kv_heads: the heads that keys and values have, each shared by as many of the
        others; None: all.
      activation: of feed-forward halves, one of those that `mtf.layers.FeedForward`
        takes.
      dropout: the share that is dropped in training.
      norm: "rms" or "layer".
      norm_place: "before" each half and after the last one, or "after" the sum of each
        half and the stream, and after the embedding.
      epsilon: of norms.
      use_bias: whether products and norms (of kind "layer") add a bias.
      positions: "rotary", "learned", "sinusoidal", "relative" (T5), "sloped" (ALiBi) or
        "none".
      max_length: of learned positions.
      rotary_base: of rotary positions: the slowest pair turns once in about 2 * pi *
        this many.
      buckets: of relative positions.
      max_distance: of relative positions: from here on they share a bucket.
      token_types: how many kinds of tokens are told apart by an embedding of their own.
      embedding_size: of tokens, if it is not d_model: a product leads from one to the
        other.
      tied: whether logits are products with the embedding's rows, instead of a kernel
        of their own.
      scaled_logits: whether the stream is divided by sqrt(d_model) before it meets tied
        rows.
      scaled_attention: whether scores are divided by sqrt(d_kv).
      attention: "full", "blockwise" (the same numbers in linear memory), or "local".
      block_length: of the last two: positions that look at a time, or that a position
        sees behind.
      scanned: whether blocks are one traced body, whose variables have `layers` in
        front.
      recompute: whether the backward pass computes each block again, and keeps its
        input alone.
      dtype: of activations, "float32" or "bfloat16"; variables, norms, softmax and
        losses stay float32.
      moe_every: each so-many-th block has a mixture of experts as its feed-forward
        half; 0: none has.
      mixture: makes these mixtures, whose experts have hidden layers of d_ff numbers.

    Raises:
      ParseError: there is no such kind of a part, or a number is none or is out of its
        range.
      ShapeError: sizes that do not go together.
    """

    vocab: int = 256
    d_model: int = 128
    d_ff: int = 512
    heads: int = 4
    d_kv: int = 32
    blocks: int = 3
    kv_heads: int | None = None
    activation: str = "gelu"
    dropout: float = 0.0
    norm: str = "rms"
    norm_place: str = "before"
    epsilon: float = 1e-6
    use_bias: bool = False
    positions: str = "rotary"
    max_length: int = 512
    rotary_base: float = 10000.0
    buckets: int = 32
    max_distance: int = 128
    token_types: int = 0
    vocab_multiple: int = 1
    embedding_size: int | None = None
    tied: bool = False
    scaled_logits: bool = True
    scaled_attention: bool = True
    attention: str = "full"
    block_length: int = 128
    scanned: bool = False
    recompute: bool = False
    dtype: str = "float32"
    moe_every: int = 0
    mixture: Callable[..., MixtureOfExperts] = MixtureOfExperts

    def __post_init__(self) -> None:
        self._check_numbers()
        for part, known in _KINDS.items():
            if getattr(self, part) not in known:
                raise mtf.ParseError(
                    f"Architecture.{part} is {getattr(self, part)!r}.\n"
                    f"  Take one of {', '.join(known)}."
                )
        if self.heads % (self.kv_heads or 1):
            raise mtf.ShapeError(
                f"{self.heads} heads cannot share {self.kv_heads} heads of keys and "
                "values alike.\n  Take a number that divides them."
            )
        if self.attention == "local" and self.positions in ("relative", "sloped"):
            raise mtf.ParseError(
                f"local attention knows no {self.positions} positions.\n  Take "
                'Architecture.positions = "rotary", or blockwise attention.'
            )
        if self.scanned and self.moe_every > 1:
            raise mtf.ParseError(
                "scanned blocks are alike: of them all have a mixture of experts, or "
                f"none has.\n  Take Architecture.moe_every = 1, not {self.moe_every}."
            )

    def _check_numbers(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            if (
                not isinstance(value, numbers.Integral)
                or isinstance(value, bool)
                or value < least
            ):
                raise mtf.ParseError(
                    f"Architecture.{name} is {value!r}: it is an integer, and at least "
                    f"{least}."
                )
        for name, low, high in (("dropout", 0.0, 1.0), ("epsilon", 0.0, 1.0)):
            value = getattr(self, name)
            if not isinstance(value, numbers.Real) or not low <= float(value) < high:
                raise mtf.ParseError(
                    f"Architecture.{name} is {value!r}: it is a number from {low:g} up "
                    f"to {high:g}, and below."
                )
        if self.moe_every > self.blocks:
            raise mtf.ParseError(
                f"Architecture.moe_every is {self.moe_every}, and there are "
                f"{self.blocks} blocks: none "
                "of them would have a mixture of experts.\n"
                f"  Take 1 to {self.blocks}, or 0 for none."
            )

    def __repr__(self) -> str:
        """The sizes, and whatever is not as by default."""
        always = ("vocab", "d_model", "d_ff", "heads", "d_kv", "blocks")
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in dataclasses.fields(self)
            if f.name in always
            or getattr(self, f.name) != f.default
            and f.name != "mixture"
        ]
        return f"Architecture({', '.join(shown)})"

    def dim(self, name: str) -> mtf.Dimension:
        """Returns the dimension called like one of the sizes; that of `vocab` is filled
        up.
        """
        size = getattr(self, name)
        return mtf.Dimension(
            name, size + -size % self.vocab_multiple if name == "vocab" else size
        )

    @property
    def head_dims(self) -> mtf.Shape:
        """The heads of queries: `heads`, or `kv_heads` and the `heads` that share each
        of them.
        """
        shared = self.kv_heads or 1
        if shared in (1, self.heads):
            return mtf.Shape([self.dim("heads")])
        return mtf.Shape([("kv_heads", shared), ("heads", self.heads // shared)])

    @property
    def kv_head_dims(self) -> mtf.Shape:
        """Those of them that keys and values have, too."""
        if self.kv_heads in (None, self.heads):
            return self.head_dims
        return self.head_dims.only(["kv_heads"])

    def make_norm(
        self, mesh: mtf.Mesh, name: str, dim: mtf.Dimension | None = None
    ) -> Any:
        """Returns a norm over d_model, or another dimension."""
        over = dim or self.dim("d_model")
        if self.norm == "rms":
            return mtf.layers.RMSNorm(mesh, over, self.epsilon, name=name)
        return mtf.layers.LayerNorm(mesh, over, self.epsilon, self.use_bias, name=name)
