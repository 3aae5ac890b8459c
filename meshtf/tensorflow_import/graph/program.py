"""The graph of a TensorFlow function as data: flat, static, and without assignments.

A `Program` is a list of nodes in their order of creation. Calls are inlined, every shape is
known, and each variable has a present value: reads return it, assignments replace it. So a
node only computes values from values, and what a run changes stands in `updates`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from meshtf.mesh import NO_CHANGES, Layout
from meshtf.names import Source


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """A tensor of the function.

    Attributes:
        shape: Its sizes. None for resources and variants, and where it is still unknown: no
            node that is read has such a shape.
        dtype: Its TensorFlow type.
        path: The name of the operation that makes it, with those of the calls around it.
        constant: Its elements, where they are known before the function runs.
        kind: "input", "variable" (the value on entry), "carried" (by a loop, or passed to a
            branch), "constant", or "" (made by a node).
        variable: The variable that it is the value of, or whose resource it is.
        items: Of a list of tensors: how many, and the shape of each, as far as they are known.
    """

    shape: Any
    dtype: tf.DType
    path: str = ""
    constant: Any = None
    kind: str = ""
    variable: Any = None
    items: Any = None

    @property
    def is_tensor(self) -> bool:
        """Whether it has elements: it is no resource and no list of tensors."""
        return self.dtype not in (tf.resource, tf.variant)


@dataclasses.dataclass(eq=False, slots=True)
class Body:
    """A function that a loop or a branch runs. Variables that it reads or assigns are among
    its inputs and outputs, as `variables` says: the last ones of both.
    """

    inputs: list[Value]
    outputs: list[Value]
    nodes: list[Node]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Section:
    """Operations of a function that belong together, such as those of one layer.

    Attributes:
        layer: The path of the layer, which reports name; "": none.
        layout: Changes of the mesh's layout, as in `mtf.layout`.
        recomputed: What the backward pass computes again, as in `mtf.recompute`: sections with
            the same object are computed again together. None: its tensors are kept.
        source: The user's line, of operations outside of layers; None: unknown.
        repeat: Of layers that a model repeats: the index of the group of layers, that of the call
            of them, and that of the layer. None: it is in none.
    """

    layer: str = ""
    layout: Layout = NO_CHANGES
    recomputed: object = None
    source: Source | None = None
    repeat: tuple[int, int, int] | None = None

    def within(self, outer: Section) -> Section:
        """Returns the section as one within another, whose settings it changes."""
        recomputed = outer.recomputed if self.recomputed is None else self.recomputed
        layout = outer.layout.then(self.layout)
        source = self.source or outer.source
        repeat = self.repeat or outer.repeat
        return Section(self.layer or outer.layer, layout, recomputed, source, repeat)


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """An operation: its kind ("MatMul"), values and attributes.

    `definition` is TensorFlow's description of the kind (`tf.Operation.op_def`), None for the
    few nodes that stand for no operation; `raw_attributes` are the attributes as TensorFlow's
    protocol messages. `bodies`: of loops ("cond", "body") and branches
    ("then_branch", "else_branch"). `section`: the one that it belongs to; None: in a body that
    of the loop or branch, else there is none.
    """

    kind: str
    inputs: list[Value]
    outputs: list[Value]
    attributes: dict[str, Any]
    path: str
    definition: Any = None
    raw_attributes: Any = None
    bodies: dict[str, Body] = dataclasses.field(default_factory=dict)
    section: Section | None = None

    def enclose(self, section: Section) -> None:
        """Makes the node one of a section, around the one that it belongs to."""
        inner = self.section
        self.section = section if inner is None else inner.within(section)


@dataclasses.dataclass(eq=False)
class Mark:
    """Tensors in a graph that stand for the gradients of a loss. They become the outputs of a
    node "Gradients", whose inputs are the loss, the sources and the constants.

    Attributes:
        loss: A scalar.
        gradients: The tensors.
        sources: By what each is the gradient: tensors or variables.
        constants: Tensors that the gradient does not flow beyond.
    """

    loss: tf.Tensor
    gradients: list[tf.Tensor] = dataclasses.field(default_factory=list)
    sources: list[Any] = dataclasses.field(default_factory=list)
    constants: list[tf.Tensor] = dataclasses.field(default_factory=list)

    def add(self, source: Any) -> tf.Tensor:
        """Returns a tensor that stands for the gradient by a tensor or variable."""
        gradient = tf.identity(tf.zeros(source.shape, source.dtype))
        self.gradients.append(gradient)
        self.sources.append(source)
        return gradient


@dataclasses.dataclass(eq=False)
class Program:
    """A function of `inputs` and of the variables in `on_entry`.

    Attributes:
        inputs: Values of its arguments.
        outputs: What it returns.
        nodes: In an order in which they can run.
        on_entry: By the variable's identity, its value when the function starts.
        updates: By the variable's identity, its value when the function ends, if that is
            another one.
    """

    inputs: list[Value]
    outputs: list[Value]
    nodes: list[Node]
    on_entry: dict[int, Value]
    updates: dict[int, Value]

    def differentiated_variables(self) -> set[int]:
        """Returns identities of the variables by which gradients are taken."""
        sources = [v for n in self.nodes if n.kind == "Gradients" for v in n.inputs]
        return {id(v.variable) for v in sources if v.kind == "variable"}

    def all_nodes(self, nodes: list[Node] | None = None) -> Iterator[Node]:
        """Yields all nodes, those of bodies after the loop or branch."""
        for node in self.nodes if nodes is None else nodes:
            yield node
            for body in node.bodies.values():
                yield from self.all_nodes(body.nodes)


# By the name of a function's graph, and that of an operation, the section that it belongs to.
Sections = Mapping[str, Mapping[str, Section]]


@dataclasses.dataclass(frozen=True)
class Repeat:
    """Operations that run again with another gradient and other variables.

    Attributes:
        begin: The index of the first one in the graph.
        end: One more than the index of the last one.
        gradient: The reference of the gradient's tensor, which is another one.
        variables: By identity of a variable, the one in its place.
    """

    begin: int
    end: int
    gradient: Any
    variables: Mapping[int, Any]
