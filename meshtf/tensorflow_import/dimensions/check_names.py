"""Errors of names that no dimension has, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshtf.errors import ArgumentError, LayoutError, explain_error, near_misses
from meshtf.mesh import Layout, Mesh
from meshtf.tensorflow_import.repeats.stacks import LAYERS

_WAY_OUT = "Print `dimensions` for all names, their sizes and variables."
_WAYS_OUT = {
    LAYERS: "To shard equal layers of a Keras model, name them: "
    'mtf.keras.distribute(..., repeated=r"block_\\d+").'
}


def check_renames(
    renames: Mapping[str, str], old: set[str], new: set[str], clashes: Iterable[str]
) -> None:
    """Checks new names of dimensions.

    Args:
        renames: New names, by old ones.
        old: All names before they are renamed.
        new: All names after that.
        clashes: Names that two dimensions of one operation would have.

    Raises:
        ArgumentError: No dimension has an old name, or two of one operation would have a name.
    """
    for name, new_name in renames.items():
        if name not in old and new_name not in new:
            raise ArgumentError(
                explain_error(
                    f'`names` renames "{name}", a name that no dimension has.',
                    similar=near_misses(name, old) or "none",
                    dimensions=", ".join(sorted(old)),
                    way_out=_WAY_OUT,
                )
            )
    for name in clashes:
        sources = [
            old_name for old_name, new_name in renames.items() if new_name == name
        ]
        if sources:
            raise ArgumentError(
                explain_error(
                    f'`names` calls two dimensions "{name}", but an operation has both.',
                    renamed=", ".join(sources),
                    way_out="Choose a name that no other dimension has.",
                )
            )


def check_layout(mesh: Mesh, names: set[str], renames: Mapping[str, str]) -> None:
    """Checks that a mesh's layout has rules for dimensions that exist.

    Raises:
        LayoutError: A rule's dimension was renamed, or no dimension has its name.
    """
    for layout in (mesh.layout, mesh.variable_layout, mesh.optimizer_layout):
        check_rules(layout, names, renames, "the layout")


def check_rules(
    layout: Layout, names: set[str], renames: Mapping[str, str], label: str
) -> None:
    """Checks that a layout has rules for dimensions that exist.

    Args:
        layout: The layout, or changes of one.
        names: Those of all dimensions.
        renames: New names, by old ones.
        label: What errors call the layout.

    Raises:
        LayoutError: A rule's dimension was renamed, or no dimension has its name.
    """
    for name, _ in layout.items():
        if name in names or name == "*":
            continue
        if name in renames:
            raise LayoutError(
                explain_error(
                    f'{label} has a rule for "{name}", which `names` renamed.',
                    layout=layout,
                    way_out=f'Its name is "{renames[name]}": write that in the layout.',
                )
            )
        raise LayoutError(
            explain_error(
                f'{label} has a rule for "{name}", a name that no dimension of the model '
                "has.",
                layout=layout,
                similar=near_misses(name, names) or "none",
                dimensions=", ".join(sorted(names)),
                way_out=_WAYS_OUT.get(name, _WAY_OUT),
            )
        )
