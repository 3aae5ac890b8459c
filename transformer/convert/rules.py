"""Conversion rules: which tensor of another library's files has which of our variables, and
the axes of the tensor in our dimension names.

    BLOCK = '''
      ln_1.weight          attention_norm/scale                 d_model
      attn.c_attn.weight   attention/[query,key,value]/kernel   d_model (* heads d_kv)
      attn.c_proj.weight   attention/output/kernel              (heads d_kv) d_model
    '''
    rules = each_layer(12, table(BLOCK, "h.{layer}.", "block_{layer}/"))
    arrays = to_variables(rules, shapes, tensors, sizes)     # by names of variables
    tensors = to_tensors(rules, shapes, arrays, sizes)       # by names of tensors

The last line of the table says that the tensor has two axes: heads and d_kv merged, and
d_model. The variable has these dimensions in any order, such as `[heads d_kv d_model]`. If
a tensor has several variables, `*` is the axis that counts them. This describes
transposes, merged heads and fused kernels. If a variable has all layers, stacked along its
first dimension, its name has no `{layer}`: each index of that dimension is one tensor. If
a dimension is padded in our variables, `sizes` has its size in the tensors, as in
{"vocab": 50257}.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

import meshtf as mtf

Shapes = Mapping[str, mtf.Shape]
Sizes = Mapping[str, int]
_MAX_NAMES = 6  # of each list, in an error


class Tensors(Protocol):
    """Another library's tensors by name; shapes are available without reading a tensor."""

    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> np.ndarray: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """A tensor, its variables, and its axes in our dimension names.

    Args:
      tensor: the name of the tensor.
      variables: the name of the variable; "[a,b]" in it means several variables.
      axes: for each axis of the tensor one of our dimensions, or several merged ones in
        brackets; `*` counts variables.
      layer: the index of the tensor along the first dimension of the variable; None: the
        tensor has the complete variable.
    """

    tensor: str
    variables: str
    axes: str
    layer: int | None = None

    def names(self) -> list[str]:
        """Returns the names of the variables."""
        match = re.fullmatch(r"(.*?)\[(.*)\](.*)", self.variables)
        if match is None:
            return [self.variables]
        prefix, alternatives, suffix = match.groups()
        return [f"{prefix}{name}{suffix}" for name in alternatives.split(",")]

    def axis_dims(self) -> list[list[str]]:
        """Returns the names of the dimensions that each axis of the tensor merges."""
        axes = re.findall(r"\([^)]*\)|\S+", self.axes)
        return [axis.strip("()").split() for axis in axes]


def table(text: str, tensor_prefix: str = "", variable_prefix: str = "") -> list[Rule]:
    """Returns the rules of a table.

    Args:
      text: a line for each rule, with three columns: tensor, variables, axes.
      tensor_prefix: of the names of tensors.
      variable_prefix: of the names of variables.
    """
    columns = [line.split(maxsplit=2) for line in text.splitlines() if line.strip()]
    return [
        Rule(tensor_prefix + tensor, variable_prefix + variables, axes)
        for tensor, variables, axes in columns
    ]


def each_layer(layers: int, rules: Iterable[Rule]) -> list[Rule]:
    """Returns rules with a `{layer}` in their names, for each layer."""
    return [
        Rule(
            rule.tensor.format(layer=layer),
            rule.variables.format(layer=layer),
            rule.axes,
            None if "{layer}" in rule.variables else layer,
        )
        for layer in range(layers)
        for rule in rules
    ]


def to_variables(
    rules: Iterable[Rule], shapes: Shapes, tensors: Tensors, sizes: Sizes
) -> dict[str, np.ndarray]:
    """Returns the values of variables by name, padded with zeros where a dimension is larger
    than in the tensors.

    Args:
      rules: the rules of the model.
      shapes: the shapes of the variables, by name.
      tensors: the tensors.
      sizes: the sizes in the tensors of dimensions that are padded in the variables.

    Raises:
      CheckpointError: names or shapes of the tensors do not fit the variables.
    """
    rules = list(rules)
    check(rules, shapes, {name: tensors.shape(name) for name in tensors}, sizes)
    arrays = {name: np.zeros(shape.sizes, np.float32) for name, shape in shapes.items()}
    for rule in rules:
        tensor = tensors[rule.tensor]
        shape = _shape(rule, shapes, sizes)
        for index, target in enumerate(_variable_views(rule, shape, arrays)):
            target[...] = _tensor_view(rule, shape, tensor, index)
    return arrays


def to_tensors(
    rules: Iterable[Rule],
    shapes: Shapes,
    arrays: Mapping[str, np.ndarray],
    sizes: Sizes,
) -> dict[str, np.ndarray]:
    """Returns tensors by name for the values of variables; see `to_variables`."""
    tensors = {}
    for rule in rules:
        shape = _shape(rule, shapes, sizes)
        tensor = np.empty(_tensor_shape(rule, shape), np.float32)
        for index, source in enumerate(_variable_views(rule, shape, arrays)):
            _tensor_view(rule, shape, tensor, index)[...] = source
        tensors[rule.tensor] = tensor
    return dict(sorted(tensors.items()))


def check(
    rules: Iterable[Rule],
    shapes: Shapes,
    tensor_shapes: Mapping[str, tuple[int, ...]],
    sizes: Sizes,
) -> None:
    """Checks that names and shapes of tensors fit the variables.

    Args:
      rules: the rules of the model.
      shapes: the shapes of the variables, by name.
      tensor_shapes: the shapes of the tensors, by name.
      sizes: the sizes in the tensors of dimensions that are padded in the variables.

    Raises:
      CheckpointError: they differ, or the rules do not cover the variables.
    """
    rules = list(rules)
    variables = {name for rule in rules for name in rule.names()}
    unmatched = sorted(variables ^ set(shapes))
    if unmatched:
        raise mtf.CheckpointError(
            mtf.errors.explain_error(
                "the variables of this configuration are not those of the other "
                "library's model.",
                variables=_abridged(unmatched),
                way_out="Use a configuration that `transformer.convert` wrote.",
            )
        )
    expected = {
        rule.tensor: _tensor_shape(rule, _shape(rule, shapes, sizes)) for rule in rules
    }
    missing = sorted(set(expected) - set(tensor_shapes))
    unknown = sorted(set(tensor_shapes) - set(expected))
    differ = [
        f"{name}: {tensor_shapes[name]}, expected {shape}"
        for name, shape in sorted(expected.items())
        if tensor_shapes.get(name, shape) != shape
    ]
    if missing or unknown or differ:
        close = [_with_suggestion(name, unknown) for name in missing[:_MAX_NAMES]]
        raise mtf.CheckpointError(
            mtf.errors.explain_error(
                "names or shapes are not those of the configuration.",
                missing=_abridged(close + missing[_MAX_NAMES:]),
                unknown=_abridged(unknown),
                other_shape=_abridged(differ),
                way_out="config.json and the tensors must be of one model.",
            )
        )


def _shape(rule: Rule, shapes: Shapes, sizes: Sizes) -> mtf.Shape:
    """Returns the shape, in our dimensions, of the section of a variable that is in one
    tensor.
    """
    name, *_ = rule.names()
    dims = list(shapes[name])
    if rule.layer is not None:
        del dims[0]
    return mtf.Shape([(dim.name, sizes.get(dim.name, dim.size)) for dim in dims])


def _axis_sizes(rule: Rule, shape: mtf.Shape) -> list[list[int]]:
    """Returns the sizes of the dimensions that each axis of the tensor merges."""
    size_of = {"*": len(rule.names())}
    size_of.update(zip(shape.names, shape.sizes))
    axis_sizes = []
    for axis in rule.axis_dims():
        axis_sizes.append([size_of[name] for name in axis])
    return axis_sizes


def _tensor_shape(rule: Rule, shape: mtf.Shape) -> tuple[int, ...]:
    """Returns the shape of the tensor."""
    return tuple(math.prod(axis) for axis in _axis_sizes(rule, shape))


def _variable_views(
    rule: Rule, shape: mtf.Shape, arrays: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Returns views of the sections of variables that are in one tensor."""
    section: tuple[Any, ...] = tuple(slice(size) for size in shape.sizes)
    if rule.layer is not None:
        section = (rule.layer, *section)
    return [arrays[name][section] for name in rule.names()]


def _tensor_view(
    rule: Rule, shape: mtf.Shape, tensor: np.ndarray, index: int
) -> np.ndarray:
    """Returns the view of the tensor that is variable `index` of the rule."""
    names = [name for axis in rule.axis_dims() for name in axis]
    sizes = [size for axis in _axis_sizes(rule, shape) for size in axis]
    unmerged = tensor.reshape(sizes)
    selection = tuple(index if name == "*" else slice(None) for name in names)
    dims = [name for name in names if name != "*"]
    order = [dims.index(name) for name in shape.names]
    return unmerged[selection].transpose(order)


def _with_suggestion(name: str, candidates: list[str]) -> str:
    """Returns a name, with the similar ones among the candidates."""
    similar = mtf.errors.near_misses(name, candidates)
    return f"{name} (similar: {similar})" if similar else name


def _abridged(names: list[str]) -> str:
    """Returns one name per line; of a long list the start and a count of the rest."""
    if not names:
        return "-"
    lines = names[:_MAX_NAMES]
    if len(names) > _MAX_NAMES:
        lines = [*lines, f"and {len(names) - _MAX_NAMES} more"]
    return "\n".join(lines)
