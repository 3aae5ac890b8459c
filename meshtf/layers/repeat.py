"""A layer repeated several times, with different variables, traced once.

    blocks = mtf.layers.Repeat(lambda: Block(mesh, ...), "layers:48")
    h = blocks(h, mask)                # every variable of Block has `layers` in front

While the block runs, a variable has the shape of one layer's entry.

Repeated layers may contain repeated layers, and share modules that are made outside of
`make`. So the program of a deep model is as large as that of one layer. Checkpoints have
one tensor for all layers. With `recomputed=True` only the inputs of each layer are stored
for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.graph import Tensor, context, current
from meshtf.graph.arguments import check_nest, refuse_tensor
from meshtf.module import Module
from meshtf.names import ShapeLike
from meshtf.names.arguments import as_callable, check_bools, refuse
from meshtf.ops.common.checks import single_dim
from meshtf.ops.control.loops import scan
from meshtf.ops.control.nested_values import pack, tensors_of
from meshtf.ops.control.stop_gradient import recompute


class Repeat(Module):
    """Applies a layer `dim` times, each time to the previous output and with different
    variables.

    Args:
      make: makes the layer, once; it maps x [...] to a tensor of the same shape.
      dim: name and count of the layers, such as "layers:48".
      recomputed: whether the backward pass recomputes the activations of each layer from
        its input.
      name: of the layers.

    Raises:
      ShapeError: the layer changes names or sizes of its input.
      PlanError: the layer writes to a variable, as batch norm does while training.
    """

    def __init__(
        self,
        make: Callable[[], Module],
        dim: ShapeLike,
        recomputed: bool = False,
        name: str | None = None,
    ) -> None:
        as_callable("make", make)
        check_bools(recomputed=recomputed)
        super().__init__(name)
        self.dim = single_dim(dim)
        self.recomputed = recomputed
        with self.scope(), context(stacked_dims=(*current().stacked_dims, self.dim)):
            self.layer = make()
        if not isinstance(self.layer, Module):
            refuse(
                "make",
                self.layer,
                "a function that returns a Module; it returned what came",
                "Subclass mtf.Module, or write mtf.scan for a layer without variables.",
            )

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the output [...] of the last layer for input x; the remaining arguments are
        passed to all layers.
        """
        y, _ = self.each(lambda layer, h, _: (layer(h, *args, **kwargs), None), x)
        return y

    def each(
        self, fn: Callable[[Any, Any, Any], tuple[Any, Any]], x: Any, xs: Any = None
    ) -> tuple[Any, Any]:
        """Returns the carry after the last layer, and the stacked outputs of all layers, as
        `mtf.scan` does.

        With it layers have caches, or report losses:

            h, caches = blocks.each(
                lambda block, h, cache: block.decode_step(h, cache), h, caches
            )

        Args:
          fn: called with the layer, the carry, and the layer's entry of `xs`; returns
            the next carry, and the outputs that are stacked along the dimension of the
            layers.
          x: the initial carry: tensors or None, in any nesting.
          xs: tensors with the dimension of the layers, in any nesting.
        """
        if x is None:
            refuse_tensor("x", x)
        check_nest("x", x)
        as_callable("fn", fn)
        # Variables of modules that were made outside of `make` lack the dimension of the
        # layers: all layers share them.
        variables = [
            v for v in self.layer.variables if any(d is self.dim for d in v.stack)
        ]

        def iteration(carry: Any, inputs: Any) -> tuple[Any, Any]:
            values, entry = inputs

            def layer(carry: Any) -> tuple[Any, Any]:
                entries = {id(v): value for v, value in zip(variables, values)}
                with context(
                    layer_entries={**(current().layer_entries or {}), **entries}
                ):
                    results = fn(self.layer, carry, entry)
                    # Results that are variables are read here, where they are entries.
                    return pack(results, tensors_of(results, "result"))

            run = layer
            if self.recomputed:
                run = recompute(layer)
            return run(carry)

        inputs = ([v.tensor() for v in variables], xs)
        return scan(iteration, x, inputs, self.dim.name, self.dim.size)
