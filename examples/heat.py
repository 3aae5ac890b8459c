"""Solves the heat equation on a grid that is sharded along both of its dimensions.

    python -m examples.heat

u_t = a (u_xx + u_yy) on the unit square, u = 0 on its boundary, explicit Euler steps. The
exact solution is known for products of sines. A shift by one grid point sends only the
points at the border of a shard to the neighbouring device.
"""

import numpy as np

import meshtf as mtf

N = 62
DIFFUSIVITY = 0.1
STEPS = 400
SPACING = 1 / (N + 1)  # between grid points; the points on the boundary are not stored
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


def exact(time: float) -> np.ndarray:
    """Returns the temperature u[x, y] at a time: the sum of two waves; the one with the
    shorter wavelength decays faster.
    """
    s = np.arange(1, N + 1) * SPACING * np.pi
    u = np.zeros((N, N))
    # Half periods of each wave along x (k) and along y (m).
    for amplitude, k, m in [(1.0, 1, 1), (0.8, 3, 2)]:
        decay = np.exp(-DIFFUSIVITY * (k * k + m * m) * np.pi**2 * time)
        u += amplitude * decay * np.outer(np.sin(k * s), np.sin(m * s))
    return u


def picture(u: np.ndarray) -> str:
    """Returns u as lines of text: the warmer a point, the darker its character."""
    points = u[::4, ::2]
    shades = " .:-=+*#%@"
    levels = (points - points.min()) / (np.ptp(points) + 1e-9) * (len(shades) - 1)
    lines = ["".join(shades[int(level)] for level in line) for line in levels]
    return "\n".join(lines)


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
        f"after {STEPS} steps: maximum {u.numpy().max():.4f}, largest error {error:.1e}"
    )
    for collective in step.explain(u).collectives:
        print(
            f"each step: {collective.bytes:.0f} bytes by {collective.kind} along {collective.axis}"
        )
