"""Tasks wait for their units and for results, with exact numbers and with arrays of times."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from meshtf.forecast.time.simulation import Simulation, latest


def drawn_tasks(rng, durations):
    """Returns (units, duration, results that it waits for) of tasks."""
    tasks = []
    for i, duration in enumerate(durations):
        units = rng.choice(4, size=rng.integers(1, 4), replace=False).tolist()
        sources = rng.choice(20, size=2).tolist()
        tasks.append((units, duration, [x for x in sources if x < i]))
    return tasks


def times_of(tasks):
    """Returns the start and end of each task, which has its index as its result."""
    simulation = Simulation()
    times = []
    for i, (units, duration, sources) in enumerate(tasks):
        after = [simulation.ready_at(sources)]
        times.append(simulation.run(units, duration, after))
        simulation.ready[i] = times[-1][1]
    return times


def test_a_task_starts_when_its_units_are_free_and_its_sources_exist(rng):
    durations = [Fraction(int(x), 3) for x in rng.integers(1, 9, 20)]
    tasks = drawn_tasks(rng, durations)
    times = times_of(tasks)
    for i, (units, duration, sources) in enumerate(tasks):
        start, end = times[i]
        ends = [times[j][1] for j in sources]
        ends += [times[j][1] for j in range(i) if set(units) & set(tasks[j][0])]
        assert start == max(ends, default=0)
        assert end == start + duration


def test_arrays_give_what_each_entry_gives(rng):
    durations = rng.random([20, 5])
    tasks = drawn_tasks(rng, durations)
    together = times_of(tasks)
    for k in range(5):
        alone = times_of([(units, x[k], sources) for units, x, sources in tasks])
        for (start, end), arrays in zip(alone, together):
            assert start == np.broadcast_to(arrays[0], 5)[k]
            assert end == arrays[1][k]


def test_the_latest_of_numbers_and_arrays():
    assert latest([]) == 0
    assert latest([1, Fraction(3, 2)]) == Fraction(3, 2)
    assert latest([2.0, np.array([1.0, 3.0]), 0]).tolist() == [2.0, 3.0]
