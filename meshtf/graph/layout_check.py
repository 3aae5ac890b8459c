"""What every new node must satisfy, before anything runs.

`check_inputs` refuses tensors of two meshes and names of two sizes, `check_layout`
outputs that the layout cannot hold. Tensors that gradient rules make are never refused:
the planner leaves their later dimension whole, and notes it in the program.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.errors import LayoutError, MeshError, explain_error
from meshtf.graph.op import Spec
from meshtf.graph.tensor import Source, Tensor
from meshtf.mesh import Layout, Mesh
from meshtf.mesh.mesh import Conflict


def common_mesh(
    inputs: Sequence[Tensor], mesh: Mesh | None, source: Source
) -> Mesh | None:
    """Returns the mesh of all inputs. Raises MeshError where they lie on two."""
    for x in inputs:
        if mesh is None:
            mesh = x.mesh
        elif x.mesh is not None and x.mesh is not mesh:
            raise MeshError(
                explain_error(
                    "one op cannot take tensors of two meshes.",
                    meshes=f"{mesh!r} and {x.mesh!r}",
                    tensors=" ".join(repr(t.shape) for t in inputs),
                    **{"from": source},
                    way_out="Make both tensors on one Mesh object (meshes are compared "
                    "by identity), or bring one over: mtf.import_tensor(mesh, "
                    "x.numpy(), x.shape).",
                )
            )
    return mesh


def check_layout(
    specs: Sequence[Spec],
    mesh: Mesh,
    layout: Layout,
    source: object,
    what: str = "tensor",
) -> None:
    """Refuses shapes that the layout cannot hold. Raises LayoutError."""
    for spec in specs:
        for conflict in mesh.place(spec.shape, layout)[1]:
            raise LayoutError(_message(conflict, spec, mesh, layout, source, what))


def _message(
    conflict: Conflict,
    spec: Spec,
    mesh: Mesh,
    layout: Layout,
    source: object,
    what: str,
) -> str:
    rules = "; ".join(f"{n}:{'+'.join(a)}" for n, a in layout.items())
    if conflict.kind == "axis":
        return explain_error(
            f'two dimensions of one {what} want mesh axis "{conflict.axis}".',
            **{
                what: repr(spec.shape),
                "from": source,
                "layout": rules + "\n" + _underline(rules, conflict),
            },
            way_out="Give one of them another axis, or rename it for this step: "
            f'mtf.rename(x, "{conflict.dim}", "{conflict.dim}_whole").',
        )
    size, parts = spec.shape[conflict.dim], mesh.axes[conflict.axis]
    return explain_error(
        f'dimension "{conflict.dim}" of size {size} cannot be cut into {parts} equal '
        "slices.",
        **{
            what: repr(spec.shape),
            "from": source,
            "mesh": repr(mesh),
            "layout": rules + "\n" + _underline(rules, conflict),
        },
        way_out=f"Make its size a multiple of {parts} (next: "
        f"{-(-size // parts) * parts}), take the rule away, or rename the dimension: "
        f'mtf.rename(x, "{conflict.dim}", "{conflict.dim}_whole").',
    )


def _underline(rules: str, conflict: Conflict) -> str:
    marks = [" "] * len(rules)
    for name in filter(None, (conflict.other, conflict.dim)):
        start = ("; " + rules).index(f"; {name}:")
        stop = rules.find(";", start)
        stop = len(rules) if stop < 0 else stop
        marks[start:stop] = "^" * (stop - start)
    return "".join(marks).rstrip()


def check_stage(mesh: Mesh, stage: int, source: object) -> None:
    """Raises MeshError where a mesh has no such stage; without an axis for them, all
    are one.
    """
    number = mesh.axes.get(mesh.stages, 1)
    if number > 1 and not 0 <= stage < number:
        raise MeshError(
            explain_error(
                f"there is no stage {stage}: axis {mesh.stages!r} has {number}.",
                mesh=repr(mesh),
                **{"from": source},
                way_out=f"Take a stage from 0 to {number - 1}, or a longer axis.",
            )
        )
