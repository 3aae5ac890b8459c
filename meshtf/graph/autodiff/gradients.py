"""Reverse-mode gradients: calls the gradient rules of ops from the last node to the
first.

A gradient rule applies ops, so the backward pass consists of nodes and is planned like
the forward pass. Two rules keep it legal under every layout: a tensor that a gradient
rule makes has a subset of the names of one tensor of the forward node, and takes that
tensor's placement (`Context.primals`). A cotangent has the dimensions of its tensor in
the same order, whatever order a rule returns it in: bodies of loops and TensorFlow
functions depend on the order.

    dw, = gradients([loss], [w])
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph.apply import apply_all, current_executor
from meshtf.graph.arguments import as_tensor, as_tensors, as_variables
from meshtf.graph.autodiff.cotangents import Cotangents
from meshtf.graph.autodiff.recomputation import (
    ControlDependency,
    recomputed_op,
    rule_on_recomputed,
)
from meshtf.graph.context import GradientRule, context, current
from meshtf.graph.op_kinds import GradientBarrier, ReadOp
from meshtf.graph.operators import OPERATORS
from meshtf.graph.recorder import latest
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import Source, has_gradient
from meshtf.names.arguments import as_sequence


def gradients(
    ys: Sequence[Tensor],
    xs: Sequence[Any],
    grad_ys: Sequence[Tensor | None] | None = None,
) -> list[Tensor | None]:
    """Returns the gradient of sum(ys) with respect to each x, a Tensor or a Variable;
    None if no y depends on it.

    Outside of functions it goes through functions that were called, unless they write
    variables. Inside of a function, tensors from outside are constants. In a layer of a
    `Repeat`, a variable of the layer means the entry of that layer.

    Args:
      ys: tensors of floats, or of complex numbers.
      xs: tensors or variables.
      grad_ys: the cotangent of each y, with its dimensions in any order; default: ones.

    Raises:
      ShapeError: a cotangent has other dimensions than its y.
      PlanError: an op between an x and a y has no gradient; or a y is of integers or
        booleans; or a function that was called between them writes variables, or needs
        one that was written since.
    """
    ys = as_tensors("ys", ys)
    xs = as_variables("xs", xs)
    _check_owners(ys)
    entries = current().layer_entries or {}
    xs = [entries.get(id(x), x) for x in xs]
    if grad_ys is None:
        cotangents: list[Tensor | None] = [None] * len(ys)
    else:
        cotangents = _as_cotangents(ys, grad_ys)
    return gradients_within(None, ys, xs, cotangents)


def _check_owners(ys: Sequence[Tensor]) -> None:
    """Raises PlanError for a tensor that another function, or the body of a loop or
    branch, recorded.
    """
    owners = set(_with_outer(current_executor()))
    for y in ys:
        if y.sharded_value is None and y.node.owner not in owners:
            raise PlanError(
                explain_error(
                    "a recorded tensor is used outside of the function, or the body of "
                    "a loop or branch, that made it, so it has no gradient here.",
                    tensor=repr(y),
                    **{"made by": y.node.source},
                    way_out="Return it from that function or body.",
                )
            )


def _as_cotangents(ys: Sequence[Tensor], grad_ys: Any) -> list[Tensor | None]:
    """Returns a user's `grad_ys` as tensors. Raises ArgumentError, PlanError."""
    cotangents = [
        None if dy is None else as_tensor("grad_ys", dy)
        for dy in as_sequence("grad_ys", grad_ys, "a list of tensors")
    ]
    if len(cotangents) != len(ys):
        raise PlanError(
            explain_error(
                f"there are {len(ys)} tensors, and {len(cotangents)} cotangents.",
                **{"from": Source.of_caller()},
                way_out="Give one for each of ys, None where it is ones.",
            )
        )
    return cotangents


def gradients_within(
    nodes: Collection[Node] | None,
    ys: Sequence[Tensor],
    xs: Sequence[Any],
    grad_ys: Sequence[Tensor | None],
    not_recomputed: Collection[Node] = (),
) -> list[Tensor | None]:
    """Returns gradients as `gradients` does, through a subset of the nodes.

    Args:
      nodes: those that gradients flow through; None: all.
      ys: floating tensors.
      xs: tensors or variables.
      grad_ys: the cotangent of each y; None: ones.
      not_recomputed: nodes whose outputs are used as they are, although they belong to a
        group that is recomputed.
    """
    backward = _BackwardPass(xs, not_recomputed)
    backward.find_nodes(ys, nodes)
    for y, dy in zip(ys, grad_ys, strict=True):
        if not has_gradient(y.dtype):
            raise PlanError(
                explain_error(
                    "only floating tensors have gradients.",
                    tensor=repr(y),
                    **{"made by": y.node.source},
                )
            )
        _check_cotangent(y, dy)
        with context(primals=(y,)):
            backward.cotangents.add(y, OPERATORS["ones_like"](y) if dy is None else dy)
    for node in reversed(backward.nodes):
        backward.step(node)
    return [backward.cotangent_of(x) for x in xs]


def _check_cotangent(y: Tensor, dy: Tensor | None) -> None:
    """Raises ShapeError if dy has other dimensions than y."""
    if dy is not None and set(dy.shape) != set(y.shape):
        raise ShapeError(
            explain_error(
                "a cotangent has the dimensions of its tensor, in any order.",
                tensor=repr(y.shape),
                cotangent=repr(dy.shape),
                **{"made by": y.node.source},
                way_out="Repeat it along names that it lacks: mtf.broadcast(dy, "
                "y.shape).",
            )
        )


def _with_outer(executor: Any) -> Iterator[Any]:
    """Yields an executor and the outer ones. Gradients in the body of a loop go through
    nodes outside of it as well.
    """
    while executor is not None:
        yield executor
        executor = getattr(executor, "outer", None)


def _differentiable_inputs(node: Node) -> Sequence[Tensor]:
    """Returns the tensors with respect to which a node has gradients: its inputs, or
    those of its custom gradient rule.
    """
    if isinstance(node.op, GradientBarrier):
        return ()
    if node.gradient_rule is not None:
        inputs: Sequence[Tensor] = node.gradient_rule.inputs
        return inputs
    return node.inputs


class _BackwardPass:
    """One backward pass: the cotangents so far, and the tensors that were recomputed.

    Attributes:
      targets: the ids of the tensors and variables to differentiate by.
      not_recomputed: see `gradients_within`.
      nodes: those between targets and results, in the order in which they ran.
      cotangents: of tensors, so far.
      recomputed: for each tensor of a recomputed node, the recomputed tensor.
      recomputed_groups: the groups whose nodes were recomputed.
      applied_rules: the custom gradient rules that were called: each is called once for
        all of its results.
      rule_results: for each custom gradient rule, those of its results that are used, by
        their indices.
      reads: the reads of each variable among the targets, by its id.
    """

    def __init__(
        self, targets: Sequence[Any], not_recomputed: Collection[Node]
    ) -> None:
        self.targets = {id(x) for x in targets}
        self.not_recomputed = not_recomputed
        self.nodes: list[Node] = []
        self.cotangents = Cotangents()
        self.recomputed: dict[Tensor, Tensor] = {}
        self.recomputed_groups: set[Any] = set()
        self.applied_rules: set[Any] = set()
        self.rule_results: dict[Any, dict[int, Tensor]] = {}
        self.reads: dict[int, list[Tensor]] = {}

    def find_nodes(
        self, ys: Sequence[Tensor], allowed: Collection[Node] | None
    ) -> None:
        """Finds the nodes between targets and ys, among those that are allowed (None:
        all).
        """
        ancestors = self._ancestors(ys, allowed)
        dependent: set[int] = set()  # serials of nodes that depend on targets
        for serial in sorted(ancestors):
            node = ancestors[serial]
            op = node.op
            if isinstance(op, ReadOp) and id(op.store) in self.targets:
                self.reads.setdefault(id(op.store), []).extend(node.outputs)
                dependent.add(serial)
            elif any(
                has_gradient(x.dtype) and self._depends_on_targets(x, dependent)
                for x in _differentiable_inputs(node)
            ):
                dependent.add(serial)
                self.nodes.append(node)
            if node.gradient_rule is not None:
                self._check_captures(node, node.gradient_rule, dependent)

    def _ancestors(
        self, ys: Sequence[Tensor], allowed: Collection[Node] | None
    ) -> dict[int, Node]:
        """Returns the nodes that ys depend on, by their serials."""
        owners = set(_with_outer(current_executor()))
        if allowed is None:
            allowed_serials = None
        else:
            allowed_serials = {n.serial for n in allowed}
        ancestors: dict[int, Node] = {}
        stack = list(ys)
        while stack:
            y = stack.pop()
            node = latest(y.node)
            if node.owner not in owners:
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

    def _depends_on_targets(self, x: Tensor, dependent: set[int]) -> bool:
        """Returns whether x is a target, or the output of a dependent node."""
        return id(x) in self.targets or x.node.serial in dependent

    def step(self, node: Node) -> None:
        """Calls the gradient rule of a node: adds to the cotangents of its inputs."""
        inputs = _differentiable_inputs(node)
        outputs = self._outputs(node)
        dys = [None if y is None else self.cotangents.get(y) for y in outputs]
        if all(dy is None for dy in dys) or node.gradient_rule in self.applied_rules:
            return
        if node.recompute_group is not None:
            self._recompute(node, next(dy for dy in dys if dy is not None))
        present = [y for y in outputs if y is not None]
        xs = [self.recomputed.get(x, x) for x in inputs]
        ys = [self.recomputed.get(y, y) for y in present]
        with context(primals=(*inputs, *present), region=node.region, stage=node.stage):
            dxs = self._apply_rule(node, dys, ys, xs)
            for x, dx in zip(inputs, dxs, strict=True):
                if dx is not None:
                    self.cotangents.add(x, dx)

    def _outputs(self, node: Node) -> Sequence[Tensor | None]:
        """Returns the outputs of a node, or the results of its custom gradient rule;
        None for those that are not used.
        """
        rule = node.gradient_rule
        if rule is None:
            return node.outputs
        results = self.rule_results[rule]
        return [results.get(k) for k in range(rule.num_results)]

    def cotangent_of(self, target: Any) -> Tensor | None:
        """Returns the cotangent of a target; of a variable, the sum over its reads."""
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
        """Returns the cotangents of inputs, by the custom gradient rule of a node or by
        that of its op.
        """
        if node.gradient_rule is not None:
            # Nodes of its other results come later in the forward pass, so all
            # cotangents are complete.
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
                    **{"from": node.source},
                    tensors=" ".join(repr(x.shape) for x in node.inputs),
                    way_out="Wrap its input in mtf.stop_gradient if none should flow.",
                )
            ) from None

    def _check_captures(
        self, node: Node, rule: GradientRule, dependent: set[int]
    ) -> None:
        """Raises PlanError if a function with a custom gradient captures a tensor that
        depends on targets: its rule covers only its arguments.
        """
        for x in rule.captures:
            if not self._depends_on_targets(x, dependent):
                continue
            op = x.node.op
            label = "a tensor"
            if isinstance(op, ReadOp):
                label = repr(op.store.name)
            raise PlanError(
                explain_error(
                    f"a function with its own gradient uses {label} from outside, "
                    "by which the gradient is wanted, too.",
                    tensor=repr(x.shape),
                    **{"from": node.source},
                    way_out="Pass it to the function as an argument, or wrap it in "
                    "mtf.stop_gradient there.",
                )
            )

    def _recompute(self, node: Node, dy: Tensor) -> None:
        """Computes the nodes of a node's group again, once; not before `dy` is known."""
        group = node.recompute_group
        if group in self.recomputed_groups:
            return
        self.recomputed_groups.add(group)
        dependency = ControlDependency(dy)
        outputs: set[Tensor] = set()
        rules: dict[GradientRule, GradientRule] = {}
        excluded = {n.serial for n in self.not_recomputed}
        for old in map(latest, group.nodes):
            if old.serial in excluded:
                continue
            xs = [self.recomputed.get(x, x) for x in old.inputs]
            # A node that reads a recomputed tensor waits for it already.
            waits = any(x in outputs for x in xs)
            with context(
                primals=old.outputs,
                region=old.region,
                stage=old.stage,
                recompute_group=None,
                wait_for=None if waits else dependency.at(old.stage),
                gradient_rule=self._recomputed_rule(old, rules),
            ):
                op = recomputed_op(old.op, self.recomputed)
                ys = apply_all(op, *xs, mesh=old.mesh)
            self.recomputed.update(zip(old.outputs, ys))
            outputs.update(ys)

    def _recomputed_rule(
        self, old: Node, rules: dict[GradientRule, GradientRule]
    ) -> tuple[GradientRule, int] | None:
        """Returns the custom gradient rule of a recomputed node, and the index of its
        result. `rules` caches the new rule of each old one.
        """
        rule = old.gradient_rule
        if rule is None:
            return None
        if rule not in rules:
            rules[rule] = rule_on_recomputed(rule, self.recomputed)
        return rules[rule], old.result_index
