"""The buffer of a pipeline: microbatches that wait for the first stage, or that the last stage has
computed, divided among all stages.

    buffer = into_slots(x, schedule)          # [microbatch:slots, layers:stages, batch, ...]
    entry = entry_of(buffer, slot)            # [layers:stages, batch, ...]
    buffer = with_entry(buffer, slot, entry)
    y = out_of_slots(buffer, schedule)        # [batch, ...]

Microbatch m begins in slot m % slots at stage m // slots. Whenever its slot is taken, it is one
stage nearer to the first one.
"""

from __future__ import annotations

from meshtf.graph import Tensor
from meshtf.names import Dimension
from meshtf.ops.control.microbatch import MICROBATCH
from meshtf.ops.indexing.dynamic_slice import dynamic_update
from meshtf.ops.indexing.gather import gather_along, gather_with_bounds
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.loops.schedule import Schedule
from meshtf.ops.shapes.reshape import flatten, transpose, unflatten
from meshtf.ops.shapes.slice import pad
from meshtf.ops.shapes.slice import slice as take_elements
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.ops.windows.shift import roll


def into_slots(x: Tensor, schedule: Schedule) -> Tensor:
    """Returns x [..., batch, ...] as [microbatch:slots, stages, ..., batch, ...], where stages is
    `schedule.stages_dim` and batch has the examples of a microbatch.
    """
    slots = Dimension(MICROBATCH, schedule.num_slots)
    names = (slots.name, schedule.dim.name, *x.shape.names)
    missing = slots.size * schedule.num_stages - schedule.num_microbatches
    if missing:
        microbatches = Dimension(MICROBATCH, schedule.num_microbatches)
        dims = [schedule.microbatch_dim, microbatches]
        split = unflatten(x, schedule.batch.name, dims)
        split = pad(split, MICROBATCH, before=0, after=missing)
        buffer = unflatten(split, MICROBATCH, [schedule.stages_dim, slots])
    else:
        dims = [schedule.microbatch_dim, schedule.stages_dim, slots]
        buffer = unflatten(x, schedule.batch.name, dims)
    return _in_order(transpose(buffer, names), schedule)


def _in_order(buffer: Tensor, schedule: Schedule) -> Tensor:
    """Returns a buffer [..., stages, ...] with its parts in the order of stages at their stages;
    or the other way round.
    """
    if not schedule.reverse:
        return buffer
    dim = schedule.dim.name
    stages = index_range(buffer.mesh, Dimension("." + dim, schedule.num_stages))
    return gather_along(buffer, dim, schedule.order(stages), new_dim=dim)


def entry_of(buffer: Tensor, slot: Tensor) -> Tensor:
    """Returns the entry [stages, ...] of a slot, an int32 scalar."""
    return gather_with_bounds(buffer, slot, MICROBATCH, "trusted")


def with_entry(buffer: Tensor, slot: Tensor, entry: Tensor) -> Tensor:
    """Returns the buffer with another entry [stages, ...] in a slot."""
    return dynamic_update(buffer, MICROBATCH, slot, entry)


def out_of_slots(buffer: Tensor, schedule: Schedule) -> Tensor:
    """Returns the batch [..., batch, ...] of which the last stage has put the microbatches into
    slots: microbatch m in tick m + stages - 1.
    """
    dim = schedule.dim.name
    num_slots = schedule.num_slots
    # After the last tick, slots that were not taken as often as others move on.
    num_taken = schedule.num_ticks
    all_taken = num_slots * schedule.num_stages + schedule.num_stages - 1
    if all_taken > num_taken:
        entries = list(unstack(buffer, MICROBATCH))
        for tick in range(num_taken, all_taken):
            slot = tick % num_slots
            entries[slot] = roll(entries[slot], dim, -schedule.direction)
        buffer = stack(entries, MICROBATCH)
    # Microbatch 0 was put into slot (stages - 1) % slots.
    buffer = roll(buffer, MICROBATCH, -((schedule.num_stages - 1) % num_slots))
    buffer = _in_order(buffer, schedule)
    batch = schedule.batch.name
    names = [name for name in buffer.shape.names if name not in (MICROBATCH, dim)]
    at = names.index(batch) + 1
    y = transpose(buffer, [*names[:at], dim, MICROBATCH, *names[at:]])
    if all_taken == num_taken:
        return flatten(y, (batch, dim, MICROBATCH), batch)
    y = flatten(y, (dim, MICROBATCH), MICROBATCH)
    y = take_elements(y, MICROBATCH, begin=0, size=schedule.num_microbatches)
    return flatten(y, (batch, MICROBATCH), batch)
