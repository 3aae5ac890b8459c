"""A model with different layouts for its front and its back, which exchanges fewer bytes
than under any single layout.

    python -m examples.two_regions       (prints MB received, MFLOP and peak MB per device)

In the front, kernels are small and activations large; in the back it is the reverse. Any
single layout either exchanges large gradients, or shards dimensions that are summed over
in the front and exchanges activations, or computes the same on several devices.
"""

import numpy as np

import meshtf as mtf

FRONT = "batch:all"
# Changes to the layout in the back: `batch` is not sharded there.
BACK = "batch:; heads:all; d_ff:all"
DIMENSIONS = "batch pixels mixed channels length d_model heads d_kv d_ff".split()
X = np.random.default_rng(0).normal(size=(32, 64, 32)).astype("float32")


def train_step(mesh: mtf.Mesh, back: str = "") -> mtf.function:
    """Returns a training step on x[batch, pixels, channels].

    Args:
      mesh: the mesh, whose layout is that of the front.
      back: rules of the layout that change in the back.
    """

    def kernels(*shapes: str) -> list[mtf.Variable]:
        """Returns random variables, which are named by their shapes."""
        initializer = mtf.layers.initializers.normal(0.05)
        return [mtf.Variable(mesh, shape, initializer, name=shape) for shape in shapes]

    mix, unmix = kernels("pixels:64;mixed:64", "mixed:64;pixels:64")
    embed, pool = kernels("channels:32;d_model:256", "pixels:64;length:4")
    with mtf.layout(back):
        wi, wo = kernels("d_model:256;d_ff:1024", "d_ff:1024;d_model:256")
        attention = mtf.layers.MultiHeadAttention(
            mesh, "d_model:256", "heads:8", "d_kv:32"
        )
    variables = [mix, unmix, embed, pool, wi, wo, *attention.variables]

    @mtf.function(mesh=mesh, x="batch;pixels;channels")
    def step(x: mtf.Tensor) -> mtf.Tensor:
        """Updates the variables by gradient descent, and returns the loss, a scalar."""
        x = x + mtf.matmul(mtf.gelu(mtf.matmul(x, mix)), unmix)
        x = mtf.matmul(mtf.gelu(mtf.matmul(x, embed)), pool)
        with mtf.layout(back):
            x = x + attention(mtf.rms_norm(x, "d_model"))
            x = x + mtf.matmul(mtf.gelu(mtf.matmul(mtf.rms_norm(x, "d_model"), wi)), wo)
        loss = mtf.reduce_mean(mtf.square(x - 1.0))
        gradients = mtf.gradients([loss], variables)
        for variable, gradient in zip(variables, gradients):
            variable.assign(variable - 0.1 * gradient)
        return loss

    return step


def forecast_layouts(
    dims: list[str], rules: str, back: str = ""
) -> dict[str, mtf.Forecast]:
    """Returns the forecasts of a layout, and of all legal layouts that extend it, by their
    rules.

    Args:
      dims: the dimensions that may be sharded as well: each extension has a further rule
        "dim:all" for a subset of them.
      rules: the rules of the layout that is extended.
      back: rules of the layout that change in the back.
    """
    mesh = mtf.Mesh("all:8", rules, devices="abstract")  # a forecast needs no devices
    try:
        forecast = mtf.explain(train_step(mesh, back), X)
    except mtf.LayoutError:
        return {}  # a layout that extends an illegal one is illegal as well
    if forecast.error is not None:
        return {}
    results = {rules: forecast}
    for i, dim in enumerate(dims):
        results |= forecast_layouts(dims[i + 1 :], f"{rules}{dim}:all; ")
    return results


if __name__ == "__main__":
    mtf.configure_process()
    forecasts = forecast_layouts(DIMENSIONS, rules="")
    forecasts["two regions"] = forecast_layouts([], FRONT, BACK)[FRONT]
    for rules in sorted(forecasts, key=lambda rules: forecasts[rules].bytes_moved()):
        forecast = forecasts[rules]
        costs = (forecast.bytes_moved(), forecast.flops(), forecast.memory.peak)
        print(*(f"{cost / 1e6:6.2f}" for cost in costs), rules)
    one_device = mtf.Mesh("")
    eight_positions = mtf.Mesh("all:8", FRONT)
    for mesh, back in [(one_device, ""), (eight_positions, BACK)]:
        step = train_step(mesh, back)
        print(f"losses on {mesh}:", *(float(step(X)) for _ in range(3)))
