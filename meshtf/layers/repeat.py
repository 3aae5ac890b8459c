"""The same layer several times in a row, traced once, however many there are.

    blocks = mtf.layers.Repeat(lambda: Block(mesh, ...), "layers:48")
    h = blocks(h, mask)                # every variable of Block has `layers` in front

While the block runs, a variable has the shape of one layer's entry.

Repeated layers may be made of repeated layers, and share modules that are made outside
of `make`. The program of a deep model is so as large as that of one layer. Checkpoints
hold one tensor for all layers. With mtf.recompute of the layer, only its inputs are
kept for the backward pass.
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
    """A layer, `dim` times: its output is its next input. Each time it has weights of
    its own.

    Args:
      make: makes the layer, once; it maps x[...] to a tensor of the same shape.
      dim: name and number of the layers, such as "layers:48".
      recomputed: whether the backward pass computes each layer again, and keeps its
        input alone.
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
        self.dim, self.recomputed = single_dim(dim), recomputed
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
        """Returns what the last layer makes of x; all layers get the other
        arguments.
        """
        return self.each(lambda layer, h, row: (layer(h, *args, **kwargs), None), x)[0]

    def each(
        self, fn: Callable[[Any, Any, Any], tuple[Any, Any]], x: Any, rows: Any = None
    ) -> tuple[Any, Any]:
        """Returns what goes through all layers, and what each of them makes besides,
        stacked.

        So layers have caches, or report losses:

            h, caches = blocks.each(lambda block, h, cache: block.step(h, cache), h, caches)

        Args:
          fn: called with the layer, what goes through, and a row; returns what goes on,
            and what is stacked along the dimension of the layers.
          x: what goes into the first layer: tensors, in any nesting, in which None may
            be.
          rows: tensors with the dimension of the layers, in any nesting: each layer
            gets one row.
        """
        if x is None:
            refuse_tensor("x", x)
        check_nest("x", x)
        as_callable("fn", fn)
        # Modules that were made elsewhere have no dimension of these layers: all layers
        # share them.
        variables = [
            v for v in self.layer.variables if any(d is self.dim for d in v.stack)
        ]

        def turn(h: Any, given: Any) -> tuple[Any, Any]:
            values, row = given

            def layer(h: Any) -> tuple[Any, Any]:
                own = {id(v): value for v, value in zip(variables, values)}
                with context(layer_entries={**(current().layer_entries or {}), **own}):
                    made = fn(self.layer, h, row)
                    return pack(
                        made, tensors_of(made, "result")
                    )  # variables: their entries

            return (recompute(layer) if self.recomputed else layer)(h)

        return scan(
            turn,
            x,
            ([v.tensor() for v in variables], rows),
            self.dim.name,
            self.dim.size,
        )
