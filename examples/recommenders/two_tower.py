"""Retrieval by two towers: which of all items does a user click next?

One tower makes a vector of a user and of the items that the user has clicked, the other one a
vector of an item; inner products are scores. The table of items serves both. In training, the
items of a batch are each other's negatives (in-batch softmax), and scores are corrected for how
often items are in batches (Yi et al., 2019, "Sampling-bias-corrected neural modeling for large
corpus item recommendations"). `two_tower.gin` has the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gin
import numpy as np

import meshtf as mtf
from examples.recommenders.click_history import ClickHistory, Example
from transformer.cli import gin_configurables

# `gin_configurables` is imported to register meshtf's classes with gin.
__all__ = ["Scores", "TwoTower", "gin_configurables", "train"]
_HELD_OUT = 10**6  # the index of the held-out batch
_HELD_OUT_SIZE = 4096


class TwoTower(mtf.Module):
    """Vectors of users, and of items.

    Args:
      mesh: the mesh of the variables.
      users: the number of users.
      items: the number of items.
      width: the size of each vector.
      hidden: the size of the hidden layer of each tower.
    """

    def __init__(
        self, mesh: mtf.Mesh, users: int, items: int, width: int, hidden: int
    ) -> None:
        super().__init__("two_tower")
        self.mesh = mesh
        d = mtf.Dimension("d", width)
        dense = mtf.layers.Dense
        with self.scope():
            self.embed = mtf.layers.EmbeddingTables(
                mesh,
                tables={"users": f"users:{users}; {d}", "items": f"items:{items}; {d}"},
                features={
                    "user": "users",
                    "item": "items",
                    "earlier": mtf.layers.Bag("items", "slot", "mean"),
                },
            )
            self.user_1 = dense(
                mesh, f"feature:2; {d}", f"hidden:{hidden}", name="user_1"
            )
            self.user_2 = dense(mesh, f"hidden:{hidden}", d, name="user_2")
            self.item_1 = dense(mesh, d, f"hidden:{hidden}", name="item_1")
            self.item_2 = dense(mesh, f"hidden:{hidden}", d, name="item_2")

    def users(self, users: mtf.Tensor, earlier: mtf.Tensor) -> mtf.Tensor:
        """Returns vectors [batch, d] of users [batch] and of items [batch, slot]."""
        vectors = self.embed({"user": users, "earlier": earlier})
        x = mtf.stack([vectors["user"], vectors["earlier"]], "feature")
        return self.user_2(mtf.relu(self.user_1(x)))

    def items(self, items: mtf.Tensor) -> mtf.Tensor:
        """Returns vectors [..., d] of items [...]."""
        x = self.embed({"item": items})["item"]
        return self.item_2(mtf.relu(self.item_1(x)))

    def loss(
        self,
        users: mtf.Tensor,
        earlier: mtf.Tensor,
        items: mtf.Tensor,
        log_frequencies: mtf.Tensor,
    ) -> mtf.Tensor:
        """Returns the cross entropy of the items among those of the batch, a scalar.

        Args:
          users: the users, [batch].
          earlier: the items that they have clicked, [batch, slot].
          items: the item that each clicks next, [batch].
          log_frequencies: the logarithm of the share of these items in all clicks, [batch].
        """
        candidates = mtf.rename(self.items(items), "batch", "candidate")
        logits = mtf.einsum(
            [self.users(users, earlier), candidates], "batch; candidate"
        )
        logits = logits - mtf.rename(log_frequencies, "batch", "candidate")
        # A batch may have an item several times, and each time it is the right one.
        is_right = mtf.outer(items, mtf.rename(items, "batch", "candidate"), mtf.equal)
        targets = mtf.cast(is_right, "float32")
        targets = targets / mtf.reduce_sum(targets, "candidate")
        return mtf.layers.softmax_cross_entropy(logits, targets, "candidate")


def make_train_step(
    model: TwoTower, optimizer: mtf.optimizers.Optimizer
) -> Callable[..., mtf.Tensor]:
    """Returns a function of users [batch], their earlier items [batch, slot], the next ones
    [batch], the logarithm of their frequencies [batch], and the step.
    """
    variables = model.trainable_variables

    @mtf.function(
        mesh=model.mesh,
        users="batch",
        earlier="batch; slot",
        items="batch",
        log_frequencies="batch",
        step="",
    )
    def train_step(
        users: mtf.Tensor,
        earlier: mtf.Tensor,
        items: mtf.Tensor,
        log_frequencies: mtf.Tensor,
        step: mtf.Tensor,
    ) -> mtf.Tensor:
        """Updates the model by one batch, and returns the loss, a scalar."""
        loss = model.loss(users, earlier, items, log_frequencies)
        optimizer.apply_gradients(mtf.gradients([loss], variables), variables, step)
        return loss

    return train_step


def retrieved(model: TwoTower, batch: Example, k: int) -> np.ndarray:
    """Returns the k items with the best scores of each user, [batch, k]."""
    num_items = model.embed.tables["items"].shape["items"]

    @mtf.function(mesh=model.mesh, users="batch", earlier="batch; slot")
    def retrieve(users: mtf.Tensor, earlier: mtf.Tensor) -> mtf.Tensor:
        all_items = model.items(mtf.range(model.mesh, f"candidate:{num_items}"))
        user_vectors = model.users(users, earlier)
        scores = mtf.einsum([user_vectors, all_items], "batch; candidate")
        _, best_items = mtf.top_k(scores, "candidate", f"k:{k}")
        return best_items

    return retrieve(batch.users, batch.earlier).numpy()


class Scores(NamedTuple):
    """The results of training.

    Attributes:
      losses: the loss of each step.
      recall: the share of held-out clicks whose item is among the k with the best scores.
      popular_recall: the share whose item is among the k items with most clicks.
      best_recall: the share for the planted probabilities.
    """

    losses: list[float]
    recall: float
    popular_recall: float
    best_recall: float


@gin.configurable("train_two_tower")
def train(
    mesh: mtf.Mesh,
    optimizer: Callable[..., mtf.optimizers.Optimizer] = mtf.optimizers.Adagrad,
    steps: int = 300,
    batch_size: int = 256,
    users: int = 2000,
    items: int = 1000,
    groups: int = 20,
    width: int = 16,
    hidden: int = 32,
    k: int = 10,
    seed: int = 0,
) -> Scores:
    """Trains a model on generated clicks, and measures it on others.

    Args:
      mesh: the mesh.
      optimizer: the class of the optimizer: a function of variables.
      steps: the number of steps.
      batch_size: the number of examples of a step.
      users: the number of users.
      items: the number of items.
      groups: the number of groups of users and items.
      width: the size of the vectors.
      hidden: the size of hidden layers.
      k: how many items are retrieved for a user.
      seed: the seed of the clicks.
    """
    history = ClickHistory(users, items, groups, seed)
    model = TwoTower(mesh, users, items, width, hidden)
    train_step = make_train_step(model, optimizer(model.trainable_variables))
    log_frequencies = np.log(history.probabilities).astype("float32")
    losses = []
    for step in range(steps):
        batch = history.batch(step, batch_size)
        loss = train_step(*batch, log_frequencies[batch.items], np.int32(step))
        losses.append(float(loss))
    held_out = history.batch(_HELD_OUT, _HELD_OUT_SIZE)
    best_items = retrieved(model, held_out, k)
    return Scores(
        losses,
        recall=float((best_items == held_out.items[:, None]).any(axis=1).mean()),
        popular_recall=history.popular_recall(k),
        best_recall=history.best_recall(k),
    )
