"""Reverse-mode gradients: calls the gradient rules of ops, from the last node to the first.

    dw, = gradients([loss], [w])

A gradient rule applies ops, so the backward pass consists of nodes and is planned like
the forward pass. Two conventions hold under every layout:

- A tensor that a gradient rule computes has a subset of the dimensions of one tensor of the
  forward node, and takes that tensor's placement (`Context.primals`).
- A cotangent has the dimensions of its tensor in the same order, whatever the order in
  which a rule returns them: bodies of loops and TensorFlow functions depend on the order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from meshtf.errors import PlanError, explain_error
from meshtf.graph.apply import apply_all, current_executor
from meshtf.graph.arguments import as_tensors, as_variables
from meshtf.graph.autodiff.arguments import (
    as_cotangents,
    check_cotangent,
    check_owners,
    with_outer,
)
from meshtf.graph.autodiff.cotangents import Cotangents
from meshtf.graph.autodiff.recomputation import (
    ControlDependency,
    recomputed_op,
    rule_on_recomputed,
)
from meshtf.graph.context import GradientRule, context, current
from meshtf.graph.op_kinds import GradientBarrier, ReadOp
from meshtf.graph.operators import OPERATORS  # functions of `meshtf.ops`
from meshtf.graph.recorder import latest_version
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import has_gradient


def gradients(
    ys: Sequence[Tensor],
    xs: Sequence[Any],
    grad_ys: Sequence[Tensor | None] | None = None,
) -> list[Tensor | None]:
    """Returns the gradient of sum(ys) with respect to each x; None if no y depends on x.

    Called outside of a `mtf.function`, gradients flow through calls of functions, unless
    these write variables. Called inside of a function, tensors from outside of it are
    constants. In a layer of a `Repeat`, the gradient of a variable is that of the layer's
    entry of the variable.

    Args:
      ys: tensors of floats or complex numbers.
      xs: tensors or variables.
      grad_ys: the cotangent of each y, with the dimensions of y in any order; None: ones.

    Raises:
      ShapeError: a cotangent has other dimensions than its y.
      PlanError: an op between an x and a y has no gradient; or a y has integers or
        booleans; or a function between an x and a y writes variables, or reads a variable
        that was written after the call.
    """
    return gradients_up_to((), ys, xs, grad_ys)


def gradients_up_to(
    inputs: Sequence[Tensor],
    ys: Sequence[Tensor],
    xs: Sequence[Any],
    grad_ys: Sequence[Tensor | None] | None = None,
) -> list[Tensor | None]:
    """As `gradients`, but the gradients do not flow beyond `inputs`. (Theirs do.)"""
    ys = as_tensors("ys", ys)
    xs = as_variables("xs", xs)
    check_owners(ys)
    # In a layer of a `Repeat`: variable id -> the layer's entry of the variable.
    layer_entries = current().layer_entries or {}
    xs = [layer_entries.get(id(x), x) for x in xs]
    if grad_ys is None:
        cotangents: list[Tensor | None] = [None] * len(ys)
    else:
        cotangents = as_cotangents(ys, grad_ys)
    return gradients_within(None, ys, xs, cotangents, inputs=inputs)


def gradients_within(
    nodes: Collection[Node] | None,
    ys: Sequence[Tensor],
    xs: Sequence[Any],
    grad_ys: Sequence[Tensor | None],
    not_recomputed: Collection[Node] = (),
    inputs: Sequence[Tensor] = (),
) -> list[Tensor | None]:
    """Returns the gradient of sum(ys) with respect to each x, through a subset of the nodes.

    Args:
      nodes: the nodes that gradients flow through; None: all nodes.
      ys: floating tensors.
      xs: tensors or variables.
      grad_ys: the cotangent of each y; None: ones.
      not_recomputed: nodes whose outputs are read, not recomputed, although they belong to
        a group of `mtf.recompute`.
      inputs: tensors that gradients do not flow beyond, to what they are computed from.
        (Gradients of the results do.)
    """
    backward = _BackwardPass(xs, not_recomputed, inputs)
    backward.find_nodes(ys, allowed=nodes)
    for y, dy in zip(ys, grad_ys, strict=True):
        check_cotangent(y, dy)
        with context(primals=(y,)):
            if dy is None:
                dy = OPERATORS["ones_like"](y)
            backward.cotangents.add(y, dy)
    for node in reversed(backward.nodes):
        backward.step(node)
    return [backward.cotangent_of(x) for x in xs]


def _differentiable_inputs(node: Node) -> Sequence[Tensor]:
    """Returns the tensors that a node passes gradients to: its inputs, or the inputs of its
    custom gradient rule.
    """
    if isinstance(node.op, GradientBarrier):
        return ()
    if node.gradient_rule is not None:
        inputs: Sequence[Tensor] = node.gradient_rule.inputs
        return inputs
    return node.inputs


class _BackwardPass:
    """The state of one backward pass.

    The serial of a node is a number that increases in the order in which nodes are applied.

    Args:
      targets: the tensors and variables to differentiate by.
      not_recomputed: nodes whose outputs are read, not recomputed.
      inputs: tensors that gradients do not flow beyond.

    Attributes:
      target_ids: Python's ids of the targets.
      nodes: the nodes between targets and ys, in the order in which they were applied.
      cotangents: the cotangents of tensors so far.
      recomputed: for each output of a recomputed node, the recomputed tensor.
      recomputed_groups: the groups of `mtf.recompute` that were recomputed so far.
      applied_rules: the custom gradient rules that were called so far: a rule is called
        once for all results of its function.
      rule_results: for each custom gradient rule, the results of its function that ys
        depend on, by their indices.
      reads: for each variable among the targets, by its id, the tensors that read it.
      dependent: the serials of the nodes that depend on targets.
    """

    def __init__(
        self,
        targets: Sequence[Any],
        not_recomputed: Collection[Node],
        inputs: Sequence[Tensor],
    ) -> None:
        self.target_ids = {id(x) for x in targets}
        self.input_ids = {id(x) for x in inputs}
        self.not_recomputed = not_recomputed
        self.nodes: list[Node] = []
        self.cotangents = Cotangents()
        self.recomputed: dict[Tensor, Tensor] = {}
        self.recomputed_groups: set[Any] = set()
        self.applied_rules: set[Any] = set()
        self.rule_results: dict[Any, dict[int, Tensor]] = {}
        self.reads: dict[int, list[Tensor]] = {}
        self.dependent: set[int] = set()

    def find_nodes(
        self, ys: Sequence[Tensor], allowed: Collection[Node] | None
    ) -> None:
        """Collects `nodes` and `reads`: the nodes between targets and ys.

        Args:
          ys: the tensors to differentiate.
          allowed: the nodes that gradients flow through; None: all nodes.
        """
        ancestors = self._ancestors(ys, allowed)
        # In the order in which the nodes were applied: inputs come before outputs.
        for serial in sorted(ancestors):
            node = ancestors[serial]
            op = node.op
            if isinstance(op, ReadOp) and id(op.store) in self.target_ids:
                self.reads.setdefault(id(op.store), []).extend(node.outputs)
                self.dependent.add(serial)
            elif self._passes_gradients(node):
                self.dependent.add(serial)
                self.nodes.append(node)
            if node.gradient_rule is not None:
                self._check_captures(node, node.gradient_rule)

    def _ancestors(
        self, ys: Sequence[Tensor], allowed: Collection[Node] | None
    ) -> dict[int, Node]:
        """Returns the nodes that ys depend on, by serial, and collects `rule_results`.

        Args:
          ys: the tensors to differentiate.
          allowed: the nodes that gradients flow through; None: all nodes.
        """
        # Gradients flow through nodes of the current executor and of the outer ones.
        owners = set(with_outer(current_executor()))
        # Serials, since `Graph.replace` replaces a node by one of the same serial.
        allowed_serials = None
        if allowed is not None:
            allowed_serials = {node.serial for node in allowed}
        ancestors: dict[int, Node] = {}
        stack = list(ys)
        while stack:
            y = stack.pop()
            node = latest_version(y.node)
            if node.owner not in owners or id(y) in self.input_ids:
                continue
            if allowed_serials is not None and node.serial not in allowed_serials:
                continue
            rule = node.gradient_rule
            if rule is not None:
                self.rule_results.setdefault(rule, {})[node.result_index] = y
            if node.serial not in ancestors:
                ancestors[node.serial] = node
                stack.extend(_differentiable_inputs(node))
                if rule is not None:
                    stack.extend(rule.captures)
        return ancestors

    def _passes_gradients(self, node: Node) -> bool:
        """Returns whether a node has a differentiable input that depends on targets."""
        return any(
            has_gradient(x.dtype) and self._depends_on_targets(x)
            for x in _differentiable_inputs(node)
        )

    def _depends_on_targets(self, x: Tensor) -> bool:
        """Returns whether x is a target, or an output of a node in `dependent`."""
        return id(x) in self.target_ids or x.node.serial in self.dependent

    def step(self, node: Node) -> None:
        """Calls the gradient rule of a node, and adds the results to the cotangents of the
        node's inputs.
        """
        inputs = _differentiable_inputs(node)
        outputs = self._outputs(node)
        dys = [None if y is None else self.cotangents.get(y) for y in outputs]
        if all(dy is None for dy in dys) or node.gradient_rule in self.applied_rules:
            return
        group = node.recompute_group
        if group is not None and not group.in_loops:
            first_dy = next(dy for dy in dys if dy is not None)
            self._recompute(node, first_dy)
        present_outputs = [y for y in outputs if y is not None]
        # The rule reads recomputed tensors instead of those of the forward pass.
        xs = [self.recomputed.get(x, x) for x in inputs]
        ys = [self.recomputed.get(y, y) for y in present_outputs]
        with context(
            primals=(*inputs, *present_outputs),
            needs_cotangent=tuple(map(self._depends_on_targets, inputs)),
            region=node.region,
            stage=node.stage,
        ):
            dxs = self._apply_rule(node, dys=dys, ys=ys, xs=xs)
            for x, dx in zip(inputs, dxs, strict=True):
                if dx is not None:
                    self.cotangents.add(x, dx)

    def _outputs(self, node: Node) -> Sequence[Tensor | None]:
        """Returns the outputs of a node. If the node computes a result of a function with a
        custom gradient rule: all results of the function, with None for those that ys do
        not depend on.
        """
        rule = node.gradient_rule
        if rule is None:
            return node.outputs
        results = self.rule_results[rule]
        return [results.get(i) for i in range(rule.num_results)]

    def cotangent_of(self, target: Any) -> Tensor | None:
        """Returns the cotangent of a target; for a variable, the sum over its reads."""
        if isinstance(target, Tensor):
            return self.cotangents.get(target)
        reads = self.reads.get(id(target), [])
        total = Cotangents()
        for read in reads:
            dx = self.cotangents.get(read)
            if dx is not None:
                total.add(reads[0], dx)
        return total.get(reads[0]) if reads else None

    def _apply_rule(
        self, node: Node, dys: list[Any], ys: list[Tensor], xs: list[Tensor]
    ) -> list[Any]:
        """Returns the cotangents of a node's inputs.

        Args:
          node: the node, whose op or custom gradient rule is called.
          dys: the cotangents of the outputs; None: zero.
          ys: the outputs.
          xs: the inputs.
        """
        if node.gradient_rule is not None:
            # Nodes that use a result come after the nodes that compute the results, so the
            # backward pass has visited all of them: the cotangents are complete.
            self.applied_rules.add(node.gradient_rule)
            with context(substitutes=self.recomputed):
                return list(node.gradient_rule.gradient(dys))
        try:
            if len(node.outputs) > 1:
                return node.op.gradient(tuple(dys), tuple(ys), *xs)
            return node.op.gradient(dys[0], ys[0], *xs)
        except NotImplementedError:
            raise PlanError(
                explain_error(
                    f"{node.op.display_name} has no gradient.",
                    source=node.source,
                    tensors=" ".join(repr(x.shape) for x in node.inputs),
                    way_out="Wrap its input in mtf.stop_gradient if none should flow.",
                )
            ) from None

    def _check_captures(self, node: Node, rule: GradientRule) -> None:
        """Raises PlanError if a function with a custom gradient rule captures a tensor that
        depends on targets: the rule returns cotangents of arguments only.
        """
        for x in rule.captures:
            if not self._depends_on_targets(x):
                continue
            op = x.node.op
            label = "a tensor"
            if isinstance(op, ReadOp):
                label = repr(op.store.name)
            raise PlanError(
                explain_error(
                    f"a function with its own gradient uses {label} from outside, and the "
                    "gradient with respect to it is wanted, too.",
                    tensor=repr(x.shape),
                    source=node.source,
                    way_out="Pass it to the function as an argument, or wrap it in "
                    "mtf.stop_gradient there.",
                )
            )

    def _recompute(self, node: Node, dy: Tensor) -> None:
        """Applies the ops of a node's group of `mtf.recompute` again, unless that was done
        in this backward pass.

        Args:
          node: a node of the group.
          dy: the cotangent of an output of the node; the new nodes wait for it.
        """
        group = node.recompute_group
        if group in self.recomputed_groups:
            return
        self.recomputed_groups.add(group)
        dependency = ControlDependency(dy)
        outputs: set[Tensor] = set()
        rules: dict[GradientRule, GradientRule] = {}
        excluded_serials = {
            excluded_node.serial for excluded_node in self.not_recomputed
        }
        for forward_node in map(latest_version, group.nodes):
            if forward_node.serial in excluded_serials:
                continue
            xs = [self.recomputed.get(x, x) for x in forward_node.inputs]
            # A node that reads a recomputed tensor runs after it, which makes it wait.
            waits = any(x in outputs for x in xs)
            with context(
                primals=forward_node.outputs,
                region=forward_node.region,
                stage=forward_node.stage,
                recompute_group=None,
                wait_for=None if waits else dependency.at(forward_node.stage),
                gradient_rule=self._recomputed_rule(forward_node, rules),
            ):
                op = recomputed_op(forward_node.op, self.recomputed)
                ys = apply_all(op, *xs, mesh=forward_node.mesh)
            self.recomputed.update(zip(forward_node.outputs, ys))
            outputs.update(ys)

    def _recomputed_rule(
        self, forward_node: Node, rules: dict[GradientRule, GradientRule]
    ) -> tuple[GradientRule, int] | None:
        """Returns the custom gradient rule on recomputed tensors, and the index of the
        result that a node computes; None: the node has no such rule.

        Args:
          forward_node: the node of the forward pass.
          rules: for each rule of the forward pass, the rule on recomputed tensors; filled
            here, so that all results of a function share one rule.
        """
        rule = forward_node.gradient_rule
        if rule is None:
            return None
        if rule not in rules:
            rules[rule] = rule_on_recomputed(rule, self.recomputed)
        return rules[rule], forward_node.result_index
