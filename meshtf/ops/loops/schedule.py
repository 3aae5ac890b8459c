"""The schedule of a pipelined scan: how many stages, microbatches and ticks it has.

    schedule = schedule_of(mesh, layout, carry, Dimension("layers", 12))   # None: no pipeline
    schedule.num_ticks

With `Mesh(..., repeats=2)` the schedule is circular: each stage has several groups of layers, and
a microbatch passes all stages as many times. The bubble has as many ticks, but each is shorter
(Narayanan et al. 2021, arXiv:2104.04473, section 2.2).

The number of microbatches is that of `Mesh(..., microbatches=)`. Without it, a pipeline takes at
most four times as many as it has stages: from there on, its bubble hardly matters (Huang et al.
2019, arXiv:1811.06965, section 3.2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph import Source, Tensor
from meshtf.graph.control_flow.scan_dimension import REPEAT
from meshtf.mesh import Layout, Mesh
from meshtf.names import Dimension, Shape

MICROBATCHES_OF_STAGE = 4  # the maximum if the mesh says nothing


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How a scan is divided among stages, and a batch into microbatches.

    Attributes:
      dim: the dimension that is scanned, with the number of layers.
      axes: the axes that shard it.
      batch: the dimension that is divided, with the size of the entire batch.
      num_stages: the number of stages.
      num_microbatches: the number of microbatches.
      repeats: the number of groups of layers of a stage; a microbatch passes all stages so often.
      reverse: whether the last layers, and so the last stage, come first.
    """

    dim: Dimension
    axes: tuple[str, ...]
    batch: Dimension
    num_stages: int
    num_microbatches: int
    repeats: int = 1
    reverse: bool = False

    @property
    def direction(self) -> int:
        """The difference between the index of a stage and that of the stage before."""
        return -1 if self.reverse else 1

    def order(self, stage: Tensor) -> Tensor:
        """Returns how many stages come before those of these indices [...]; or the index of a
        stage, from how many come before.
        """
        return self.num_stages - 1 - stage if self.reverse else stage

    def repeat(self, group: Tensor) -> Tensor:
        """Returns how often microbatches have passed the stages before these groups [...] of a
        stage; or the index of a group, from how often.
        """
        return self.repeats - 1 - group if self.reverse else group

    @property
    def num_groups(self) -> int:
        """The number of groups of layers of all stages."""
        return self.num_stages * self.repeats

    @property
    def layers_of_group(self) -> int:
        """The number of layers of a group; the last groups may have fewer."""
        return -(-self.dim.size // self.num_groups)

    @property
    def num_slots(self) -> int:
        """The number of microbatches that a stage keeps before and after the pipeline."""
        return -(-self.num_microbatches // self.num_stages)

    @property
    def period(self) -> int:
        """The number of ticks after which a microbatch comes to the first stage again: that of
        microbatches, rounded up to a multiple of the stages.
        """
        return self.num_slots * self.num_stages

    @property
    def num_ticks(self) -> int:
        """The number of ticks: the bubble is `num_stages - 1` of them if the stages divide the
        number of microbatches.
        """
        before_last = (self.repeats - 1) * self.period
        return before_last + self.num_microbatches + self.num_stages - 1

    @property
    def stages_dim(self) -> Dimension:
        """The dimension of stages: the layout shards it as it does the layers."""
        return Dimension(self.dim.name, self.num_stages)

    @property
    def layers_dim(self) -> Dimension:
        """The dimension of the layers of one group."""
        return Dimension("." + self.dim.name, self.layers_of_group)

    @property
    def repeats_dim(self) -> Dimension:
        """The dimension of the groups of one stage."""
        return Dimension(REPEAT, self.repeats)

    @property
    def microbatch_dim(self) -> Dimension:
        """The dimension of the examples of a microbatch."""
        return Dimension(self.batch.name, self.batch.size // self.num_microbatches)


def schedule_of(
    mesh: Mesh,
    layout: Layout,
    carry: Sequence[Tensor],
    dim: Dimension,
    reverse: bool = False,
) -> Schedule | None:
    """Returns the schedule of a scan; None: the layout does not shard its dimension, or the carry
    has none that could be divided.

    Args:
      mesh: the mesh of the scan.
      layout: its layout where the scan is.
      carry: the initial carry, tensors [batch, ...].
      dim: the dimension that is scanned.
      reverse: whether it is scanned from the last entry to the first.

    Raises:
      PlanError: `mesh.microbatches` is set, and the tensors of the carry have no dimension in
        common.
      ShapeError: `mesh.microbatches` does not divide the batch, or there are too few layers for
        `mesh.repeats`.
    """
    placement, _conflicts = mesh.place(Shape(dim), layout)
    axes = placement.axes_of(dim.name)
    if not axes or not carry:
        return None
    common = [d for d in carry[0].shape if all(d in tuple(x.shape) for x in carry)]
    if not common:
        if mesh.microbatches is None:
            return None
        raise PlanError(
            explain_error(
                f"the layout divides {dim.name!r} into the stages of a pipeline, but the carry "
                "of the scan has no dimension that could be divided into microbatches.",
                carry=", ".join(repr(x.shape) for x in carry),
                rule=f"{dim.name}:{'+'.join(axes)}",
                source=Source.of_caller(),
                way_out="Carry tensors that all have the batch, or leave the rule out here: "
                f'with mtf.layout("{dim.name}:").',
            )
        )
    batch = common[0]
    num_stages = mesh.group_size(*axes)
    microbatches = mesh.microbatches
    if microbatches is None:
        microbatches = _default_microbatches(mesh, layout, batch, num_stages, axes)
    elif batch.size % microbatches:
        divisors = [d for d in range(1, batch.size + 1) if batch.size % d == 0]
        raise ShapeError(
            explain_error(
                f"{microbatches} microbatches do not divide dimension {batch.name!r} of size "
                f"{batch.size}.",
                mesh=mesh,
                source=Source.of_caller(),
                way_out=f"Mesh(..., microbatches=) may be one of {divisors[:12]}.",
            )
        )
    _check_repeats(mesh, dim, num_stages)
    repeats = mesh.repeats
    return Schedule(dim, axes, batch, num_stages, microbatches, repeats, reverse)


def _check_repeats(mesh: Mesh, dim: Dimension, num_stages: int) -> None:
    """Raises ShapeError if stages would have groups without any layer."""
    maximum = max(1, -(-dim.size // num_stages))
    if mesh.repeats > maximum:
        raise ShapeError(
            explain_error(
                f"{mesh.repeats} repeats are too many for dimension {dim.name!r} of size "
                f"{dim.size} on {num_stages} stages: each group has at least one layer.",
                mesh=mesh,
                source=Source.of_caller(),
                way_out=f"Mesh(..., repeats=) may be at most {maximum} here.",
            )
        )


def _default_microbatches(
    mesh: Mesh, layout: Layout, batch: Dimension, num_stages: int, axes: Sequence[str]
) -> int:
    """Returns the number of microbatches if the mesh does not say it: the largest one of which
    each has examples for all devices that share a stage, as the batch has.
    """
    placement, _conflicts = mesh.place(Shape(batch), layout)
    shard_axes = [axis for axis in placement.axes_of(batch.name) if axis not in axes]
    num_shards = mesh.group_size(*shard_axes)
    examples = batch.size // num_shards if batch.size % num_shards == 0 else batch.size
    maximum = min(examples, MICROBATCHES_OF_STAGE * num_stages)
    return max(d for d in range(1, maximum + 1) if examples % d == 0)
