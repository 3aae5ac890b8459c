"""Checks of every new node, before anything runs.

    common_mesh(inputs, mesh, source)         # raises MeshError for tensors of two meshes
    check_layout(specs, mesh, layout, source) # raises LayoutError for impossible shards
    check_variable(spec, mesh, layout, path, source)  # the same for a variable
    check_stage(mesh, stage, source)          # raises MeshError for a stage without devices

Tensors of gradient rules are not checked against the layout: if two dimensions have rules
for the same axis, the planner replicates the second, and adds a note to the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshtf.errors import LayoutError, MeshError, explain_error
from meshtf.graph.op import Spec
from meshtf.graph.tensor import Source, Tensor
from meshtf.mesh import Layout, Mesh
from meshtf.mesh.mesh import Conflict


def common_mesh(
    inputs: Sequence[Tensor], mesh: Mesh | None, source: Source
) -> Mesh | None:
    """Returns the mesh of all inputs.

    Args:
      inputs: the inputs of an op.
      mesh: the mesh that they must be on; None: the mesh of the first input with a mesh.
      source: the user's line.

    Raises:
      MeshError: two inputs are on different meshes.
    """
    for x in inputs:
        mesh_of_x = x.mesh
        if mesh is None:
            mesh = mesh_of_x
        elif mesh_of_x is not None and mesh_of_x is not mesh:
            raise MeshError(
                explain_error(
                    "one op cannot take tensors of two meshes.",
                    meshes=f"{mesh} and {mesh_of_x}",
                    tensors=" ".join(repr(tensor.shape) for tensor in inputs),
                    source=source,
                    way_out="Make both tensors on one Mesh object (meshes are compared "
                    "by identity), or bring one over: mtf.asarray(mesh, "
                    "x.numpy(), x.shape).",
                )
            )
    return mesh


def check_layout(
    specs: Sequence[Spec], mesh: Mesh, layout: Layout, source: object
) -> None:
    """Raises LayoutError for a shape that the layout cannot shard.

    Args:
      specs: the specs of tensors.
      mesh: the mesh.
      layout: the rules of the mesh, with all changes of the context.
      source: the user's line.
    """
    for spec in specs:
        _placement, conflicts = mesh.place(spec.shape, layout)
        if conflicts:
            facts = {"tensor": repr(spec.shape), "from": source}
            message = _conflict_message(conflicts[0], spec, mesh, layout, facts)
            raise LayoutError(message)


def check_variable(
    spec: Spec, mesh: Mesh, layout: Layout, path: str, source: object
) -> None:
    """Raises LayoutError for a variable that the layout cannot shard.

    Args:
      spec: the spec of the variable.
      mesh: the mesh.
      layout: the rules for the variable.
      path: its path.
      source: the user's line.
    """
    _placement, conflicts = mesh.place(spec.shape, layout)
    if conflicts:
        facts = {"variable": f"{spec.shape!r} {path!r}", "from": source}
        message = _conflict_message(conflicts[0], spec, mesh, layout, facts)
        raise LayoutError(message)


def _conflict_message(
    conflict: Conflict,
    spec: Spec,
    mesh: Mesh,
    layout: Layout,
    facts: Mapping[str, object],
) -> str:
    """Returns the message of the error for two dimensions on one axis, or, on a strict mesh,
    for a dimension whose size is no multiple of the number of shards.

    Args:
      conflict: the dimension and the axis.
      spec: the spec of the tensor or variable.
      mesh: the mesh.
      layout: the rules.
      facts: the facts about a "tensor" or a "variable".
    """
    dim = conflict.dim
    rules = "; ".join(f"{name}:{'+'.join(axes)}" for name, axes in layout.items())
    underlined = f"{rules}\n{_underline(rules, conflict)}"
    kind = next(iter(facts))
    if conflict.kind == "axis":
        return explain_error(
            f'two dimensions of one {kind} want mesh axis "{conflict.axis}".',
            **facts,
            layout=underlined,
            way_out=_way_out(conflict, kind, spec, facts["from"]),
        )
    example = f'"{dim}_unsharded" where it is made'
    if kind == "tensor":
        example = f'mtf.rename(x, "{dim}", "{dim}_unsharded")'
    size = spec.shape[dim]
    axes = [axis for axis in layout.axes(dim) if axis in mesh.axes]
    num_shards = mesh.group_size(*axes)
    next_multiple = math.ceil(size / num_shards) * num_shards
    return explain_error(
        f'dimension "{dim}" of size {size} cannot be split into {num_shards} equal '
        "shards.",
        **facts,
        mesh=str(mesh),
        layout=underlined,
        way_out=f"Make its size a multiple of {num_shards} (next: {next_multiple}), take "
        f"the rule away, rename the dimension: {example}, or allow padding: "
        "Mesh(strict=False).",
    )


def _way_out(conflict: Conflict, kind: str, spec: Spec, source: object) -> str:
    """Returns what to do about two dimensions on one axis.

    Args:
      conflict: the dimensions and the axis.
      kind: "tensor" or "variable".
      spec: the spec of the tensor or variable.
      source: the user's line, or the layer of an imported model.
    """
    dim = conflict.dim
    if {"heads", "kv_heads"} <= set(spec.shape.names):
        return (
            "These are grouped queries, and heads are those of one group: write "
            f"kv_heads:{conflict.axis} in place of heads:{conflict.axis}."
        )
    if isinstance(source, Source) and source.is_layer:
        return (
            "Give one of them another axis, or let this layer do without a rule: "
            f'mtf.keras.distribute(..., regions={{"{source.function}": "{dim}:"}}).'
        )
    if kind == "tensor":
        return (
            "Give one of them another axis, or rename it for this step: "
            f'mtf.rename(x, "{dim}", "{dim}_unsharded").'
        )
    return (
        "Give one of them another axis, or take one of the rules away; or let variables do "
        f'without the rule, Mesh(variable_layout="{dim}:"); or give the dimension another '
        f'name, such as "{dim}_unsharded": where its layer is made, or, for a Keras model, by '
        f'mtf.keras.distribute(..., names={{"{dim}": "{dim}_unsharded"}}).'
    )


def _underline(rules: str, conflict: Conflict) -> str:
    """Returns a line that marks the rules of a conflict with "^" below them.

    Args:
      rules: the rules as text, such as "heads:model; d_ff:model".
      conflict: the conflict.
    """
    marks = [" "] * len(rules)
    for name in (conflict.other, conflict.dim):
        if not name:
            continue
        # With "; " in front, each rule follows a "; ". Where that begins in the longer
        # string, the rule begins in `rules`.
        start = ("; " + rules).index(f"; {name}:")
        stop = rules.find(";", start)
        if stop < 0:
            stop = len(rules)
        marks[start:stop] = "^" * (stop - start)
    return "".join(marks).rstrip()


def check_stage(mesh: Mesh, stage: int, source: object) -> None:
    """Raises MeshError if the mesh has no such pipeline stage. A mesh without an axis for
    stages has all stages on the same devices, so any index is allowed.
    """
    num_stages = mesh.num_stages
    if num_stages > 1 and not 0 <= stage < num_stages:
        raise MeshError(
            explain_error(
                f"there is no stage {stage}: axis {mesh.stages!r} has {num_stages}.",
                mesh=str(mesh),
                source=source,
                way_out=f"Take a stage from 0 to {num_stages - 1}, or a longer axis.",
            )
        )
