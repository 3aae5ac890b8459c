"""Pipelines on the devices of jax: each stage runs its own programs on its own devices.

Contents:

    stage_meshes     the mesh of the devices of one stage
    step_stages      the stages on which a step runs, and what it takes
    tasks            the steps of a program as tasks, in the order in which they start
    task_order       which steps form a task, and their order
    task_values      the arrays that tasks take and give, and which they may overwrite
    piece_programs   the program of each piece
    donated_inputs   the inputs whose memory a piece may overwrite
    stage_module     a task's module, compiled for the devices of its stage
    stage_arrays     variables, arguments and results, an array for each stage
    staged_program   a recorded function on the stages of a live mesh
"""
