"""The optimizers once more, as formulas of NumPy on whole variables, in float64.

Example:

    update = OPTIMIZERS["Adam(variables, 0.1, epsilon=0.001)"]
    value, slots = update(value, gradient, slots, step)          # steps count from 1
    value, slots = of_layers(update, 1)(value, gradient, slots, step)    # [layers, ...]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Slots = dict[Any, Any]
Update = Callable[[np.ndarray, np.ndarray, Slots, int], "tuple[np.ndarray, Slots]"]
RATE = 0.1
EPSILON = 1e-3
DECAY = 0.3


def descent(
    x: np.ndarray, g: np.ndarray, slots: Slots, t: int
) -> tuple[np.ndarray, Slots]:
    """SGD."""
    return x - RATE * g, slots


def momentum(nesterov: bool) -> Update:
    """SGD with a velocity."""

    def update(
        x: np.ndarray, g: np.ndarray, slots: Slots, t: int
    ) -> tuple[np.ndarray, Slots]:
        velocity = 0.9 * slots.get("velocity", 0.0) + g
        return x - RATE * (g + 0.9 * velocity if nesterov else velocity), {
            "velocity": velocity
        }

    return update


def _moments(g: np.ndarray, slots: Slots) -> Slots:
    return {
        "m": 0.9 * slots.get("m", 0.0) + 0.1 * g,
        "v": 0.999 * slots.get("v", 0.0) + 0.001 * g * g,
    }


def adam(decay: float) -> Update:
    """Adam as Keras computes it; with decay, of matrices, AdamW."""

    def update(
        x: np.ndarray, g: np.ndarray, slots: Slots, t: int
    ) -> tuple[np.ndarray, Slots]:
        slots = _moments(g, slots)
        rate = RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        if x.ndim > 1:
            x = x - RATE * decay * x
        return x - rate * slots["m"] / (np.sqrt(slots["v"]) + EPSILON), slots

    return update


def lamb(
    x: np.ndarray, g: np.ndarray, slots: Slots, t: int
) -> tuple[np.ndarray, Slots]:
    """LAMB."""
    slots = _moments(g, slots)
    change = (
        slots["m"] / (1 - 0.9**t) / (np.sqrt(slots["v"] / (1 - 0.999**t)) + EPSILON)
    )
    if x.ndim > 1:
        change = change + DECAY * x
        change = change * np.linalg.norm(x) / np.linalg.norm(change)
    return x - RATE * change, slots


def adafactor(
    x: np.ndarray, g: np.ndarray, slots: Slots, t: int
) -> tuple[np.ndarray, Slots]:
    """Adafactor; the two largest dimensions, if there are two, are factored."""
    fresh = t**-0.8
    squares = g * g + EPSILON
    large, small = (sorted(range(x.ndim), key=lambda i: -x.shape[i]) + [0, 0])[:2]
    if x.ndim < 2:
        slots = {"v": slots.get("v", 0.0) * (1 - fresh) + squares * fresh}
        change = g / np.sqrt(slots["v"])
    else:
        row, column = (np.mean(squares, axis, keepdims=True) for axis in (small, large))
        slots = {
            "row": slots.get("row", 0.0) * (1 - fresh) + row * fresh,
            "column": slots.get("column", 0.0) * (1 - fresh) + column * fresh,
        }
        mean = np.mean(slots["row"], large, keepdims=True)
        change = g / np.sqrt(slots["row"] / mean * slots["column"])
    change = change / max(1.0, _rms(change))
    return x - RATE * max(1e-3, _rms(x)) * change, slots


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x * x)))


def of_layers(update: Update, num_stacked: int) -> Update:
    """Returns the update of a variable whose leading dimensions, so many, stack those of
    layers: each is updated on its own.
    """
    if not num_stacked:
        return update
    of_layer = of_layers(update, num_stacked - 1)

    def update_each(
        x: np.ndarray, g: np.ndarray, slots: Slots, t: int
    ) -> tuple[np.ndarray, Slots]:
        results = [
            of_layer(x_i, g_i, slots.get(i, {}), t)
            for i, (x_i, g_i) in enumerate(zip(x, g))
        ]
        values, slots_of_layers = zip(*results)
        return np.stack(values), dict(enumerate(slots_of_layers))

    return update_each


OPTIMIZERS: dict[str, Update] = {
    f"SGD(variables, {RATE})": descent,
    f"SGD(variables, {RATE}, momentum=0.9)": momentum(False),
    f"SGD(variables, {RATE}, momentum=0.9, nesterov=True)": momentum(True),
    f"Adam(variables, {RATE}, epsilon={EPSILON})": adam(0.0),
    f"AdamW(variables, {RATE}, {DECAY}, epsilon={EPSILON})": adam(DECAY),
    f"LAMB(variables, {RATE}, {DECAY}, epsilon={EPSILON})": lamb,
    f"Adafactor(variables, {RATE}, epsilon_1={EPSILON}, "
    "min_dim_size_to_factor=2)": adafactor,
}
