"""Retrieval by two towers: which of all items does a user click next?

    python -m examples.recommenders.two_tower
    python -m examples.recommenders.two_tower --gin_param='Mesh.layout = "batch:data; d:model"'

One tower makes a vector of a user and of the items that the user has clicked, the other one a
vector of an item; inner products are scores. The table of items serves both. In training, the
items of a batch are each other's negatives (in-batch softmax), and scores are corrected for how
often items are in batches (Yi et al., 2019, "Sampling-bias-corrected neural modeling for large
corpus item recommendations"). `two_tower.gin` has the settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
from transformer.cli.program import answer_usage, run_main

if __name__ == "__main__":
    answer_usage()  # before the imports below take seconds for TensorFlow

import gin
import numpy as np

import meshtf as mtf
from examples.recommenders.click_history import ClickHistory, Example
from transformer.cli import command_line, gin_configurables

__all__ = ["Scores", "TwoTower", "gin_configurables", "main", "train"]
_GIN_FILE = Path(__file__).with_name("two_tower.gin")
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


def main(argv: list[str]) -> None:
    """Trains with the settings of gin, and prints what came out."""
    with command_line.exit_on_user_errors():
        command_line.configure_by_flags(argv, files=[str(_GIN_FILE)])
        scores = train()
    print(f"loss of the first and last steps  {scores.losses[0]:.4f}", end="")
    print(f"  {np.mean(scores.losses[-20:]):.4f}")
    print("held-out clicks           model  by popularity  planted")
    print(f"among the best scores     {scores.recall:.3f}", end="")
    print(f"  {scores.popular_recall:.3f}          {scores.best_recall:.3f}")


if __name__ == "__main__":
    run_main(main)
