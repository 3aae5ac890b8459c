"""The one door: every op of every front end passes `apply`.

    z = apply(Add(), x, y)             # one output
    values, indices = apply_all(TopK("vocab", Dimension("k", 3)), logits)

The node goes to the current executor: a `Graph` inside mtf.function, which records it,
or the eager one outside, which runs it at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from meshtf.errors import MeshtfError, explain_error
from meshtf.graph.arguments import as_mesh, refuse_tensor
from meshtf.graph.context import current
from meshtf.graph.layout_check import check_layout, check_stage, common_mesh
from meshtf.graph.op import Op, Spec
from meshtf.graph.op_kinds import EffectOp, ReadOp
from meshtf.graph.tensor import Node, Source, Tensor
from meshtf.mesh import Mesh
from meshtf.names.arguments import refuse


class Executor(Protocol):
    """What a node goes to."""

    mesh: (
        Mesh | None
    )  # the mesh of the function being traced, once known; None in eager mode

    @property
    def owner(self) -> Any:
        """The executor whose nodes these are, to gradients."""

    def recorder_of(self, op: Op) -> Any:
        """Returns the executor that nodes of an op go to: itself, or one around."""

    def find(self, op: ReadOp) -> Node | None:
        """Returns a node made before that says the same, such as another read of a
        variable.
        """

    def run(self, node: Node) -> tuple[Tensor, ...]:
        """Records a node or runs it, and returns its outputs."""


class _Executors(threading.local):
    def __init__(self) -> None:
        self.stack: list[Executor] = []


_executors = _Executors()
_eager: list[Executor] = []  # one for all threads


def set_eager_executor(executor: Executor) -> None:
    """Sets where nodes go outside of functions; called once, when meshtf is
    imported.
    """
    _eager[:] = [executor]


def current_executor() -> Executor:
    """Returns where nodes go now."""
    return _executors.stack[-1] if _executors.stack else _eager[0]


@contextlib.contextmanager
def executing(executor: Executor | None = None) -> Iterator[None]:
    """Sends the nodes of a `with` block to `executor`; None: to the eager one."""
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

    Raises:
      MeshError: the inputs lie on two meshes.
      ShapeError, DTypeError: the op refuses its inputs.
      LayoutError: the layout cannot hold an output.
    """
    return _apply_all(op, inputs, mesh, check=True)


def apply_unchecked(op: Op, *inputs: Any) -> tuple[Tensor, ...]:
    """Applies an op with outputs that no user sees, as those that gradients keep.

    The layout need not hold them: where two dimensions want an axis, one has it.
    """
    return _apply_all(op, inputs, None, check=False)


def _apply_all(
    op: Op, inputs: Sequence[Any], mesh: Mesh | None, check: bool
) -> tuple[Tensor, ...]:
    if not isinstance(op, Op):
        refuse("op", op, "an op", "Subclass mtf.Op, and make one: MyOp(...).")
    executor, around = current_executor().recorder_of(op), current()
    found = executor.find(op) if isinstance(op, ReadOp) else None
    if found is not None:
        return found.outputs
    source = around.primals[-1].node.source if around.primals else Source.of_caller()
    if mesh is not None and not isinstance(mesh, Mesh):
        as_mesh("mesh", mesh)
    tensors = tuple(
        x if isinstance(x, Tensor) else _as_tensor(x, op, i)
        for i, x in enumerate(inputs)
    )
    if around.instead is not None:
        tensors = tuple(around.instead.get(x, x) for x in tensors)
    mesh = around.mesh or common_mesh(tensors, mesh or executor.mesh, source)
    specs = _out(op, tensors, source)
    if mesh is not None and around.stage is not None:
        check_stage(mesh, around.stage, source)
    check = check and not around.primals and not isinstance(op, EffectOp)
    if mesh is not None and check:
        check_layout(specs, mesh, mesh.layout_in(around.region), source)
    node = Node(op, tensors, specs, mesh, source, around, executor.owner)
    if node.group is not None and not isinstance(op, EffectOp):
        node.group.nodes.append(node)
    return executor.run(node)


def _as_tensor(x: Any, op: Op, i: int) -> Tensor:
    """Returns input i of an op as a tensor. Raises ArgumentError, by the name that
    `output_specs` has.
    """
    if hasattr(x, "tensor"):
        return x.tensor()
    code = type(op).output_specs.__code__
    names = code.co_varnames[1 : code.co_argcount]
    return refuse_tensor(names[i] if i < len(names) else "x", x)


def _out(op: Op, inputs: tuple[Tensor, ...], source: Source) -> tuple[Spec, ...]:
    try:
        return op.output_specs(*(x.spec for x in inputs))
    except MeshtfError as error:
        if "from  " in str(error):
            raise
        came = "  ".join(f"{x.dtype} {x.shape!r}" for x in inputs)
        raise type(error)(
            explain_error(str(error), **{"inputs": came, "from": source})
        ) from None
