"""Heat flows in a plate: a grid cut along both of its dimensions, whose slices exchange
their rims.

    python -m examples.heat

u_t = a (u_xx + u_yy), explicit Euler steps, u = 0 around the plate. The exact solution
is known for a product of sines. A shift by one row moves that row alone, from one
neighbour, in each direction.
"""

import numpy as np

import meshtf as mtf

N = 62
DIFFUSIVITY = 0.1
STEPS = 400
WIDTH = 1 / (N + 1)  # of a cell of the unit square; rims are not stored
TIME_STEP = WIDTH**2 / (
    5 * DIFFUSIVITY
)  # below WIDTH**2 / (4 a), where Euler steps are stable


def laplacian(u: mtf.Tensor) -> mtf.Tensor:
    """Returns u_xx + u_yy of u[x, y], by the five-point stencil."""
    around = [mtf.shift(u, dim, by) for dim in ("x", "y") for by in (-1, 1)]
    return (around[0] + around[1] + around[2] + around[3] - 4.0 * u) / WIDTH**2


def exact(time: float) -> np.ndarray:
    """Returns the temperature of all cells: two waves, of which the shorter fades
    sooner.
    """
    s = np.arange(1, N + 1) * WIDTH * np.pi
    waves = [(1.0, 1, 1), (0.8, 3, 2)]
    return sum(
        size
        * np.exp(-DIFFUSIVITY * (k * k + m * m) * np.pi**2 * time)
        * np.outer(np.sin(k * s), np.sin(m * s))
        for size, k, m in waves
    )


def picture(u: np.ndarray) -> str:
    """Returns a few lines of text: the warmer a cell, the darker its character."""
    cells = u[::4, ::2]
    shades = " .:-=+*#%@"
    levels = (cells - cells.min()) / (np.ptp(cells) + 1e-9) * (len(shades) - 1)
    return "\n".join("".join(shades[int(v)] for v in row) for row in levels)


if __name__ == "__main__":
    mtf.configure_process()
    mesh = mtf.Mesh("rows:2;columns:2", "x:rows; y:columns")

    @mtf.function(mesh=mesh, u="x;y")
    def step(u: mtf.Tensor) -> mtf.Tensor:
        return u + TIME_STEP * DIFFUSIVITY * laplacian(u)

    u = mtf.asarray(mesh, exact(0.0).astype("float32"), "x;y")
    print(picture(u.numpy()))
    for _ in range(STEPS):
        u = step(u)
    print(picture(u.numpy()))
    error = np.abs(u.numpy() - exact(STEPS * TIME_STEP)).max()
    print(
        f"after {STEPS} steps: warmest {u.numpy().max():.4f}, largest error {error:.1e}"
    )
    print(
        "one step moves",
        *(f"{m.bytes:.0f} B by {m.kind} {m.axis}" for m in step.explain(u).moves),
    )
