"""DLRM (Naumov et al., 2019, arXiv 1906.00091): will a click follow?

Layers make a vector of the counts, tables one of each id; the inner products of all pairs of
vectors are the input of further layers, whose output is the log-odds of a click. `dlrm.gin` has
the settings, among them the layout: which tables are sharded is told by names of dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gin
import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

import meshtf as mtf
from examples.recommenders.click_log import (
    NUM_COUNTS,
    TABLE_SIZES,
    ClickLog,
    Clicks,
    column,
)
from transformer.cli import gin_configurables

# `gin_configurables` is imported to register meshtf's classes with gin.
__all__ = ["Dlrm", "Scores", "gin_configurables", "train"]
_LARGE_TABLE = 1000  # from so many ids on, the dimension of ids is "vocab"
_HELD_OUT = 10**6  # the index of the held-out batch
_HELD_OUT_SIZE = 8192


class Dlrm(mtf.Module):
    """counts [batch, count], ids [batch] of each column -> log-odds [batch].

    Args:
      mesh: the mesh of the variables.
      sizes: the number of different ids of each column.
      width: the size of each vector.
      hidden: the size of hidden layers.
    """

    def __init__(
        self, mesh: mtf.Mesh, sizes: tuple[int, ...], width: int, hidden: int
    ) -> None:
        super().__init__("dlrm")
        self.mesh = mesh
        d = mtf.Dimension("d", width)
        self.pairs = f"vector:{len(sizes) + 1}; other:{len(sizes) + 1}"
        with self.scope():
            # Small tables have another name of their dimension, so that a layout can leave
            # them replicated.
            self.embed = mtf.layers.EmbeddingTables(
                mesh,
                tables={
                    column(i): f"{'vocab' if n >= _LARGE_TABLE else 'few'}:{n}; {d}"
                    for i, n in enumerate(sizes)
                },
            )
            self.bottom_1 = mtf.layers.Dense(
                mesh, f"count:{NUM_COUNTS}", f"bottom:{hidden}", name="bottom_1"
            )
            self.bottom_2 = mtf.layers.Dense(
                mesh, f"bottom:{hidden}", d, name="bottom_2"
            )
            self.of_counts = mtf.layers.Dense(
                mesh, d, f"top:{hidden}", name="of_counts"
            )
            self.of_pairs = mtf.layers.Dense(
                mesh, self.pairs, f"top:{hidden}", use_bias=False, name="of_pairs"
            )
            self.output = mtf.layers.Dense(mesh, f"top:{hidden}", "", name="output")

    def __call__(self, counts: mtf.Tensor, ids: dict[str, mtf.Tensor]) -> mtf.Tensor:
        x = mtf.relu(self.bottom_2(mtf.relu(self.bottom_1(counts))))
        vectors = mtf.stack([x, *self.embed(ids).values()], "vector")
        renamed = mtf.rename(vectors, "vector", "other")
        products = mtf.einsum([vectors, renamed], "batch; vector; other")
        # Each pair once, and no vector with itself.
        vector_dim, other_dim = mtf.Shape(self.pairs)
        is_pair = mtf.outer(
            mtf.range(x.mesh, vector_dim), mtf.range(x.mesh, other_dim), mtf.greater
        )
        pairs = mtf.where(is_pair, products, 0.0)
        return self.output(mtf.relu(self.of_counts(x) + self.of_pairs(pairs)))


def make_train_step(
    model: Dlrm, optimizer: mtf.optimizers.Optimizer
) -> Callable[..., mtf.Tensor]:
    """Returns a function of counts [batch, count], ids [batch] of each column, clicks [batch] and
    the step.
    """
    variables = model.trainable_variables
    id_names = dict.fromkeys(model.embed.features, "batch")

    @mtf.function(
        mesh=model.mesh, counts="batch; count", ids=id_names, clicks="batch", step=""
    )
    def train_step(
        counts: mtf.Tensor,
        ids: dict[str, mtf.Tensor],
        clicks: mtf.Tensor,
        step: mtf.Tensor,
    ) -> mtf.Tensor:
        """Updates the model by one batch, and returns the mean loss, a scalar."""
        loss = mtf.layers.sigmoid_cross_entropy(model(counts, ids), clicks)
        optimizer.apply_gradients(mtf.gradients([loss], variables), variables, step)
        return loss

    return train_step


def predicted_clicks(model: Dlrm, batch: Clicks) -> np.ndarray:
    """Returns the probability of a click, [batch]."""
    id_names = dict.fromkeys(model.embed.features, "batch")

    @mtf.function(mesh=model.mesh, counts="batch; count", ids=id_names)
    def predict(counts: mtf.Tensor, ids: dict[str, mtf.Tensor]) -> mtf.Tensor:
        return mtf.sigmoid(model(counts, ids))

    return predict(batch.counts, batch.ids).numpy()


class Scores(NamedTuple):
    """The results of training.

    Attributes:
      losses: the loss of each step.
      auc: the area under the ROC curve on held-out clicks.
      log_loss: the mean cross entropy on them, in nats.
      best_auc: the area for the planted probabilities.
      best_log_loss: their cross entropy.
    """

    losses: list[float]
    auc: float
    log_loss: float
    best_auc: float
    best_log_loss: float


@gin.configurable("train_dlrm")
def train(
    mesh: mtf.Mesh,
    optimizer: Callable[..., mtf.optimizers.Optimizer] = mtf.optimizers.Adagrad,
    steps: int = 300,
    batch_size: int = 512,
    width: int = 16,
    hidden: int = 64,
    sizes: tuple[int, ...] = TABLE_SIZES,
    seed: int = 0,
) -> Scores:
    """Trains a model on generated clicks, and measures it on others.

    Args:
      mesh: the mesh.
      optimizer: the class of the optimizer: a function of variables.
      steps: the number of steps.
      batch_size: the number of examples of a step.
      width: the size of the vectors.
      hidden: the size of hidden layers.
      sizes: the number of different ids of each column.
      seed: the seed of the clicks.
    """
    log = ClickLog(sizes, seed)
    model = Dlrm(mesh, sizes, width, hidden)
    train_step = make_train_step(model, optimizer(model.trainable_variables))
    losses = []
    for step in range(steps):
        batch = log.batch(step, batch_size)
        loss = train_step(batch.counts, batch.ids, batch.clicks, np.int32(step))
        losses.append(float(loss))
    held_out = log.batch(_HELD_OUT, _HELD_OUT_SIZE)
    predicted = predicted_clicks(model, held_out)
    planted = 1 / (1 + np.exp(-held_out.log_odds))
    return Scores(
        losses,
        auc=roc_auc_score(held_out.clicks, predicted),
        log_loss=log_loss(held_out.clicks, predicted),
        best_auc=roc_auc_score(held_out.clicks, planted),
        best_log_loss=log_loss(held_out.clicks, planted),
    )
