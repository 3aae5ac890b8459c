"""Solves the heat equation on a grid that is sharded along both of its dimensions.

    python -m examples.heat

u_t = a (u_xx + u_yy) on the unit square, u = 0 on its boundary, explicit Euler steps. The
exact solution is known for products of sines. A shift by one grid point sends only the
points at the border of a shard to the neighbouring device.
"""

import numpy as np

import meshtf as mtf

GRID_SIZE = 62  # grid points along x and along y
DIFFUSIVITY = 0.1
STEPS = 400
# Between two grid points. The points on the boundary are not stored.
SPACING = 1 / (GRID_SIZE + 1)
# Explicit Euler steps are stable below SPACING**2 / (4 * DIFFUSIVITY).
TIME_STEP = SPACING**2 / (5 * DIFFUSIVITY)


def laplacian(u: mtf.Tensor) -> mtf.Tensor:
    """Returns u_xx + u_yy of u[x, y], by the five-point stencil."""
    neighbours = (
        mtf.shift(u, "x", -1)
        + mtf.shift(u, "x", 1)
        + mtf.shift(u, "y", -1)
        + mtf.shift(u, "y", 1)
    )
    return (neighbours - 4.0 * u) / SPACING**2


def exact_solution(time: float) -> np.ndarray:
    """Returns the temperature u[x, y] at a time: the sum of two waves; the one with the
    shorter wavelength decays faster.
    """
    angles = np.arange(1, GRID_SIZE + 1) * SPACING * np.pi  # pi x, and also pi y
    u = np.zeros((GRID_SIZE, GRID_SIZE))
    # Half periods of each wave along x (k) and along y (m).
    for amplitude, k, m in [(1.0, 1, 1), (0.8, 3, 2)]:
        decay = np.exp(-DIFFUSIVITY * (k * k + m * m) * np.pi**2 * time)
        u += amplitude * decay * np.outer(np.sin(k * angles), np.sin(m * angles))
    return u


def picture(u: np.ndarray) -> str:
    """Returns u as lines of text: the warmer a point, the darker its character."""
    points = u[::4, ::2]  # a character is about twice as high as wide
    shades = " .:-=+*#%@"
    fractions = (points - points.min()) / (np.ptp(points) + 1e-9)
    indices = (fractions * (len(shades) - 1)).astype(int)
    return "\n".join("".join(shades[i] for i in line) for line in indices)


if __name__ == "__main__":
    mtf.configure_process()
    mesh = mtf.Mesh("rows:2;columns:2", layout="x:rows; y:columns")

    @mtf.function(mesh=mesh, u="x;y")
    def step(u: mtf.Tensor) -> mtf.Tensor:
        """Returns the temperature u[x, y] after one time step."""
        return u + TIME_STEP * DIFFUSIVITY * laplacian(u)

    u = mtf.asarray(mesh, exact_solution(0.0).astype("float32"), "x;y")
    print(picture(u.numpy()))
    for _ in range(STEPS):
        u = step(u)
    print(picture(u.numpy()))
    error = np.abs(u.numpy() - exact_solution(STEPS * TIME_STEP)).max()
    print(
        f"after {STEPS} steps: maximum {u.numpy().max():.4f}, largest error {error:.1e}"
    )
    for collective in step.explain(u).collectives:
        print(
            f"each step: {collective.bytes:.0f} bytes by {collective.kind} along {collective.axis}"
        )
