"""Seeds: tuples of integers, such as (seed, epoch, index), that name a random stream.

>>> generator((7, 0, 12)).random() == generator((7, 0, 12)).random()
True
"""

from __future__ import annotations

import numpy as np

Seed = tuple[int, ...]


def generator(seed: Seed) -> np.random.Generator:
    """Returns the random number generator of a seed."""
    # NumPy takes no negative integers.
    return np.random.default_rng([integer % 2**64 for integer in seed])
