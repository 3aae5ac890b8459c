"""An op of a program on one device, held to what the op announced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.graph import OpWithStatistics, Spec
from meshtf.mesh import Mesh
from meshtf.ops.common.traced_once import traced_once
from meshtf.partition import Compute, Segment, Value
from meshtf.runtime.lowering.local_context import DeviceContext, MeshCoordinates
from meshtf.runtime.tf_internals.xla_ops import optimization_barrier

Flat = list[Any]
# outline(key, body, specs): a function that all equal parts of segments share
Outline = Callable[
    [Any, Callable[..., Flat], Sequence[tf.TensorSpec]], Callable[[Sequence[Any]], Flat]
]


def _run(
    segment: Segment,
    mesh: Mesh,
    coords: MeshCoordinates,
    values: Flat,
    jit: bool = False,
    outline: Outline | None = None,
) -> Flat:
    env: dict[Value, Any] = dict(zip(segment.ins, values))
    with traced_once():
        for compute in segment.computes:
            run_compute(compute, mesh, coords, env, jit, outline)
    return [env[v] for v in segment.outs]


def run_compute(
    compute: Compute,
    mesh: Mesh,
    coords: MeshCoordinates,
    env: dict[Value, Any],
    jit: bool = False,
    outline: Outline | None = None,
    anywhere: bool = False,
) -> None:
    """Runs one op on one device's slices, taken from `env` and put there."""
    xs = [env[v] for v in compute.ins]
    after = [env[compute.after]] if compute.after is not None else []
    if after and xs and jit:
        xs = optimization_barrier([*xs, *after])[:-1]
    with tf.control_dependencies(after):
        xs = [tf.identity(x) for x in xs] if after else xs
        context = DeviceContext(
            compute.node, compute.plan, mesh, coords, tuple(xs), jit, anywhere
        )
        env.update(zip(compute.outs, _one(compute, context, xs, env, outline)))


def _one(
    compute: Compute,
    context: DeviceContext,
    xs: Flat,
    env: Mapping[Value, Any],
    outline: Outline | None,
) -> Sequence[Any]:
    """Runs one op on one device, or one half of it where shards exchange statistics."""
    op = compute.node.op
    if isinstance(op, OpWithStatistics) and compute.makes_statistics:
        statistics = op.statistics(context, *xs)
        _check_statistics(compute, op, context, statistics.exchanged)
        return tuple(statistics.exchanged), tuple(statistics.residuals)
    if isinstance(op, OpWithStatistics) and compute.gathered is not None:
        assert compute.residuals is not None
        gathered, residuals = env[compute.gathered], env[compute.residuals]
        ys = op.local_sharded(context, gathered, residuals, *xs)
    elif op.share_trace and outline is not None:
        return _outlined(compute, context, xs, outline)
    else:
        ys = op.local(context, *xs)
    _check(compute, context, ys)
    return ys


def _outlined(
    compute: Compute, context: DeviceContext, xs: Flat, outline: Outline
) -> Sequence[Any]:
    """Calls an op's `local` as a function that all equal nodes share."""
    axes = [axis for axis, _ in compute.plan.cut]
    coords = [context.coordinates[axis] for axis in axes]
    key = (compute.node.op, compute.plan, context.inputs, tuple(x.dtype for x in xs))

    def body(*args: Any) -> list[Any]:
        inside = context.inside(dict(zip(axes, args[len(xs) :])))
        ys = compute.node.op.local(inside, *args[: len(xs)])
        _check(compute, inside, ys)
        return list(ys)

    specs = [tf.TensorSpec(x.shape, x.dtype) for x in (*xs, *coords)]
    return outline(key, body, specs)([*xs, *coords])


def _check(compute: Compute, context: DeviceContext, ys: Sequence[Any]) -> None:
    """Holds `local` to what `output_specs` announced."""
    for y, spec, want in zip(
        ys, (o.spec for o in compute.node.outputs), context.outputs, strict=True
    ):
        if tuple(y.shape) != want.sizes or y.dtype.name != spec.dtype:
            raise PlanError(
                explain_error(
                    f"{compute.node.op.display_name}.local gave {y.dtype.name} "
                    f"{tuple(y.shape)} where its `output_specs` announces {spec.dtype} "
                    f"{want!r}.",
                    **{"from": compute.node.source},
                    inputs=" ".join(map(repr, context.inputs)),
                    way_out="Mend the op: `local` and `output_specs` must agree.",
                )
            )


def _check_statistics(
    compute: Compute,
    op: OpWithStatistics,
    context: DeviceContext,
    exchanged: Sequence[Any],
) -> None:
    """Holds `statistics` to what `statistics_specs` announced: a forecast counts bytes
    by that.
    """
    ins = compute.node.inputs
    want = op.statistics_specs(
        *(
            Spec(shape, x.spec.dtype)
            for shape, x in zip(context.inputs, ins, strict=True)
        )
    )
    if [(t.dtype.name, t.shape.num_elements()) for t in exchanged] != [
        (w.dtype, w.shape.size) for w in want
    ]:
        gave = ", ".join(f"{t.dtype.name} {tuple(t.shape)}" for t in exchanged)
        announced = ", ".join(f"{w.dtype} {w.shape!r}" for w in want) or "nothing"
        raise PlanError(
            explain_error(
                f"{op.display_name}.statistics exchanges {gave or 'nothing'} where its "
                f"`statistics_specs` announces {announced}.",
                **{"from": compute.node.source},
                inputs=" ".join(map(repr, context.inputs)),
                way_out="Mend the op: `statistics` and `statistics_specs` must agree, "
                "but for dimensions of 1.",
            )
        )
