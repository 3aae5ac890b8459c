"""Tokens to the stream that runs through blocks, and back to logits.

Example:

    embeddings = Embeddings(mesh, architecture)
    x = embeddings(tokens, places.positions)       # [batch length d_model]
    logits = embeddings.attend(x)                                # tied: [batch length vocab]
"""

from __future__ import annotations

import math

import meshtf as mtf
from transformer.models.architecture import Architecture

_FACTOR = "d_embedding"


class Embeddings(mtf.Module):
    """The rows of tokens, plus those of positions and of kinds of tokens where there
    are any.

    Args:
      mesh: where the variables lie.
      architecture: sizes and kinds.
    """

    def __init__(self, mesh: mtf.Mesh, architecture: Architecture) -> None:
        super().__init__("embeddings")
        a = self.architecture = architecture
        normal, width = mtf.layers.initializers.normal, a.dim("d_model")
        row = mtf.Dimension(_FACTOR, a.embedding_size) if a.embedding_size else width
        embed = mtf.layers.Embedding
        self.tokens = embed(mesh, a.dim("vocab"), row, normal(0.5), name="embedding")
        self.project = (
            mtf.layers.Dense(mesh, row, width, a.use_bias, name="embedding_projection")
            if a.embedding_size
            else None
        )
        self.positions = (
            embed(
                mesh,
                mtf.Dimension("positions", a.max_length),
                width,
                normal(0.1),
                name="position_embedding",
            )
            if a.positions == "learned"
            else None
        )
        self.types = (
            embed(mesh, a.dim("token_types"), width, normal(0.1), name="type_embedding")
            if a.token_types
            else None
        )
        self.norm = (
            a.make_norm(mesh, "embedding_norm") if a.norm_place == "after" else None
        )

    def __call__(
        self,
        tokens: mtf.Tensor,
        positions: mtf.Tensor,
        token_types: mtf.Tensor | None = None,
    ) -> mtf.Tensor:
        """Returns [batch length d_model], or without `length` for one position.

        Args:
          tokens: integers [batch length].
          positions: integers [length] or [batch length].
          token_types: integers [batch length]; None: all are of kind 0.

        Raises:
          ShapeError: there are more positions than learned ones.
        """
        a = self.architecture
        x = self.tokens(tokens)
        if self.project is not None:
            x = self.project(x)
        if self.positions is not None:
            self.refuse_length(tokens.shape.only(["length"]).size)
            x = x + self.positions(positions)
        elif a.positions == "sinusoidal":
            x = x + mtf.layers.sinusoids(positions, a.dim("d_model"))
        if self.types is not None:
            kinds = (
                mtf.zeros(tokens.mesh, tokens.shape, "int32")
                if token_types is None
                else token_types
            )
            x = x + self.types(kinds)
        x = mtf.cast(x, a.dtype)
        return x if self.norm is None else self.norm(x)

    def refuse_length(self, positions: int) -> None:
        """Refuses more positions than learned ones. Raises ShapeError."""
        if self.positions is not None and positions > self.architecture.max_length:
            raise mtf.ShapeError(
                f"rows of {positions} tokens have more positions than the "
                f"{self.architecture.max_length} learned ones.\n  Raise "
                "Architecture.max_length, or take shorter rows."
            )

    def attend(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns products [batch length vocab] of x[batch length d_model] with all
        rows of tokens.
        """
        if self.architecture.scaled_logits:
            x = x * (1 / math.sqrt(self.architecture.d_model))
        if self.project is not None:
            kernel = mtf.cast(self.project.kernel.tensor(), x.dtype)
            rest = x.shape.without("d_model")
            x = mtf.einsum([x, kernel], rest + kernel.shape.only([_FACTOR]))
        return self.tokens.attend(x)


def of_tokens(logits: mtf.Tensor, a: Architecture) -> mtf.Tensor:
    """Returns logits [... vocab], very negative for rows that only fill up the
    vocabulary.
    """
    if a.dim("vocab").size == a.vocab:
        return logits
    there = mtf.range(logits.mesh, a.dim("vocab")) < a.vocab
    return logits + mtf.cast(mtf.layers.mask_bias(there), logits.dtype)
