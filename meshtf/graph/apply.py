"""`apply`: the function by which every op is applied.

    z = apply(Add(), x, y)             # one output
    values, indices = apply_all(TopK("vocab", Dimension("k", 3)), logits)

`apply` makes a node and passes it to the current executor: inside of a mtf.function a
`Graph`, which records the node, elsewhere the eager executor, which runs it immediately.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from meshtf.errors import MeshtfError, explain_error
from meshtf.graph.arguments import as_mesh, refuse_tensor
from meshtf.graph.context import Context, current
from meshtf.graph.layout_check import check_layout, check_stage, common_mesh
from meshtf.graph.op import Op, Spec
from meshtf.graph.op_kinds import EffectOp, HostOp, ReadOp, WriteOp
from meshtf.graph.tensor import Node, Source, Tensor
from meshtf.mesh import Mesh
from meshtf.names.arguments import refuse


class Executor(Protocol):
    """Records or runs nodes.

    Attributes:
      mesh: the mesh of the recorded function; None in eager mode, or if no tensor or
        variable has determined the mesh yet.
    """

    mesh: Mesh | None

    @property
    def owner(self) -> Any:
        """The executor whose gradients flow through the nodes."""

    def recorder_of(self, op: Op) -> Any:
        """Returns the executor that runs or records an op: this one or an outer one."""

    def find(self, op: ReadOp) -> Node | None:
        """Returns an earlier node that reads the same variable; None: there is none."""

    def run(self, node: Node) -> tuple[Tensor, ...]:
        """Records a node or runs it, and returns its outputs."""


class _Executors(threading.local):
    """The executors of one thread, the current one last; empty in eager mode."""

    def __init__(self) -> None:
        self.stack: list[Executor] = []


_executors = _Executors()
# The eager executor, which all threads share, as a list of one; empty until
# `set_eager_executor` is called.
_eager: list[Executor] = []


def set_eager_executor(executor: Executor) -> None:
    """Sets the eager executor. It is called once, when meshtf is imported: this package must
    not import the eager executor, which needs TensorFlow.
    """
    _eager[:] = [executor]


def current_executor() -> Executor:
    """Returns the executor that `apply` passes nodes to in this thread."""
    if _executors.stack:
        return _executors.stack[-1]
    return _eager[0]


@contextlib.contextmanager
def executing(executor: Executor | None = None) -> Iterator[None]:
    """Sets the executor for a `with` block; None: the eager one."""
    _executors.stack.append(executor or _eager[0])
    try:
        yield
    finally:
        _executors.stack.pop()


def apply(op: Op, *inputs: Any, mesh: Mesh | None = None) -> Tensor:
    """Applies an op with one output. Raises what `apply_all` does."""
    (y,) = apply_all(op, *inputs, mesh=mesh)
    return y


def apply_all(op: Op, *inputs: Any, mesh: Mesh | None = None) -> tuple[Tensor, ...]:
    """Applies an op and returns its outputs.

    Args:
      op: the op.
      *inputs: tensors or variables.
      mesh: the mesh of the outputs; None: the mesh of the inputs.

    Raises:
      MeshError: the inputs are on two meshes.
      ShapeError, DTypeError: the op does not take inputs of these shapes or dtypes.
      LayoutError: the layout cannot shard an output.
    """
    return _apply_all(op, inputs, mesh=mesh, check=True)


def apply_unchecked(op: Op, *inputs: Any) -> tuple[Tensor, ...]:
    """Applies an op with outputs that no user sees, such as residuals of gradients.

    The outputs are not checked against the layout: of two dimensions with rules for the
    same axis, the second is replicated.
    """
    return _apply_all(op, inputs, mesh=None, check=False)


def _apply_all(
    op: Op, inputs: Sequence[Any], mesh: Mesh | None, check: bool
) -> tuple[Tensor, ...]:
    """Applies an op to inputs; `check` says whether to check the outputs against the layout,
    and `mesh` is the mesh of the outputs, or None.
    """
    if not isinstance(op, Op):
        refuse(
            "op",
            op,
            takes="an op",
            way_out="Subclass mtf.graph.Op, and make one: MyOp(...).",
        )
    executor, context = current_executor().recorder_of(op), current()
    # A variable is read again only after a write.
    if isinstance(op, ReadOp):
        earlier_read = executor.find(op)
        if earlier_read is not None:
            outputs: tuple[Tensor, ...] = earlier_read.outputs
            return outputs
    # `primals`: in a gradient rule, tensors of the forward node, whose line errors show.
    primals = context.primals
    source = primals[-1].node.source if primals else context.source
    source = source or Source.of_caller()
    if mesh is not None:
        mesh = as_mesh("mesh", mesh)
    # Reads variables, which may determine the mesh of the executor.
    tensors = _as_inputs(op, inputs, context)
    context = _unless_stored(op, tensors, context)
    if mesh is None:
        mesh = executor.mesh
    if context.mesh is None:
        mesh = common_mesh(tensors, mesh, source)
    else:
        mesh = context.mesh
    specs = _output_specs(op, tensors, source)
    if mesh is not None and context.stage is not None:
        check_stage(mesh, context.stage, source)
    has_effect = isinstance(op, EffectOp)
    if mesh is not None and check and not primals and not has_effect:
        check_layout(specs, mesh, layout=mesh.layout_in(context.region), source=source)
    node = Node(
        op,
        inputs=tensors,
        specs=specs,
        mesh=mesh,
        source=source,
        context=context,
        owner=executor.owner,
    )
    if context.runs_again and isinstance(op, (HostOp, WriteOp)):
        return node.outputs  # it ran in the forward pass
    if node.recompute_group is not None and not has_effect:
        node.recompute_group.nodes.append(node)
    results: tuple[Tensor, ...] = executor.run(node)
    return results


def _unless_stored(op: Op, inputs: Sequence[Tensor], context: Context) -> Context:
    """Returns the context of an op; without a group of `mtf.recompute` if that stores the outputs
    of the op all the same.
    """
    group = context.recompute_group
    if group is None or not group.stores(op, [x.spec for x in inputs], context.path):
        return context
    return dataclasses.replace(context, recompute_group=None)


def _as_inputs(op: Op, inputs: Sequence[Any], context: Context) -> tuple[Tensor, ...]:
    """Returns the inputs of an op as tensors, after the substitutions of the context."""
    tensors = [
        x if isinstance(x, Tensor) else _as_tensor(x, op, i)
        for i, x in enumerate(inputs)
    ]
    if context.substitutes is not None:
        tensors = [context.substitutes.get(x, x) for x in tensors]
    return tuple(tensors)


def _as_tensor(x: Any, op: Op, index: int) -> Tensor:
    """Returns an input of an op that is no tensor as a tensor: reads a variable.

    Args:
      x: a variable, or a wrong argument.
      op: the op.
      index: the index of the input.

    Raises:
      ArgumentError: x is no variable. The error names the input.
    """
    if hasattr(x, "tensor"):
        tensor: Tensor = x.tensor()
        return tensor
    # The parameters of `output_specs`, without `self`, are the names of the inputs.
    code = type(op).output_specs.__code__
    names = code.co_varnames[1 : code.co_argcount]
    name = names[index] if index < len(names) else "x"
    return refuse_tensor(name, x)


def _output_specs(
    op: Op, inputs: tuple[Tensor, ...], source: Source
) -> tuple[Spec, ...]:
    """Returns the specs of outputs. An error of the op is raised again with the shapes of
    the inputs and the user's line.
    """
    try:
        return op.output_specs(*(x.spec for x in inputs))
    except MeshtfError as error:
        # `explain_error` writes the user's line after the label "from".
        has_source = "from  " in str(error)
        if has_source:
            raise
        shapes = "  ".join(f"{x.dtype} {x.shape!r}" for x in inputs)
        raise type(error)(
            explain_error(str(error), **{"inputs": shapes, "from": source})
        ) from None
