"""The architecture of a Transformer: its sizes, and the kinds of norm, positions,
attention and so on.

    Architecture(d_model=512, d_ff=2048, heads=8, d_kv=64, blocks=6)        # rotary, RMS norm
    Architecture(norm="layer", positions="learned", use_bias=True, tied=True, scaled_logits=False)

In gin, `EncoderDecoder.decoder = @decoder/Architecture()` gives the decoder another one,
with settings such as `decoder/Architecture.blocks = 2`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import gin

import meshtf as mtf
from transformer.experts.moe_layer import MixtureOfExperts

# Settings with a fixed set of values -> these values.
_KINDS = {
    "norm": ("rms", "layer"),
    "norm_place": ("before", "after"),
    "positions": ("rotary", "learned", "sinusoidal", "relative", "sloped", "none"),
    "attention": (
        "full",
        "blockwise",
        "local",
        "ring",
        "all_to_all",
        "context_parallel",
    ),
    "recompute": (False, True, "attention", "feed_forward"),
    "dtype": ("float32", "bfloat16"),
}
# Integer settings -> the minimum of their value.
_MIN_VALUES = {
    "vocab": 1,
    "d_model": 1,
    "d_ff": 1,
    "heads": 1,
    "d_kv": 1,
    "blocks": 1,
    "kv_heads": 1,
    "max_length": 1,
    "buckets": 1,
    "max_distance": 1,
    "vocab_multiple": 1,
    "embedding_size": 1,
    "block_length": 1,
    "window": 1,
    "token_types": 0,
    "moe_every": 0,
}
_OPTIONAL_INTEGERS = (
    "kv_heads",
    "embedding_size",
    "window",
)  # integer settings that may be None


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Architecture:
    """The sizes of a Transformer, and the kinds of its layers.

    Attributes:
      vocab: the size of the vocabulary.
      vocab_multiple: an integer; the dimension `vocab` is padded to a multiple of it, so
        that it can be sharded. The ids that pad it are never predicted.
      d_model: the size of the residual stream that runs through all blocks.
      d_ff: the hidden size of feed-forward sublayers.
      heads: the count of attention heads.
      d_kv: the size of a head.
      blocks: the count of blocks.
      kv_heads: the count of heads of keys and values (grouped-query attention), each
        shared by heads / kv_heads query heads; None: `heads`. In layouts the rule
        kv_heads:model then replaces heads:model.
      activation: the activation of feed-forward sublayers, such as "gelu", "relu" or
        "swiglu": see `mtf.layers.FeedForward`.
      dropout: the fraction of elements that is dropped in training.
      norm: "rms" or "layer".
      norm_place: "before" (pre-norm: a norm before each sublayer, and one after the last
        block), or "after" (post-norm: a norm of the sum of each sublayer's output and
        the residual stream, and one after the embedding).
      epsilon: the number that norms add to the variance, to avoid a division by 0.
      use_bias: whether dense layers and norms (of kind "layer") add a bias.
      qkv_bias: whether the dense layers to queries, keys and values add a bias, if `use_bias`
        is False.
      positions: "rotary", "learned", "sinusoidal", "relative" (T5), "sloped" (ALiBi) or
        "none".
      max_length: the count of learned positions.
      rope_theta: the base of rotary positions; the longest period is about 2 * pi *
        rope_theta positions.
      rope_scaling: four numbers that extend rotary positions to longer texts, as in Llama 3.1
        (see `mtf.layers.RotaryScaling`): factor, low_frequency, high_frequency, length;
        None: positions are not scaled.
      buckets: the count of buckets of distances, for relative positions.
      max_distance: the distance from which on all distances share a bucket, for relative
        positions.
      token_types: the count of token types, each with a learned embedding; 0: none.
      embedding_size: the size of token embeddings, which a dense layer projects to
        d_model; None: d_model, without a projection.
      tied: whether logits are computed with the embedding table, instead of a separate
        kernel.
      scaled_logits: whether tied logits are divided by sqrt(d_model).
      scaled_attention: whether scores are divided by sqrt(d_kv).
      attention: "full"; "blockwise": the same results in linear memory; "local"; or one for
        long texts, whose `length` a layout shards, with the same results as "full": "ring",
        where keys and values go around, "all_to_all", where heads are sharded instead, and
        "context_parallel", the one of these two in which a device receives fewer bytes.
      block_length: the count of queries in a block of blockwise attention and of
        "all_to_all"; the count of tokens in a chunk of ring attention; the radius of local
        attention.
      window: the count of the last positions that a token attends to where attention is causal,
        its own included (Mistral); None: all, or those within the radius of local attention.
      scanned: whether the block is traced once and run in a loop, with the variables of
        all blocks stacked along `layers` (as `jax.lax.scan`).
      recompute: whether the backward pass recomputes the activations of each block from
        its input; "attention" or "feed_forward": those of these sublayers, and of others all but
        the outputs of matrix products.
      dtype: the dtype of activations, "float32" or "bfloat16"; variables, norms, softmax
        and losses stay float32.
      moe_every: the blocks moe_every, 2 * moe_every, ... (counted from 1) have a mixture
        of experts as feed-forward sublayer; 0: no block has.
      mixture: the class of the mixtures of experts; each expert has hidden size d_ff.

    Raises:
      ParseError: an unknown kind, or a value that is not a number or out of its range.
      ShapeError: `kv_heads` does not divide `heads`.
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
    qkv_bias: bool = False
    positions: str = "rotary"
    max_length: int = 512
    rope_theta: float = 10000.0
    rope_scaling: tuple[float, float, float, float] | None = None
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
    window: int | None = None
    scanned: bool = False
    recompute: bool | str = False
    dtype: str = "float32"
    moe_every: int = 0
    mixture: Callable[..., MixtureOfExperts] = MixtureOfExperts

    def __post_init__(self) -> None:
        self._check_integers()
        self._check_fractions()
        self._check_kinds()
        self._check_rope_scaling()
        kv_heads = self.kv_heads or self.heads
        if self.heads % kv_heads:
            raise mtf.ShapeError(
                f"{self.heads} heads cannot share {kv_heads} heads of keys and "
                "values equally.\n  Take an Architecture.kv_heads that divides heads."
            )
        self._check_combinations()

    def stored_sublayers(self, has_cross_attention: bool) -> list[str]:
        """Returns the names of the sublayers whose products `recompute` leaves out."""
        names = (
            ["attention", "cross_attention"] if has_cross_attention else ["attention"]
        )
        return {"attention": ["feed_forward"], "feed_forward": names}.get(
            str(self.recompute), []
        )

    def _check_kinds(self) -> None:
        """Raises ParseError for a kind that does not exist."""
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if value not in kinds:
                raise mtf.ParseError(
                    f"Architecture.{name} is {value!r}.\n"
                    f"  Take one of {', '.join(map(str, kinds))}."
                )

    def _check_combinations(self) -> None:
        """Raises ParseError for settings that cannot be combined."""
        if self.attention == "local" and self.positions in ("relative", "sloped"):
            raise mtf.ParseError(
                f"local attention has no {self.positions} positions.\n  Take "
                'Architecture.positions = "rotary", or blockwise attention.'
            )
        max_window = self.block_length + 1
        if self.attention == "local" and (self.window or 1) > max_window:
            raise mtf.ParseError(
                f"Architecture.window is {self.window}: local attention attends to at most "
                f"{max_window} tokens.\n  Take an Architecture.block_length of at least "
                f"{self.window}, or blockwise attention."
            )
        if self.may_use_ring and self.block_length % 2:
            raise mtf.ParseError(
                f"Architecture.block_length is {self.block_length}: chunks of ring "
                "attention have two halves.\n  Take an even one."
            )
        if self.scanned and self.moe_every > 1:
            raise mtf.ParseError(
                "scanned blocks are identical: all have a mixture of experts, or none "
                f"has.\n  Take Architecture.moe_every = 1, not {self.moe_every}."
            )
        if self.moe_every > self.blocks:
            raise mtf.ParseError(
                f"Architecture.moe_every is {self.moe_every}, and there are "
                f"{self.blocks} blocks: none of them would have a mixture of "
                f"experts.\n  Take 1 to {self.blocks}, or 0 for none."
            )

    def _check_integers(self) -> None:
        """Raises ParseError for a size that is no integer, or too small."""
        for name, minimum in _MIN_VALUES.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL_INTEGERS:
                continue
            # In Python a bool is an integer, too.
            is_integer = isinstance(value, Integral) and not isinstance(value, bool)
            if not is_integer or value < minimum:
                raise mtf.ParseError(
                    f"Architecture.{name} is {value!r}: it must be an integer, at least "
                    f"{minimum}."
                )

    def _check_fractions(self) -> None:
        """Raises ParseError for a fraction that is not in [0, 1)."""
        for name in ("dropout", "epsilon"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < 1:
                raise mtf.ParseError(
                    f"Architecture.{name} is {value!r}: it must be at least 0, and "
                    "less than 1."
                )

    def _check_rope_scaling(self) -> None:
        """Raises ParseError for a scaling of rotary positions that is not four numbers."""
        scaling = self.rope_scaling
        if scaling is None:
            return
        if len(scaling) != 4 or not all(isinstance(x, Real) for x in scaling):
            raise mtf.ParseError(
                f"Architecture.rope_scaling is {scaling!r}.\n  Take four numbers: factor, "
                "low_frequency, high_frequency, length; those of Llama 3.1 are "
                "(8.0, 1.0, 4.0, 8192)."
            )

    def __repr__(self) -> str:
        """The sizes, and the settings that differ from their defaults."""
        sizes = ("vocab", "d_model", "d_ff", "heads", "d_kv", "blocks")
        settings = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_changed = value != field.default and field.name != "mixture"
            if field.name in sizes or is_changed:
                settings.append(f"{field.name}={value!r}")
        return f"Architecture({', '.join(settings)})"

    def dim(self, name: str) -> mtf.Dimension:
        """Returns the dimension of a size by the name of its setting: "d_model" is
        `d_model:128`. The size of `vocab` is rounded up to a multiple of
        `vocab_multiple`.
        """
        size = getattr(self, name)
        if name == "vocab":
            num_padding = -size % self.vocab_multiple
            size += num_padding
        return mtf.Dimension(name, size)

    @property
    def may_use_ring(self) -> bool:
        """Whether attention goes around a ring, or may, as its layout says."""
        return self.attention in ("ring", "context_parallel")

    @property
    def head_dims(self) -> mtf.Shape:
        """The dimensions of query heads: [heads]; for grouped-query attention [kv_heads,
        heads], where `heads` counts the query heads that share one head of keys and
        values.
        """
        # None: a head of keys and values for each query head. 1: all query heads share one.
        kv_heads = self.kv_heads
        if kv_heads is None or kv_heads in (1, self.heads):
            return mtf.Shape([self.dim("heads")])
        return mtf.Shape([("kv_heads", kv_heads), ("heads", self.heads // kv_heads)])

    @property
    def kv_head_dims(self) -> mtf.Shape:
        """The dimensions of heads of keys and values, a subset of `head_dims`: empty for
        multi-query attention, where all query heads share one.
        """
        if self.kv_heads in (None, self.heads):
            return self.head_dims
        return self.head_dims.only(["kv_heads"])

    def make_norm(
        self, mesh: mtf.Mesh, name: str, dim: mtf.Dimension | None = None
    ) -> Any:
        """Returns a norm of the architecture's kind over `dim`; None: d_model."""
        if dim is None:
            dim = self.dim("d_model")
        if self.norm == "rms":
            return mtf.layers.RMSNorm(mesh, dim, epsilon=self.epsilon, name=name)
        return mtf.layers.LayerNorm(
            mesh, dim, epsilon=self.epsilon, use_bias=self.use_bias, name=name
        )


@gin.configurable
def bert_architecture(**sizes: Any) -> Architecture:
    """Returns the architecture of BERT-base (Devlin et al., 2018), in which `sizes` replace
    settings, such as `bert_architecture(blocks=24)`.
    """
    base = Architecture(
        vocab=30522,
        d_model=768,
        d_ff=3072,
        heads=12,
        d_kv=64,
        blocks=12,
        activation="gelu_exact",
        dropout=0.1,
        norm="layer",
        norm_place="after",
        epsilon=1e-12,
        use_bias=True,
        positions="learned",
        max_length=512,
        token_types=2,
        tied=True,
        scaled_logits=False,
    )
    return dataclasses.replace(base, **sizes)
