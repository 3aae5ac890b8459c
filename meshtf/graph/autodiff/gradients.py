"""Reverse-mode gradients: the rules of the ops, walked backwards.

A rule's ops are nodes like all others, so the backward pass is planned like the forward
pass. Two rules keep it legal under every layout: what a gradient rule makes has names
of one tensor of the forward node, and takes that tensor's state (`Context.primals`). A
cotangent has the dimensions of its tensor in the same order, whatever order a rule
returns it in: bodies of loops and functions of TensorFlow's own go by the order.

    dw, = gradients([loss], [w])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph.apply import apply_all, current_executor
from meshtf.graph.arguments import as_tensor, as_tensors, as_variables
from meshtf.graph.autodiff.cotangents import Cotangents
from meshtf.graph.context import context, current
from meshtf.graph.op import Op
from meshtf.graph.op_kinds import GradientBarrier, ReadOp
from meshtf.graph.operators import OPERATORS
from meshtf.graph.recorder import Rule, latest
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import Source, has_gradient
from meshtf.names.arguments import as_sequence


def gradients(
    ys: Sequence[Tensor],
    xs: Sequence[Any],
    grad_ys: Sequence[Tensor | None] | None = None,
) -> list[Tensor | None]:
    """Returns the gradient of sum(ys) to each x: a Tensor or a Variable; None if
    unconnected.

    Outside of functions it goes through functions that were called, unless they write
    variables. Inside of a function, tensors from outside are constants. In a layer of a
    `Repeat`, a variable of the layer stands for its own entry.

    Args:
      ys: tensors of floats, or of complex numbers.
      xs: tensors or variables.
      grad_ys: the cotangent of each y, with its dimensions in any order; default: ones.

    Raises:
      ShapeError: a cotangent has other dimensions than its y.
      PlanError: an op on the way has no gradient, or a y is of integers or truth
        values; or a called function on the way writes variables, or needs one that was
        written since.
    """
    ys, xs = as_tensors("ys", ys), as_variables("xs", xs)
    _check_own(ys)
    entries = (
        current().rows or {}
    )  # of variables of a Repeat, in a layer: their values there
    xs = [entries.get(id(x), x) for x in xs]
    if grad_ys is not None:
        grad_ys = _cotangents(ys, grad_ys)
    return gradients_within(
        None, ys, xs, [None] * len(ys) if grad_ys is None else grad_ys
    )


def _check_own(ys: Sequence[Tensor]) -> None:
    """Refuses what another function, or the body of a loop or branch, recorded. Raises
    PlanError.
    """
    owners = set(_around(current_executor()))
    for y in ys:
        if y.held is None and y.node.owner not in owners:
            raise PlanError(
                explain_error(
                    "a recorded tensor is used outside of the function, or the body of "
                    "a loop or branch, that made it, so it has no gradient here.",
                    tensor=repr(y),
                    **{"made by": y.node.source},
                    way_out="Return it from that function or body.",
                )
            )


def _cotangents(ys: Sequence[Tensor], grad_ys: Any) -> list[Tensor | None]:
    """Returns the cotangents that a user gave. Raises ArgumentError, PlanError."""
    found = [
        None if dy is None else as_tensor("grad_ys", dy)
        for dy in as_sequence("grad_ys", grad_ys, "a list of tensors")
    ]
    if len(found) != len(ys):
        raise PlanError(
            explain_error(
                f"there are {len(ys)} tensors, and {len(found)} cotangents.",
                **{"from": Source.of_caller()},
                way_out="Give one for each of ys, None where it is ones.",
            )
        )
    return found


def gradients_within(
    nodes: Collection[Node] | None,
    ys: Sequence[Tensor],
    xs: Sequence[Any],
    grad_ys: Sequence[Tensor | None],
    same: Collection[Node] = (),
) -> list[Tensor | None]:
    """Returns gradients as `gradients` does, through some nodes only (None: through
    all).

    Those of `same` are not computed again, even if they are recomputed otherwise.
    """
    backward = _Backward(xs, same)
    backward.walk(ys, nodes)
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
    return [backward.of(x) for x in xs]


def _check_cotangent(y: Tensor, dy: Tensor | None) -> None:
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


def _around(executor: Any) -> Iterator[Any]:
    """Yields an executor, and those around it: in the body of a loop, tensors from
    outside count.
    """
    while executor is not None:
        yield executor
        executor = getattr(executor, "around", None)


def _sources(node: Node) -> Sequence[Tensor]:
    """Returns the tensors by which a node has gradients."""
    inputs: Sequence[Tensor] = (node.rule or node).inputs
    return () if isinstance(node.op, GradientBarrier) else inputs


class _Backward:
    """The state of one backward walk: cotangents so far, and nodes computed again."""

    def __init__(self, xs: Sequence[Any], same: Collection[Node]) -> None:
        self.targets, self.same = {id(x) for x in xs}, same
        self.nodes: list[Node] = []  # between xs and ys, in the order they ran
        self.cotangents = Cotangents()
        self.again: dict[Tensor, Tensor] = {}  # tensor -> the same, computed once more
        self.replayed: set[Any] = set()
        self.ruled: set[Any] = set()  # users' own gradients that were called
        # Users' own gradients -> their results that are used, by which result it is.
        self.results: dict[Any, dict[int, Tensor]] = {}
        self.reads: dict[int, list[Tensor]] = {}  # variable -> its reads

    def walk(self, ys: Sequence[Tensor], among: Collection[Node] | None) -> None:
        """Finds the nodes between targets and ys."""
        owners = set(_around(current_executor()))
        allowed = None if among is None else {node.serial for node in among}
        found: dict[int, Node] = {}
        stack = list(ys)
        while stack:
            y = stack.pop()
            node = latest(y.node)
            if node.owner not in owners:
                continue
            if allowed is not None and node.serial not in allowed:
                continue
            if node.rule is not None:
                self.results.setdefault(node.rule, {})[node.rule_index] = y
            if node.serial not in found:
                found[node.serial] = node
                stack.extend(_sources(node))
                stack.extend(node.rule.captures if node.rule else ())
        reaching: set[int] = set()  # serials of nodes
        for serial in sorted(found):
            node = found[serial]
            if isinstance(node.op, ReadOp) and id(node.op.store) in self.targets:
                self.reads.setdefault(id(node.op.store), []).extend(node.outputs)
                reaching.add(serial)
            elif any(
                has_gradient(x.dtype)
                and (id(x) in self.targets or x.node.serial in reaching)
                for x in _sources(node)
            ):
                reaching.add(serial)
                self.nodes.append(node)
            if node.rule is not None:
                self._check_captures(node, reaching)

    def step(self, node: Node) -> None:
        """Turns cotangents of a node's outputs into cotangents of its inputs."""
        inputs, outputs = _sources(node), self._outputs(node)
        dys = [None if y is None else self.cotangents.get(y) for y in outputs]
        if all(dy is None for dy in dys) or node.rule in self.ruled:
            return
        if node.group is not None:
            self._replay(node, next(dy for dy in dys if dy is not None))
        xs = [self.again.get(x, x) for x in inputs]
        present = [y for y in outputs if y is not None]
        ys = [self.again.get(y, y) for y in present]
        with context(primals=(*inputs, *present), region=node.region, stage=node.stage):
            for x, dx in zip(inputs, self._rule(node, dys, ys, xs), strict=True):
                if dx is not None:
                    self.cotangents.add(x, dx)

    def _outputs(self, node: Node) -> Sequence[Tensor | None]:
        """Returns what a node made, or the results of its rule that are used."""
        if node.rule is None:
            return node.outputs
        results = self.results[node.rule]
        return [results.get(k) for k in range(node.rule.count)]

    def of(self, x: Any) -> Tensor | None:
        """Returns the cotangent of a target."""
        if isinstance(x, Tensor):
            return self.cotangents.get(x)
        reads = self.reads.get(id(x), [])
        total = Cotangents()
        for read in reads:
            dx = self.cotangents.get(read)
            if dx is not None:
                total.add(reads[0], dx)
        return total.get(reads[0]) if reads else None

    def _rule(
        self, node: Node, dys: list[Any], ys: list[Tensor], xs: list[Tensor]
    ) -> list[Any]:
        if (
            node.rule is not None
        ):  # its other outputs came later: their cotangents are there
            self.ruled.add(node.rule)
            with context(instead=self.again):
                return list(node.rule.gradient(dys))
        many = len(node.outputs) > 1
        try:
            return node.op.gradient(
                tuple(dys) if many else dys[0], tuple(ys) if many else ys[0], *xs
            )
        except NotImplementedError:
            raise PlanError(
                explain_error(
                    f"{node.op.display_name} has no gradient.",
                    **{"from": node.source},
                    tensors=" ".join(repr(x.shape) for x in node.inputs),
                    way_out="Wrap its input in mtf.stop_gradient if none should flow.",
                )
            ) from None

    def _check_captures(self, node: Node, reaching: set[int]) -> None:
        """Refuses a user's own gradient which would miss a target, since it is not by
        that.
        """
        for x in node.rule.captures:
            if id(x) in self.targets or x.node.serial in reaching:
                op = x.node.op
                what = repr(op.store.name) if isinstance(op, ReadOp) else "a tensor"
                raise PlanError(
                    explain_error(
                        f"a function with its own gradient uses {what} from outside, "
                        "by which the gradient is wanted, too.",
                        tensor=repr(x.shape),
                        **{"from": node.source},
                        way_out="Pass it to the function as an argument, or wrap it in "
                        "mtf.stop_gradient there.",
                    )
                )

    def _replay(self, node: Node, dy: Tensor) -> None:
        """Computes the nodes of a recomputed group again, not before `dy` is there."""
        if node.group in self.replayed:
            return
        self.replayed.add(node.group)
        arrival = _Arrival(dy)
        made: set[Tensor] = set()
        rules: dict[Rule, Rule] = {}
        same = {n.serial for n in self.same}
        for old in map(latest, node.group.nodes):
            if old.serial in same:
                continue
            xs = [self.again.get(x, x) for x in old.inputs]
            after = None if any(x in made for x in xs) else arrival.at(old.stage)
            with context(
                primals=old.outputs,
                region=old.region,
                stage=old.stage,
                group=None,
                after=after,
                rule=self._second_rule(old, rules),
            ):
                ys = apply_all(_following(old.op, self.again), *xs, mesh=old.mesh)
            self.again.update(zip(old.outputs, ys))
            made.update(ys)

    def _second_rule(
        self, old: Node, rules: dict[Rule, Rule]
    ) -> tuple[Rule, int] | None:
        """Returns what the second run of a node has for a rule; rules are made once."""
        if old.rule is None:
            return None
        if old.rule not in rules:
            rules[old.rule] = _second_run(old.rule, self.again)
        return rules[old.rule], old.rule_index


class _Arrival:
    """What nodes at any stage wait for until a cotangent is there."""

    def __init__(self, dy: Tensor) -> None:
        self.dy = dy
        self.token: Tensor | None = None

    def at(self, stage: int | None) -> Tensor | None:
        """Returns the tensor that nodes of a stage wait for: the cotangent, or in its
        place a scalar that is cheap to send; None in eager mode, where the cotangent is
        there."""
        dy, mesh = self.dy, self.dy.mesh
        if dy.held is not None:
            return None
        if (
            mesh is None
            or mesh.axes.get(mesh.stages, 1) == 1
            or stage is not None
            and (stage == dy.node.stage)
        ):
            return dy
        if self.token is None:
            with context(primals=(dy,), stage=dy.node.stage, group=None, after=None):
                self.token = OPERATORS["ordering_token"](dy)
        return self.token


def _following(op: Op, again: Mapping[Tensor, Tensor]) -> Op:
    """Returns an op for a second run: a call then follows the second runs of what it
    followed.
    """
    follows = getattr(op, "follows", ())
    return (
        dataclasses.replace(  # type: ignore[type-var]
            op, follows=tuple(again.get(x, x) for x in follows)
        )
        if follows
        else op
    )


def _second_run(rule: Rule, again: Mapping[Tensor, Tensor]) -> Rule:
    """Returns a user's own gradient of what was computed again, for gradients of
    gradients.
    """

    def gradient(dys: Sequence[Any]) -> Sequence[Any]:
        outer = current().instead or {}
        with context(
            instead={**outer, **{x: outer.get(y, y) for x, y in again.items()}}
        ):
            return rule.gradient(dys)

    inputs, captures, beside = (
        tuple(again.get(x, x) for x in xs)
        for xs in (rule.inputs, rule.captures, rule.beside)
    )
    return Rule(inputs, captures, rule.count, beside, gradient)
