"""Seeds: whole numbers one after another, such as (seed, epoch, index), that name a
random stream.

>>> generator((7, 0, 12)).random() == generator((7, 0, 12)).random()
True
"""

from __future__ import annotations

import numpy as np

Seed = tuple[int, ...]


def generator(seed: Seed) -> np.random.Generator:
    """Returns the generator of a seed: equal seeds, equal numbers."""
    return np.random.default_rng([number % 2**64 for number in seed])
