"""The time of a step: seconds of each op and collective, and what runs at the same time.

durations       seconds of one step of a program, from a profile of hardware
exchanges       what halos and statistics send
memory_traffic  which values a device writes to memory
simulation      when tasks run that wait for units and for results
schedule        when each step runs, on each pipeline stage
totals          its seconds by kind of work
step_time       the sums that a forecast has
trace           the schedule as a file for Perfetto
"""
