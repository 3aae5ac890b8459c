"""The error for a class of ops that is written for the earlier op contract.

Members of the earlier contract have other names now, or belong to a kind of op. Without an
error they would be ignored. The error is raised when the class is defined.
"""

from __future__ import annotations

from meshtf.errors import PlanError, explain_error

_WINDOWS = (
    "derive from mtf.graph.WindowedOp, whose window(input_index, dim) returns "
    "mtf.graph.Window(low, high, wrap, fill)"
)
_STATISTICS = "derive from mtf.graph.OpWithStatistics, "
_KINDS = "derive from ReadOp, WriteOp or HostOp of meshtf.graph"
_CONTEXT = (
    "its first argument is a LocalContext: size, whole, parts, index and offset are "
    "local_size, global_size, num_shards, shard_index and shard_offset"
)
# Members of the earlier contract, and what to do about each. An op may use the names of the
# second table for other purposes, so they are reported only together with one of the first.
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
    "samples": "call it conformance_samples",
    "in_place": "a WriteOp with an output takes its initial value as the last input",
}
_AMBIGUOUS_CHANGES = {
    "title": "call it display_name",
    "factor": "derive from mtf.graph.RenamingOp",
    "space": "leave it out: a factor is as large as the output's dimension, or else the "
    "first input's",
    "fill": "give it to the Window that window(...) returns",
    "shared": _STATISTICS + "whose statistics_dims() returns such dimensions",
    "share": _STATISTICS + "and call it statistics(context, *xs), which returns "
    "mtf.graph.Statistics(exchanged, residuals); what `local` did with at.told and at.kept is "
    "local_sharded(context, gathered, residuals, *xs)",
    "bodies": "derive from meshtf.graph.ControlFlowOp",
    "zero": "derive from meshtf.graph.ConstantOp, and call it is_zero",
    "update": "new_values(*inputs, *values) of a WriteOp returns what to write, and its "
    "write_in_place(handles, *inputs) may do it at once; a HostOp has run_on_host(*xs)",
}


def refuse_earlier_form(op: type, inherited: set[str]) -> None:
    """Raises PlanError for a class with members of the earlier form.

    The error says what to do about each member.

    Args:
      op: the class.
      inherited: the members of the bases of the class.
    """
    new_members = _members(op) - inherited
    if new_members.isdisjoint(_CHANGES):
        return
    known_changes = _CHANGES | _AMBIGUOUS_CHANGES
    changes = {
        name: text for name, text in known_changes.items() if name in new_members
    }
    raise PlanError(
        explain_error(
            f"op {op.__name__} has members that ops no longer have.",
            **changes,
            local=_CONTEXT,
            way_out="Change these; meshtf/graph/op.py has the members of an op, and "
            "op_kinds.py those of the kinds of ops.",
        )
    )


def _members(op: type) -> set[str]:
    """Returns the names of a class's attributes and methods, without dataclass fields."""
    annotations = op.__dict__.get("__annotations__", {})
    fields = {name for name, kind in annotations.items() if "ClassVar" not in str(kind)}
    return set(vars(op)) - fields
