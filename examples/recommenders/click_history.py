"""Generated clicks of users on items, with a planted signal: users and items belong to groups.

    history = ClickHistory(users=2000, items=1000, groups=20)
    clicks = history.batch(index=0, size=256)           # the same for the same index

Most clicks of a user are on items of the user's group, few of them frequent and most rare. So a
user's earlier clicks tell the next one's group, and so does the user's id.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SLOTS = 8  # the most earlier clicks that an example has
_SHARE_OF_GROUP = 0.8  # of clicks; others are on any item


class Example(NamedTuple):
    """A batch.

    Attributes:
      users: the ids of users, int32 [batch].
      earlier: the items of earlier clicks, int32 [batch, slot]; -1 after the last one.
      items: the item of the click to predict, int32 [batch].
    """

    users: np.ndarray
    earlier: np.ndarray
    items: np.ndarray


class ClickHistory:
    """Generates batches. User u and item i are of groups u % groups and i % groups.

    Args:
      users: the number of users.
      items: the number of items.
      groups: the number of groups.
      seed: the seed of all batches.

    Attributes:
      probabilities: how likely a click is on each item, [items]; all users have the same share.
    """

    def __init__(self, users: int, items: int, groups: int, seed: int = 0) -> None:
        self.users = users
        self.items = items
        self.groups = groups
        self.seed = seed
        # Zipf's law within each group.
        frequencies = 1.0 / (1 + np.arange(items) // groups)
        self.probabilities = frequencies / frequencies.sum()

    def batch(self, index: int, size: int) -> Example:
        """Returns a batch; those of different indices are different."""
        rng = np.random.default_rng((self.seed, index))
        users = rng.integers(0, self.users, size)
        clicks = self._clicks(rng, users[:, None].repeat(SLOTS + 1, axis=1))
        earlier = clicks[:, 1:]
        is_padding = np.arange(SLOTS) >= rng.integers(0, SLOTS + 1, (size, 1))
        return Example(
            users=users.astype("int32"),
            earlier=np.where(is_padding, -1, earlier).astype("int32"),
            items=clicks[:, 0].astype("int32"),
        )

    def best_recall(self, k: int) -> float:
        """Returns the recall of the k likeliest items of each user's group."""
        of_group = self.probabilities[:: self.groups] * self.groups
        of_all = (1 - _SHARE_OF_GROUP) * self.probabilities[:: self.groups]
        return float(np.sum(_SHARE_OF_GROUP * of_group[:k] + of_all[:k]))

    def popular_recall(self, k: int) -> float:
        """Returns the recall of the k items that have most clicks."""
        return float(self.probabilities[:k].sum())

    def _clicks(self, rng: np.random.Generator, users: np.ndarray) -> np.ndarray:
        """Returns a drawn item for each user [...]."""
        items = rng.choice(self.items, users.shape, p=self.probabilities)
        of_group = items - items % self.groups + users % self.groups
        is_of_group = rng.random(users.shape) < _SHARE_OF_GROUP
        return np.where(is_of_group, of_group, items)
