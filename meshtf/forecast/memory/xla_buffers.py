"""Which tensors take memory when XLA compiles a program, where TensorFlow would need more or
less.

The rules below were read from XLA's buffer assignment for GPUs (jax 0.10.2,
`XLA_FLAGS=--xla_dump_to=FOLDER`); `python -m benchmarks.spmd.compiled` compares what they make
of a forecast with XLA's peaks.

1. *Fused.* XLA computes chains of elementwise functions in one kernel, so a converted copy of
   an input or the exponentials of a softmax, which `Op.local` makes before it sums, stay in
   registers. A kernel that needs them later computes them anew. See `is_fused`.
2. *Overwritten inputs.* An output takes the buffer of an input only if the op is elementwise.
   A kernel that reads whole rows or columns of an input, such as the gradient of a softmax,
   writes to another buffer. See `Step.is_elementwise`. An all_reduce is in place: see
   `reduces_in_place`.
3. *Copies in registers.* An elementwise output that is larger than what it is computed from, such
   as a converted or broadcast copy, is not written either if only elementwise ops and
   reductions read it: these read what it is computed from, which lives as long. If a single
   step reads it, both are one kernel, and then it need only be larger than each tensor that it
   is computed from. So are float32 probabilities of bfloat16 logits, once the sum of their row is
   known; not on TPUs. Kernels of whole rows, such as that of a softmax and the elementwise steps
   before it, read masks and other smaller copies from memory. See `sources_of_copies`.
4. *Views.* What gives the elements of a tensor other names or another shape, such as a reshape,
   is the same buffer. See `Step.is_view`.
5. *Inlined loops.* A loop of one iteration is no loop: its outputs are the results of its body,
   and not copies that are stacked. See `is_inlined`.
6. *Waiting reductions.* A reduction that an iteration needs only for its stacked outputs runs
   during the next iteration, behind its matrix products. What it reads waits there. See
   `waiting_values`.
7. *Attention.* cuDNN's kernels keep scores in registers: see `kernels.py`. Where queries are
   computed in blocks, two products of a block are written, in the data type of the queries, and
   in the gradient two tensors that one kernel computes of them; on TPUs the next products compute
   these as they read them. Masks of dropout are computed anew. See `blocks_in_memory`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence

from meshtf.forecast.memory.value_sizes import size_of
from meshtf.graph import OpWithStatistics, Spec
from meshtf.graph.op_kinds import FusedMatmulsOp
from meshtf.mesh import Mesh
from meshtf.partition import LoopStep, Program, Step, Value


def is_fused(workspace: Spec, inputs: Sequence[Spec]) -> bool:
    """Returns whether a temporary tensor of an op stays in registers: one with the shape of
    an input, as a converted copy has.

    Args:
      workspace: the tensor.
      inputs: the inputs of the op, with local shapes, as `workspace`.
    """
    return any(workspace.shape == x.shape for x in inputs)


def blocks_in_memory(
    op: FusedMatmulsOp, workspaces: Sequence[Spec], dtype: str, platform: str
) -> list[Spec]:
    """Returns which temporary tensors of blocks of products XLA writes.

    Args:
      op: the op.
      workspaces: its temporary tensors, as `Op.local` computes them.
      dtype: the data type of the matrices.
      platform: what XLA compiles it for; "": any devices.
    """
    products = [Spec(workspace.shape, dtype) for workspace in workspaces]
    is_gradient = op.num_repeated_products > 0
    return products * 2 if is_gradient and platform != "tpu" else products


def fuses_inputs(step: Step) -> bool:
    """Returns whether a step can compute its inputs itself: elementwise ops and reductions."""
    compute = step.computation
    return compute is not None and (step.is_elementwise or len(compute.ins) == 1)


def reduces_in_place(step: Step) -> bool:
    """Returns whether a step is an all_reduce, whose result takes the place of its input."""
    return [reshard.kind for reshard in step.reshards] == ["all_reduce"]


def is_inlined(loop: LoopStep) -> bool:
    """Returns whether a loop is no loop under XLA, since it has one iteration."""
    return loop.num_iterations == 1


def sources_of_copies(
    steps: Sequence[Step], results: Iterable[Value], mesh: Mesh, platform: str
) -> dict[Value, tuple[Value, ...]]:
    """Returns for each value that is never written what is read in its place.

    Args:
      steps: the steps of a program.
      results: its results.
      mesh: the mesh of the program.
      platform: for what it is compiled: "cpu", "cuda" or "tpu"; "": any devices.
    """
    views = {
        y: x
        for step in steps
        for x, y in (zip(step.inputs, step.outputs) if step.is_view else ())
    }
    written = set(results)
    readers: collections.Counter[Value] = collections.Counter()
    for step in steps:
        readers.update(set(step.needs))
        if not fuses_inputs(step):
            written.update(step.needs)
    written.update(_beside_rows(steps, readers, mesh))
    for view, x in reversed(views.items()):
        readers[x] += readers[view] - 1
        if view in written:
            written.add(x)
    sources: dict[Value, tuple[Value, ...]] = {}
    for step in steps:
        if step.is_view:
            for x, y in zip(step.inputs, step.outputs):
                sources[y] = sources.get(x, (x,))
            continue
        inputs, outputs = _read_again(step, platform)
        read = dict.fromkeys(y for x in inputs for y in sources.get(x, (x,)))
        sizes = [size_of(x, mesh) for x in read]
        for value in outputs:
            if not sizes or value in written:
                continue
            # One reader computes it once; several would read its sources several times.
            smaller = max(sizes) if readers[value] == 1 else sum(sizes)
            if size_of(value, mesh) > smaller:
                sources[value] = tuple(read)
    return sources


def _read_again(step: Step, platform: str) -> tuple[Sequence[Value], Sequence[Value]]:
    """Returns (inputs, outputs) of a step such that an element of the outputs can be computed
    again from one element of each input, and perhaps numbers of its row; `platform`: see above.
    """
    if step.is_elementwise:
        return step.inputs, step.outputs
    compute = step.computation
    if compute is None or not isinstance(compute.node.op, OpWithStatistics):
        return (), ()
    if platform == "tpu":
        return (), ()  # they are written there
    # As probabilities: from the logits, and the log-sum-exp of the row.
    logits = compute.ins[0]
    assert logits.spec is not None
    rows = [
        value
        for value in step.outputs
        if value.spec is not None and value.spec.shape == logits.spec.shape
    ]
    return (logits,), rows


def _beside_rows(
    steps: Sequence[Step], readers: Mapping[Value, int], mesh: Mesh
) -> Iterator[Value]:
    """Yields what a kernel of whole rows, such as the gradient of a softmax, reads beside them:
    smaller operands of the elementwise steps that it runs first, masks for instance.

    Args:
      steps: the steps of a program.
      readers: how many steps read a value.
      mesh: the mesh of the program.
    """
    elementwise: dict[Value, Step] = {}
    for step in steps:
        if step.is_elementwise:
            elementwise.update(dict.fromkeys(step.outputs, step))
            continue
        compute = step.computation
        if compute is None or not isinstance(compute.node.op, OpWithStatistics):
            continue
        # Elementwise steps whose output nothing else reads run in the kernel.
        rows = [x for x in compute.ins if x in elementwise and readers[x] == 1]
        while rows:
            value = rows.pop()
            for x in elementwise[value].inputs:
                if size_of(x, mesh) < size_of(value, mesh):
                    yield x
                elif x in elementwise and readers[x] == 1:
                    rows.append(x)


def waiting_values(loop: LoopStep) -> list[Value]:
    """Returns what the reductions of an iteration read that run during the next iteration."""
    if is_inlined(loop):
        return []
    body = loop.body
    stacked_outputs = body.results[loop.num_unstacked :]
    needed_at_once = _needed_at_once(body, stacked_outputs)
    return [
        reduction.src
        for step in body.steps
        for reduction in step.reductions
        if reduction.out not in needed_at_once
    ]


def _needed_at_once(body: Program, stacked_outputs: Sequence[Value]) -> set[Value]:
    """Returns the values that an iteration reads for more than its stacked outputs.

    Elementwise functions of a value that is not needed at once, such as conversions of a
    gradient, run with it.
    """
    needed = set(body.results).difference(stacked_outputs)
    for step in reversed(body.steps):
        if not (step.is_elementwise and needed.isdisjoint(step.outputs)):
            needed.update(step.needs)
    return needed
