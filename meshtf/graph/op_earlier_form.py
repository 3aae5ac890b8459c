"""What an op of the contract's earlier form is told when its class is defined.

Its members have other names now, or belong to a kind of op; were they read no more, the
op would be planned as if it had none of them.
"""

from __future__ import annotations

from meshtf.errors import PlanError, explain_error

_WINDOWS = (
    "derive from mtf.WindowedOp, whose window(input_index, dim) returns "
    "mtf.Window(low, high, wrap, fill)"
)
_STATISTICS = "derive from mtf.OpWithStatistics, "
_KINDS = "derive from ReadOp, WriteOp or HostOp of meshtf.graph"
_CONTEXT = (
    "its first argument is a LocalContext: size, whole, parts, index and offset are "
    "local_size, global_size, num_shards, shard_index and shard_offset"
)
# Members that an op had, and what to do. Those of the second table are words that an op
# may use for its own purposes: they are told only beside one of the first.
_CHANGES = {
    "out": "call it output_specs",
    "linear": "call it linearity",
    "scratch": "call it workspace_specs",
    "outlined": "call it share_trace",
    "needs": _WINDOWS,
    "tells": _STATISTICS + "and call it statistics_specs",
    "effect": _KINDS,
    "stores": _KINDS + ": `variables` of a WriteOp, the field `store` of a ReadOp",
    "settled": "derive from meshtf.graph.ReshardOp",
    "stops_gradient": "derive from meshtf.graph.GradientBarrier",
    "in_place": "a WriteOp with an output takes its first value as the last input",
}
_MORE_CHANGES = {
    "title": "call it display_name",
    "factor": "derive from mtf.RenamingOp",
    "space": "leave it out: a factor is as large as the output's dimension, or else the "
    "first input's",
    "fill": "give it to the Window that window(...) returns",
    "shared": _STATISTICS + "whose statistics_dims() returns such dimensions",
    "share": _STATISTICS + "and call it statistics(context, *xs), which returns "
    "mtf.Statistics(exchanged, residuals); what `local` did with at.told and at.kept is "
    "local_sharded(context, gathered, residuals, *xs)",
    "bodies": "derive from meshtf.graph.ControlFlowOp",
    "zero": "derive from meshtf.graph.ConstantOp, and call it is_zero",
    "update": "new_values(*inputs, *values) of a WriteOp returns what to write, and its "
    "write_in_place(handles, *inputs) may do it at once; a HostOp has run_on_host(*xs)",
}


def refuse_earlier_form(op: type, today: set[str]) -> None:
    """Refuses a class with members of the earlier form.

    Args:
      op: the class.
      today: members that its bases have, whatever they were called before.

    Raises:
      PlanError: it has some; says what to do about each.
    """
    own = _members(op) - today
    if own.isdisjoint(_CHANGES):
        return
    changes = {
        name: text for name, text in (_CHANGES | _MORE_CHANGES).items() if name in own
    }
    raise PlanError(
        explain_error(
            f"op {op.__name__} has members that ops no longer have.",
            **changes,
            local=_CONTEXT,
            way_out="Change these; meshtf/graph/op.py tells what an op says, and "
            "op_kinds.py what more some kinds say.",
        )
    )


def _members(op: type) -> set[str]:
    """Returns the names that a class gives a value, but for its fields."""
    annotations = op.__dict__.get("__annotations__", {})
    fields = {n for n, kind in annotations.items() if "ClassVar" not in str(kind)}
    return set(vars(op)) - fields
