"""Loops and branches: their bodies planned, with what is known of the tensors around them.

States of a loop are where the layout puts them, so one plan of the body serves all turns. Sums from
outside are finished before. What no turn changes (a cast of a weight, its gathering) is computed
before the loop; what turns add up stays unfinished until after it. So does what calls add up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from meshtf.graph import Body, Branch, Call, Loop, Node, Tensor
from meshtf.mesh import At, Pending, Placement, Split, Whole
from meshtf.mesh.state import finished
from meshtf.names import Dimension
from meshtf.partition.plan import final, plan_node
from meshtf.partition.steps import (
  BranchStep,
  CallStep,
  Compute,
  LoopStep,
  MoveStep,
  Program,
  Put,
  Step,
  Value,
  makes,
  needs,
  reads,
)
from meshtf.partition.waiting import restaged

if TYPE_CHECKING:
  from meshtf.partition.program import Builder


def add(builder: Builder, node: Node) -> None:
  """Plans a loop or branch and writes its step."""
  if isinstance(node.op, Branch):
    _branch(builder, node, node.op)
  elif isinstance(node.op, Call):
    _call(builder, node, node.op)
  else:
    assert isinstance(node.op, Loop)
    _loop(builder, node, node.op)


def _loop(builder: Builder, node: Node, op: Loop) -> None:
  wishes = [builder.wish(node, y) for y in node.outputs[:op.states]]
  starts = [builder.bring(x, p, node) for x, p in zip(node.inputs, wishes)]
  walked = [builder.bring(x, _without(builder.state(x), op.dim), node)
            for x in node.inputs[op.states:op.states + op.rows]]
  turn, *formal = op.body.arguments
  given = [Value(x.spec, p) for x, p in zip(formal, (*wishes, *(v.placement for v in walked)))]
  turned = Value(turn.spec, builder.mesh.whole)
  captures = node.inputs[op.states + op.rows:]
  body = _program(builder, node, op.body, [turned, *given], captures)
  results = _results(body, node, op, wishes)
  inner, tested = Program(builder.mesh, body.steps, results), None
  if op.test is not None:
    test = _program(builder, node, op.test, [turned, *given[:op.states]],
                    captures[len(op.body.captures):])
    goes_on = test.bring(op.test.results[0], builder.mesh.whole, node)
    tested = Program(builder.mesh, test.steps, [goes_on])
  varies = {turned, *given}
  for program in (inner, tested):
    if program is not None:
      builder.steps += _take_out(program, varies)
  outs = tuple(Value(y.spec, v.placement) for y, v in zip(node.outputs, inner.results))
  builder.steps.append(LoopStep(
      node, inner, tested, turned, tuple(given[:op.states]), tuple(given[op.states:]),
      tuple(starts), tuple(walked), _taken([inner, tested], varies), outs,
      builder.waiting.before(node)))
  _made(builder, node, outs)


def _results(body: Builder, node: Node, op: Loop, wishes: Sequence[Placement]) -> list[Value]:
  """Returns states where they started, sums and what is stacked where the planner leaves them.

  They are moved for the loop, `node`: those that made them in the body ran before.
  """
  states, others = op.body.results[:op.states], op.body.results[op.states:]
  found = [body.bring(x, p, node) for x, p in zip(states, wishes)]
  for i, x in enumerate(others):
    place = body.state(x)
    if i < op.sums and any(isinstance(s, Pending) and s.kind != "sum" for s in place):
      place = finished(place)
    found.append(body.bring(x, place, node))
  return found


def _branch(builder: Builder, node: Node, op: Branch) -> None:
  predicate = builder.bring(node.inputs[0], builder.mesh.whole, node)
  wishes = [builder.wish(node, y) for y in node.outputs]
  programs = []
  for body, captures in zip((op.then, op.otherwise), op.captures(node.inputs)):
    inner = _program(builder, node, body, [], captures)
    results = [inner.bring(x, p, node) for x, p in zip(body.results, wishes)]
    programs.append(Program(builder.mesh, inner.steps, results))
  outs = tuple(Value(y.spec, p) for y, p in zip(node.outputs, wishes))
  builder.steps.append(BranchStep(node, predicate, (programs[0], programs[1]),
                                  _taken(programs, set()), outs, builder.waiting.before(node)))
  _made(builder, node, outs)


class Called(NamedTuple):
  """A body as it was planned at its first call."""

  body: Program
  given: tuple[Value, ...]
  taken: tuple[Value, ...]


def _call(builder: Builder, node: Node, op: Call) -> None:
  """Later calls bring their arguments to where the first one's were."""
  arguments = node.inputs[:len(op.body.arguments)]
  if op.body not in builder.called:
    builder.called[op.body] = _first_call(builder, node, op)
  called = builder.called[op.body]
  passed = tuple(_passed(builder, x, v.placement, node) for x, v in zip(arguments, called.given))
  outs = tuple(Value(y.spec, v.placement) for y, v in zip(node.outputs, called.body.results))
  follows = [v for x in op.follows if x in builder.versions for v in builder.versions[x].values()]
  after = builder.waiting.before(node)
  builder.steps.append(CallStep(node, called.body, called.given, passed, called.taken, outs,
                                (*follows, *([] if after is None else [after]))))
  _made(builder, node, outs)


def _first_call(builder: Builder, node: Node, op: Call) -> Called:
  stage = builder.stage(node)
  places = {inside: restaged(builder.mesh, finished(builder.state(x)), stage)
            for x, inside in zip(node.inputs, op.body.arguments)}
  captures = node.inputs[len(op.body.arguments):]

  def planned() -> tuple[list[Value], Builder]:
    given = [Value(inside.spec, place) for inside, place in places.items()]
    return given, _program(builder, node, op.body, given, captures)
  given, inner = planned()
  sums = _sums(inner, op.body, {inside for x, inside in zip(node.inputs, places)
                                if x.node.op.zero})
  if any(places[total] != place for total, place in sums.values()):
    places |= dict(sums.values())
    given, inner = planned()
  results = [inner.bring(x, _left(inner, x, sums), node) for x in op.body.results]
  body = Program(builder.mesh, inner.steps, results)
  varies = set(given)
  builder.steps += _take_out(body, varies)
  for inside, x in zip(op.body.captures, captures):       # gathered once for all calls
    for place, value in inner.versions[inside].items():
      if value not in varies:
        builder.at_hand(x, node).setdefault(place, value)
  return Called(body, tuple(given), _taken([body], varies))


def _sums(inner: Builder, body: Body, zeros: Set[Tensor]) -> dict[Tensor, tuple[Tensor, Placement]]:
  """Returns by results that add to zeros, such as weights' cotangents, these and where to add up.

  That is where what is added was made: unfinished, too. So what calls add up is reduced over
  positions, or scattered, once, after the last call.
  """
  found = {}
  for result in body.results:
    add = result.node
    for total, more in zip(add.inputs, add.inputs[::-1]) if add.op.linear == "joint" else ():
      if len(add.inputs) == 2 and total in zeros and more in inner.versions:
        made = next(iter(inner.versions[more]))
        wish = final(made, inner.wish(more.node, more))
        found[result] = total, tuple(m if m == Pending("sum") or isinstance(m, Split) else
                                     w for m, w in zip(made, finished(wish)))
  return found


def _left(inner: Builder, x: Tensor, sums: Mapping[Tensor, tuple[Tensor, Placement]]) -> Placement:
  """Returns where a result of a call is left: sums where they are added up."""
  place = sums[x][1] if x in sums else inner.state(x)
  return place if place in inner.versions[x] else inner.state(x)


def _passed(builder: Builder, x: Tensor, placement: Placement, node: Node) -> Value:
  """Returns an argument in a placement; zeros are an unfinished sum, if that is asked for."""
  if not x.node.op.zero or placement == finished(placement):
    return builder.bring(x, placement, node)
  stage = next((s.coordinate for s in placement if isinstance(s, At)), None)
  plan = plan_node(x.node.op, builder.mesh, x.node.layout, (), (), (x.spec,),
                   [finished(placement)], stage)
  value = Value(x.spec, placement)
  builder.steps.append(Compute(x.node, dataclasses.replace(plan, results=(placement,)), (),
                               (value,)))
  return value


def _program(builder: Builder, node: Node, body: Body, given: Sequence[Value],
             captures: Sequence[Tensor]) -> Builder:
  """Plans the nodes of a body.

  Captures are brought to the stage where it runs, which makes that the stage of their cotangents as
  well: what iterations or calls add up stays there, and is sent on once, afterwards.
  """
  inner = type(builder)(builder.mesh)
  for tensor, value in zip(body.arguments, given):
    inner.given(tensor, {value.placement: value}, value.placement)
  for tensor, outside in zip(body.captures, captures):
    state = finished(builder.state(outside))
    if node.stage is not None:
      state = restaged(builder.mesh, state, builder.stage(node))
    builder.bring(outside, state, node)
    inner.given(tensor, dict(builder.at_hand(outside, node)), state)
    if isinstance(node.op, Call):      # forward and backward calls take turns: nothing is freed
      inner.gathered[tensor] = inner.versions[tensor]
  for inside in body.nodes:
    inner.node(inside)
  return inner


def _without(placement: Placement, dim: Dimension | None) -> Placement:
  """Returns a finished placement that leaves `dim`, which a loop walks along, whole."""
  return tuple(Whole if dim is not None and s == Split(dim.name) else s
               for s in finished(placement))


def _take_out(program: Program, varies: set[Value]) -> list[Step]:
  """Takes the steps that no turn changes out of a body, and returns them."""
  out: list[Step] = []
  left: list[Step] = []
  for step in program.steps:
    if isinstance(step, Put) or any(v in varies for v in reads(step)):
      varies.update(makes(step))
      left.append(step)
    else:
      if isinstance(step, MoveStep):
        step.after = None            # it need not wait for its turn, it has none
      out.append(step)
  program.steps = left
  return out


def _taken(programs: Iterable[Program | None], given: set[Value]) -> tuple[Value, ...]:
  """Returns what programs use of the values around them."""
  taken: dict[Value, None] = {}
  for program in programs:
    if program is not None:
      made = {v for step in program.steps for v in makes(step)}
      used = (*(v for step in program.steps for v in needs(step)), *program.results)
      taken.update(dict.fromkeys(v for v in used if v not in made and v not in given))
  return tuple(taken)


def _made(builder: Builder, node: Node, outs: Sequence[Value]) -> None:
  for y, value in zip(node.outputs, outs):
    builder.given(y, {value.placement: value}, value.placement)

