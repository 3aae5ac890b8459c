"""Missing rules: where an op communicates, although computing shard by shard is right.

    for rule in missing_rules(MyOp):
        print(rule)      # models.MyOp [b:4 d:8]: b sharded gives b sharded; it is gathered

The other suites find rules that are wrong. This one tries, for each sample and each dimension
of its inputs, what no rule may say yet: it runs the op on both halves of the inputs, each on
one device, and looks whether the results are halves of the expected outputs, addends of a
sum, or both equal to them. It then plans the op with inputs that are sharded so. If the plan
reshards an input, the rule is missing. Whether partial sums give partial sums is tried in the
same way, and compared with the op's `linearity`. PyTorch's validation of the strategies of
its ops looks for missing ones too.

Where an attribute has sizes, as that of a reshape, halves of these are tried, too.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshtf.errors import LayoutWarning
from meshtf.function.function import function
from meshtf.graph import Op, Role, apply_all, factor_of
from meshtf.mesh import Mesh
from meshtf.names import Shape, has_gradient
from meshtf.ops.variables.fill import zeros
from meshtf.runtime.storage.asarray import asarray
from meshtf.testing.conformance.compare import is_close
from meshtf.testing.conformance.reference import ReferenceCase, reference_case
from meshtf.testing.conformance.samples import NamedArray, label

_NUM_SHARDS = 2
_REDUCED = (Role.SUM, Role.MAX, Role.MIN)
# Each sample is tried with several inputs: results that agree by chance agree for one.
_NUM_SEEDS = 2


class MissingRule(NamedTuple):
    """A placement of inputs for which computing shard by shard is right, and the op does
    something else.

    Attributes:
      op: the label of the op.
      sample: the descriptions of the sample's inputs.
      inputs: the placement of the inputs.
      outputs: the placement of the outputs.
      instead: what the plan does, or what the op declares.
    """

    op: str
    sample: str
    inputs: str
    outputs: str
    instead: str

    def __str__(self) -> str:
        return (
            f"{self.op} {self.sample}: {self.inputs} gives {self.outputs}; "
            f"{self.instead}"
        )


def missing_rules(op_class: type[Op], seed: int = 0) -> list[MissingRule]:
    """Returns the missing rules of an op, of all its samples.

    Args:
      op_class: the class of an op with samples.
      seed: the seed of the random values.
    """
    rules = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        for sample in op_class.conformance_samples:
            cases = [
                reference_case(op_class, sample, seed + i) for i in range(_NUM_SEEDS)
            ]
            description = " ".join(f"[{text}]" for text in sample.inputs)
            for inputs, outputs, instead in (*_of_shards(cases), *_of_sums(cases)):
                rules.append(
                    MissingRule(label(op_class), description, inputs, outputs, instead)
                )
    return rules


def _of_shards(cases: Sequence[ReferenceCase]) -> Iterator[tuple[str, str, str]]:
    """Yields the placements of inputs and outputs, and the collectives of the plan, of the
    missing rules for sharded dimensions.
    """
    case = cases[0]
    names = dict.fromkeys(name for _, shape in case.inputs for name in shape.names)
    for name in names:
        if case.op.role(factor_of(case.op, name)) in _REDUCED:
            continue  # what is planned is the reduction of the results
        for local_op in _local_ops(case.op):
            placements = [_placement_of_shards(case, local_op, name) for case in cases]
            if placements[0] is None or len(set(placements)) > 1:
                continue
            collectives = _planned_collectives(case, name)
            if collectives:
                yield f"{name} sharded", placements[0], f"planned: {collectives}"
            break


def _local_ops(op: Op) -> Iterator[Op]:
    """Yields the op, and the op with half of each size that an attribute has."""
    yield op
    for field in dataclasses.fields(op):  # type: ignore[arg-type]
        shape = getattr(op, field.name)
        if not isinstance(shape, Shape):
            continue
        for dim in shape:
            if dim.size % _NUM_SHARDS == 0:
                local_shape = shape.resize(dim.name, dim.size // _NUM_SHARDS)
                yield dataclasses.replace(op, **{field.name: local_shape})  # type: ignore[type-var]


def _placement_of_shards(case: ReferenceCase, local_op: Op, name: str) -> str | None:
    """Returns how the outputs are placed if an op computes them shard by shard; None: they
    are wrong, or the op does not take shards.

    Args:
      case: the sample.
      local_op: the op of a shard.
      name: the dimension along which all inputs that have it are sharded.
    """
    shards: list[list[NamedArray]] = [[] for _ in range(_NUM_SHARDS)]
    for array, shape in case.inputs:
        if name not in shape:
            arrays = [array] * _NUM_SHARDS
        elif shape[name] < _NUM_SHARDS or shape[name] % _NUM_SHARDS:
            return None
        else:
            axis = shape.names.index(name)
            arrays = np.split(array, _NUM_SHARDS, axis)
            shape = shape.resize(name, shape[name] // _NUM_SHARDS)
        for inputs, array_of_shard in zip(shards, arrays):
            inputs.append(NamedArray(array_of_shard, shape))
    outputs_of_shards = []
    for inputs in shards:
        outputs = _outputs(local_op, inputs)
        if outputs is None:
            return None
        outputs_of_shards.append(outputs)
    return _placement(case, outputs_of_shards)


def _outputs(op: Op, inputs: Sequence[NamedArray]) -> list[NamedArray] | None:
    """Returns the outputs of an op on one device; None if it does not take the inputs."""
    mesh = Mesh("")
    try:
        ys = apply_all(op, *(asarray(mesh, array, shape) for array, shape in inputs))
        return [NamedArray(y.numpy(), y.shape) for y in ys]
    # Attributes may be of other sizes; then any error may come of it.
    except Exception:
        return None


def _placement(
    case: ReferenceCase, outputs_of_shards: Sequence[Sequence[NamedArray]]
) -> str | None:
    """Returns how the outputs of shards make the expected outputs; None: they do not."""
    placements = []
    for expected, *shards in zip(case.outputs, *outputs_of_shards):
        placement = _placement_of_output(expected, shards, case.output_tolerance)
        if placement is None:
            return None
        placements.append(placement)
    return ", ".join(placements) if placements else None


def _placement_of_output(
    expected: NamedArray, shards: Sequence[NamedArray], tolerance: float
) -> str | None:
    """Returns how one output of the shards makes the expected one; None: it does not."""
    arrays = [array for array, _ in shards]

    def agrees(combined: Any) -> bool:
        """Returns whether an array is the expected output."""
        is_alike = combined.shape == expected.array.shape
        return is_alike and is_close(combined, expected.array, tolerance)

    if all(agrees(array) for array in arrays):
        return "replicated"
    for axis, name in enumerate(expected.shape.names):
        if agrees(np.concatenate(arrays, axis)):
            return f"{name} sharded"
    combinations: dict[str, Callable[..., Any]] = {
        "a partial sum": np.add,
        "a partial maximum": np.maximum,
        "a partial minimum": np.minimum,
    }
    if expected.array.dtype.kind in "iufc":
        for placement, combine in combinations.items():
            if expected.array.dtype.kind == "c" and combine is not np.add:
                continue
            if arrays[0].shape != arrays[1].shape:
                continue
            with np.errstate(invalid="ignore"):  # infinity less infinity is no number
                combined = combine(*arrays)
            if agrees(combined):
                return placement
    return None


def _planned_collectives(case: ReferenceCase, name: str) -> str:
    """Returns the collectives of the plan for inputs that are sharded along `name`."""
    mesh = Mesh(f"x:{_NUM_SHARDS}", {name: "x"}, devices="abstract")
    inputs = [zeros(mesh, shape, array.dtype.name) for array, shape in case.inputs]
    recorded = function(lambda *xs: apply_all(case.op, *xs), mesh=mesh)
    forecast = recorded.explain(*inputs)
    kinds = {collective.kind for collective in forecast.collectives}
    return ", ".join(sorted(kinds))


def _of_sums(cases: Sequence[ReferenceCase]) -> Iterator[tuple[str, str, str]]:
    """Yields the placements of inputs and outputs, and the declared linearity, of the
    missing rules for partial sums.
    """
    case = cases[0]
    floating = [i for i, (x, _) in enumerate(case.inputs) if has_gradient(x.dtype.name)]
    if not floating or case.op.linearity is not None:
        return
    groups = {"input 0": floating[:1], "all inputs": floating}
    if len(floating) == 1:
        groups.pop("input 0")
    for description, indices in groups.items():
        if all(
            _maps_sums_to_sums(case, indices, seed) for seed, case in enumerate(cases)
        ):
            yield f"partial sums in {description}", "partial sums", "linearity = None"


def _maps_sums_to_sums(case: ReferenceCase, indices: Sequence[int], seed: int) -> bool:
    """Returns whether outputs for addends of inputs are addends of the outputs.

    Args:
      case: the sample.
      indices: the indices of the inputs that are sums of two addends.
      seed: the seed of the addends.
    """
    rng = np.random.default_rng(seed)
    addends: list[list[NamedArray]] = [[], []]
    for i, (array, shape) in enumerate(case.inputs):
        arrays = [array, array]
        if i in indices:
            addend = rng.normal(size=array.shape).astype(array.dtype)
            arrays = [addend, array - addend]
        for inputs, input_array in zip(addends, arrays):
            inputs.append(NamedArray(input_array, shape))
    outputs = _outputs(case.op, addends[0])
    other_outputs = _outputs(case.op, addends[1])
    if outputs is None or other_outputs is None:
        return False
    tolerance = 4 * case.output_tolerance
    return all(
        (x.array.dtype.kind in "fc")
        and is_close(x.array + y.array, expected.array, tolerance)
        for x, y, expected in zip(outputs, other_outputs, case.outputs)
    )
