"""An embedding: a learned row for each number.

    embed = Embedding(mesh, "vocab:256", "d_model:512")
    x = embed(tokens)                 # int32 [batch length] -> [batch length d_model]
    logits = embed.attend(x)          # -> [batch length vocab], tied to the same table

With `vocab` cut, each device looks up its own rows, and the sum of what all found is the result.
"""

from __future__ import annotations

from meshtf.graph import Tensor
from meshtf.layers.initializers import Initializer, normal
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Shape, ShapeLike
from meshtf.ops.einsum import einsum
from meshtf.ops.indexing import gather
from meshtf.runtime.variables import Variable


class Embedding(Module):
  """Rows of a table by number.

  Args:
    mesh: where the table lies.
    vocab_dim: the numbers there are, such as "vocab:256".
    output_dim: what a row is made of, such as "d_model:512".
    initializer: default: normal with variance 1.
    name: the last part of the path of its variable.
  """

  def __init__(self, mesh: Mesh, vocab_dim: ShapeLike, output_dim: ShapeLike,
               initializer: Initializer | None = None, name: str = "embedding") -> None:
    super().__init__(name)
    self.vocab_dim, self.output_dim = Shape(vocab_dim), Shape(output_dim)
    with self.scope():
      self.table = Variable(mesh, self.vocab_dim + self.output_dim, initializer or normal(),
                            name="table")

  def __call__(self, ids: Tensor) -> Tensor:
    """Returns [..., output_dim] for integers ids[...]."""
    return gather(self.table, ids, self.vocab_dim.names[0])

  def attend(self, x: Tensor) -> Tensor:
    """Returns the product of x[..., output_dim] with every row: [..., vocab_dim]."""
    return einsum([x, self.table], x.shape.without(*self.output_dim.names) + self.vocab_dim)
