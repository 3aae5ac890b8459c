"""Programs of live meshes, whose devices belong to jax: each pipeline stage runs its own modules
on its own devices. A mesh without an axis of stages has one stage, and a program one module.

Contents:

    stage_meshes     the mesh of the devices of one stage
    step_stages      the stages on which a step runs, and the values that it computes on
    tasks            the kinds of tasks: groups of steps that the host starts together
    task_order       which steps form a task, and the order of the tasks
    task_programs    the program of each compute task
    task_values      inputs and outputs of tasks, and the arrays that they may overwrite
    donated_inputs   the inputs whose memory a compute task may overwrite
    stage_module     the program of a compute task, compiled for the devices of its stage
    stage_arrays     variables, arguments and results, an array for each stage
    live_program     a recorded function on the stages of a live mesh
"""
