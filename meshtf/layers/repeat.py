"""A stack of equal layers with separate variables, traced as one loop.

    blocks = mtf.layers.Repeat(lambda: Block(mesh, ...), "layers:48")
    h = blocks(h, mask)                # the first dimension of Block's variables: `layers`

The layer is made and traced once, so the graph of a deep model is as large as that of one
layer. Its variables are stacked along the dimension of the layers, and so are the tensors
in a checkpoint; while the layer runs, a variable has the shape of one layer's entry, and
optimizers update the entries as separate variables. An initializer draws all of them at once,
from the shape with the layers in front; `variance_scaling` and those like it leave these out of
their fans. A
repeated layer may contain repeated layers. A module that is made outside of `make` is
shared by all layers. With `recomputed=True` only the inputs of each layer are stored for
the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.graph import Tensor, context, current
from meshtf.graph.arguments import check_nest, refuse_tensor
from meshtf.module import Module
from meshtf.names import Names, ShapeLike, names_of
from meshtf.names.arguments import as_callable, check_bools, refuse
from meshtf.ops.common.checks import single_dim
from meshtf.ops.control.nested_values import pack, tensors_of
from meshtf.ops.control.stop_gradient import recompute
from meshtf.ops.loops.scan import scan


class Repeat(Module):
    """Applies a layer repeatedly, each time to the previous output and with different
    variables.

    Args:
      make: a function that returns the layer, called once. The layer maps x [...] to a
        tensor of the same shape.
      dim: the dimension of the layers, with their count, such as "layers:48".
      recomputed: whether the backward pass recomputes the activations of each layer from
        its input.
      stored: the names of modules of the layer whose matrix products are stored all the same: see
        `mtf.recompute`.
      name: the name of this module, a component of the names of the variables.

    Raises:
      ShapeError: the output of the layer has another shape than its input.
      PlanError: the layer writes to a variable, as batch norm does while training.
    """

    def __init__(
        self,
        make: Callable[[], Module],
        dim: ShapeLike,
        recomputed: bool = False,
        stored: Names = (),
        name: str | None = None,
    ) -> None:
        make = as_callable("make", make)
        check_bools(recomputed=recomputed)
        super().__init__(name)
        self.dim = single_dim(dim)
        self.recomputed = recomputed
        self.stored = names_of(stored, argument="stored")
        with self.scope(), context(stacked_dims=(*current().stacked_dims, self.dim)):
            self.layer = make()
        if not isinstance(self.layer, Module):
            refuse(
                "make",
                self.layer,
                takes="a function that returns a Module; it returned what came",
                way_out="Subclass mtf.Module, or write mtf.scan for a layer without variables.",
            )

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the output of the last layer, with the shape of x; `args` and `kwargs`
        are passed to every layer.
        """

        def apply_layer(layer: Any, h: Any, _xs: Any) -> tuple[Any, None]:
            return layer(h, *args, **kwargs), None

        y, _stacked_outputs = self.each(apply_layer, x)
        return y

    def each(
        self, fn: Callable[[Any, Any, Any], tuple[Any, Any]], x: Any, xs: Any = None
    ) -> tuple[Any, Any]:
        """Returns the carry after the last layer, and the stacked outputs of all layers, as
        `mtf.scan` does.

        It is for layers that read or return one entry per layer, such as a cache or a loss:

            h, caches = blocks.each(
                lambda block, h, cache: block.decode_step(h, cache), h, caches
            )

        Args:
          fn: a function of the layer, the carry, and the layer's entry of `xs`. It
            returns the next carry, and the outputs that are stacked along the dimension
            of the layers.
          x: the initial carry: tensors or None, in any nesting.
          xs: tensors with the dimension of the layers, in any nesting.
        """
        if x is None:
            refuse_tensor("x", x)
        check_nest("x", x)
        fn = as_callable("fn", fn)
        # `stack`: the dimensions of layers that a variable is stacked along. Variables of
        # modules that were made outside of `make` lack this dimension: all layers share
        # them. `is`, not `==`: another Repeat may have an equal dimension.
        variables = [
            variable
            for variable in self.layer.variables
            if any(dim is self.dim for dim in variable.stack)
        ]

        def iteration(carry: Any, inputs: Any) -> tuple[Any, Any]:
            variable_entries, xs_entry = inputs

            # Entries of the layers that contain this one, and of this one, by the identity of
            # the variable.
            entries = dict(current().layer_entries or {})
            for variable, entry in zip(variables, variable_entries):
                entries[id(variable)] = entry
            with context(layer_entries=entries):
                results = fn(self.layer, carry, xs_entry)
                # Converts results that are variables to tensors while `layer_entries` gives
                # them the entry of this layer.
                return pack(results, tensors_of(results, "result"))

        if self.recomputed:
            iteration = recompute(iteration, self.stored)
        inputs = ([variable.tensor() for variable in variables], xs)
        return scan(iteration, x, inputs, dim=self.dim.name, length=self.dim.size)
