"""Embeddings: from token ids to the residual stream of a Transformer, and back to logits.

Example:

    embeddings = Embeddings(mesh, architecture)
    x = embeddings(tokens, positions)              # [batch, length, d_model]
    logits = embeddings.attend(x)                  # tied weights: [batch, length, vocab]
"""

from __future__ import annotations

import math

import meshtf as mtf
from transformer.models.architecture import Architecture

# The dimension of token embeddings, if `Architecture.embedding_size` differs from d_model, as
# in ALBERT; otherwise their dimension is d_model.
_EMBEDDING = "d_embedding"


class Embeddings(mtf.Module):
    """Embeddings of tokens, plus embeddings of positions and token types if the
    architecture has them.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes, and the kind of positions: `Architecture.positions`.

    Attributes:
      token_embedding: the embedding of token ids, whose table `attend` shares.
      projection: the projection from d_embedding to d_model; None: token embeddings have the
        dimension d_model.
      position_embedding: the embedding of positions; None: positions are not learned.
      type_embedding: the embedding of token types; None: the architecture has none.
      norm: the norm of the sum of the embeddings (post-norm); None: blocks normalize
        their inputs (pre-norm).
    """

    def __init__(self, mesh: mtf.Mesh, architecture: Architecture) -> None:
        super().__init__("embeddings")
        self.architecture = architecture
        d_model = architecture.dim("d_model")
        d_embedding = d_model
        if architecture.embedding_size:
            d_embedding = mtf.Dimension(_EMBEDDING, architecture.embedding_size)
        self.projection = None
        self.position_embedding = None
        self.type_embedding = None
        self.norm = None
        # Checkpoints name these variables without "embeddings/".
        with self.outer_scope():
            self.token_embedding = _make_embedding(
                mesh,
                architecture.dim("vocab"),
                d_embedding,
                stddev=0.5,
                name="embedding",
            )
            if architecture.embedding_size:
                self.projection = mtf.layers.Dense(
                    mesh,
                    d_embedding,
                    d_model,
                    use_bias=architecture.use_bias,
                    name="embedding_projection",
                )
            if architecture.positions == "learned":
                max_positions = mtf.Dimension("positions", architecture.max_length)
                self.position_embedding = _make_embedding(
                    mesh,
                    max_positions,
                    d_model,
                    stddev=0.1,
                    name="position_embedding",
                )
            if architecture.token_types:
                self.type_embedding = _make_embedding(
                    mesh,
                    architecture.dim("token_types"),
                    d_model,
                    stddev=0.1,
                    name="type_embedding",
                )
            if architecture.norm_place == "after":
                self.norm = architecture.make_norm(mesh, "embedding_norm")

    def __call__(
        self,
        tokens: mtf.Tensor,
        positions: mtf.Tensor,
        token_types: mtf.Tensor | None = None,
    ) -> mtf.Tensor:
        """Returns the residual stream before the first block, [batch, length, d_model].

        In decoding, there is no dimension `length`: [batch] -> [batch, d_model].

        Args:
          tokens: token ids, integers [batch, length].
          positions: the position of each token, integers [length] or [batch, length].
          token_types: the type of each token, integers [batch, length]; None: all are 0.

        Raises:
          ShapeError: there are more tokens in an example than learned positions.
        """
        architecture = self.architecture
        x = self.token_embedding(tokens)
        if self.projection is not None:
            x = self.projection(x)
        if self.position_embedding is not None:
            # In decoding there is no `length`, and the size of the empty shape is 1.
            length = tokens.shape.only(["length"]).size
            self.check_length(length)
            x = x + self.position_embedding(positions)
        elif architecture.positions == "sinusoidal":
            x = x + mtf.layers.sinusoids(positions, architecture.dim("d_model"))
        if self.type_embedding is not None:
            if token_types is None:
                token_types = mtf.zeros(tokens.mesh, tokens.shape, "int32")
            x = x + self.type_embedding(token_types)
        x = mtf.cast(x, architecture.dtype)
        if self.norm is None:
            return x
        return self.norm(x)

    def check_length(self, num_positions: int) -> None:
        """Raises ShapeError if there are fewer than `num_positions` learned positions."""
        max_length = self.architecture.max_length
        if self.position_embedding is not None and num_positions > max_length:
            raise mtf.ShapeError(
                f"{num_positions} tokens have more positions than the {max_length} learned "
                "ones.\n  Raise Architecture.max_length, or take shorter texts."
            )

    def attend(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns logits [batch, length, vocab]: the matmul of x [batch, length, d_model]
        with the embedding table (tied weights).
        """
        if self.architecture.scaled_logits:
            # With this, initial logits have the same variance for any d_model.
            x = x * (1 / math.sqrt(self.architecture.d_model))
        if self.projection is not None:
            # The transpose of the projection: from d_model back to d_embedding.
            kernel = mtf.cast(self.projection.kernel.tensor(), x.dtype)
            leading_dims = x.shape.without("d_model")
            embedding_dim = kernel.shape.only([_EMBEDDING])
            # Sums over d_model, the dimension that the result lacks.
            x = mtf.einsum([x, kernel], leading_dims + embedding_dim)
        return self.token_embedding.attend(x)


def mask_padded_vocab(logits: mtf.Tensor, architecture: Architecture) -> mtf.Tensor:
    """Returns logits [..., vocab], with a very negative number at ids that only pad the
    vocabulary to a multiple of `Architecture.vocab_multiple`.
    """
    if architecture.dim("vocab").size == architecture.vocab:
        return logits
    is_token = mtf.range(logits.mesh, architecture.dim("vocab")) < architecture.vocab
    return logits + mtf.cast(mtf.layers.mask_bias(is_token), logits.dtype)


def logits_layer(mesh: mtf.Mesh, architecture: Architecture) -> mtf.layers.Dense | None:
    """Returns the layer that computes logits [..., vocab] of x [..., d_model]; None if they are
    computed with the embedding table.
    """
    if architecture.tied:
        return None
    return mtf.layers.Dense(
        mesh,
        architecture.dim("d_model"),
        architecture.dim("vocab"),
        use_bias=False,
        name="logits",
    )


def _make_embedding(
    mesh: mtf.Mesh,
    vocab_dim: mtf.Dimension,
    output_dim: mtf.Dimension,
    stddev: float,
    name: str,
) -> mtf.layers.Embedding:
    """Returns an embedding whose table is initialized from a normal distribution with
    this standard deviation.
    """
    initializer = mtf.layers.initializers.normal(stddev)
    return mtf.layers.Embedding(
        mesh, vocab_dim, output_dim, initializer=initializer, name=name
    )
