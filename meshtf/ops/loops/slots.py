"""The buffer of a pipeline: microbatches that wait for the first stage, or that the last stage has
computed, divided among all stages.

    buffer = into_slots(x, schedule)          # [microbatch:slots, layers:stages, batch, ...]
    entry = entry_of(buffer, slot)            # [layers:stages, batch, ...]
    buffer = after_tick(buffer, entry, state, tick, schedule)
    y = out_of_slots(buffer, schedule)        # [batch, ...]

Microbatch m begins in slot m % slots at stage m // slots. In tick t all parts of slot t % slots
move on by one stage, and the first stage takes its part. What the last stage has computed goes into
a part that became free:

- without repeats, into that of the last stage in the same slot, which the tick changes anyway;
- with repeats, where the first stage takes it `schedule.period` ticks after it did so before.
"""

from __future__ import annotations

from meshtf.graph import Tensor
from meshtf.names import Dimension
from meshtf.ops.control.microbatch import MICROBATCH
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.elementwise.arithmetic import equal, greater_equal, logical_and
from meshtf.ops.elementwise.where_cast_clip import where
from meshtf.ops.indexing.dynamic_slice import dynamic_update
from meshtf.ops.indexing.gather import gather_along, gather_with_bounds
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.loops.schedule import Schedule
from meshtf.ops.shapes.reshape import flatten, transpose, unflatten
from meshtf.ops.shapes.slice import concat
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
        # Copies, of which only the bubble computes something.
        first = take_elements(stop_gradient(split), MICROBATCH, begin=0, size=1)
        split = concat([split, *[first] * missing], MICROBATCH)
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


def after_tick(
    buffer: Tensor, entry: Tensor, state: Tensor, tick: Tensor, schedule: Schedule
) -> Tensor:
    """Returns the buffer after a tick.

    Args:
      buffer: the buffer before it.
      entry: the entry [stages, ...] of the slot of this tick.
      state: what the stages have computed in this tick, [stages, ..., batch, ...].
      tick: the index of the tick, a scalar.
      schedule: the schedule.
    """
    dim = schedule.dim.name
    stages = index_range(buffer.mesh, schedule.stages_dim)
    order = schedule.order(stages)
    slot = tick % schedule.num_slots
    entry = roll(entry, dim, -schedule.direction)
    delay = _delay(schedule)
    if not delay:
        is_last = equal(order, schedule.num_stages - 1)
        return dynamic_update(buffer, MICROBATCH, slot, where(is_last, state, entry))
    buffer = dynamic_update(buffer, MICROBATCH, slot, entry)
    # Since the first stage took the microbatch, its slot has moved on so often.
    num_moves = delay // schedule.num_slots
    is_place = equal(order, schedule.num_stages - 1 - num_moves)
    slot = (tick - delay) % schedule.num_slots
    if num_moves:
        state = roll(state, dim, -schedule.direction * num_moves)
    # In the first ticks the last stage has nothing yet.
    is_output = logical_and(is_place, greater_equal(tick, delay))
    output = where(is_output, state, entry_of(buffer, slot))
    return dynamic_update(buffer, MICROBATCH, slot, output)


def _delay(schedule: Schedule) -> int:
    """Returns for how many ticks the slot of a microbatch is not that of the tick in which the
    last stage computes it.
    """
    return schedule.num_stages - 1 if schedule.repeats > 1 else 0


def out_of_slots(buffer: Tensor, schedule: Schedule) -> Tensor:
    """Returns the batch [..., batch, ...] of which the last stage has put the microbatches into
    slots: microbatch m in tick m + stages - 1.
    """
    dim = schedule.dim.name
    num_slots = schedule.num_slots
    # Microbatch 0 of the last repeat was put into slot `first`.
    first = schedule.num_stages - 1 - _delay(schedule)
    # In as many ticks each slot is taken equally often: after the last tick some slots move on,
    # or back.
    all_taken = schedule.repeats * schedule.period + first
    ticks = range(schedule.num_ticks, all_taken)
    direction = -schedule.direction
    if all_taken < schedule.num_ticks:
        ticks = range(all_taken, schedule.num_ticks)
        direction = schedule.direction
    if ticks:
        entries = list(unstack(buffer, MICROBATCH))
        for tick in ticks:
            slot = tick % num_slots
            entries[slot] = roll(entries[slot], dim, direction)
        buffer = stack(entries, MICROBATCH)
    buffer = roll(buffer, MICROBATCH, -(first % num_slots))
    buffer = _in_order(buffer, schedule)
    batch = schedule.batch.name
    names = [name for name in buffer.shape.names if name not in (MICROBATCH, dim)]
    at = names.index(batch) + 1
    y = transpose(buffer, [*names[:at], dim, MICROBATCH, *names[at:]])
    if schedule.period == schedule.num_microbatches:
        return flatten(y, (batch, dim, MICROBATCH), batch)
    y = flatten(y, (dim, MICROBATCH), MICROBATCH)
    y = take_elements(y, MICROBATCH, begin=0, size=schedule.num_microbatches)
    return flatten(y, (batch, MICROBATCH), batch)
