"""Conversion rules between another library's tensors and our variables.

A rule has the name of a tensor, the name of a variable, and the axes of the tensor in our
names of dimensions:

    BLOCK = '''
      ln_1.weight          attention_norm/scale                 d_model
      attn.c_attn.weight   attention/[query,key,value]/kernel   d_model (* heads d_kv)
      attn.c_proj.weight   attention/output/kernel              (heads d_kv) d_model
    '''
    rules = each_layer(12, table(BLOCK, tensor_prefix="h.{layer}.",
                                 variable_prefix="block_{layer}/"))
    arrays = to_variables(rules, shapes, tensors, sizes)     # by names of variables
    tensors = to_tensors(rules, shapes, arrays, sizes)       # by names of tensors

The last line of the table says that the tensor has two axes: the first is heads and d_kv,
merged, the second is d_model. The variable has these dimensions in any order, such as
`[heads d_kv d_model]`. A fused tensor, as in the second line, has several variables; `*` is
the axis along which they are stacked. So a rule describes transposes, merged heads and
fused kernels.

If blocks are scanned, a variable has all layers, stacked along its first dimension. Its
name has no `{layer}`: each index of that dimension is one tensor. If a dimension is padded
in our variables, `sizes` has its size in the tensors, as in {"vocab": 50257}.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

import meshtf as mtf

Shapes = Mapping[str, mtf.Shape]  # of variables, by their names
# Name of a dimension that is padded in our variables -> its size in the tensors.
Sizes = Mapping[str, int]
_MAX_NAMES = 6  # the most names of each list in an error message


class Tensors(Protocol):
    """Another library's tensors by name."""

    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> np.ndarray: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor, without reading it."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """The rule of a tensor: its variables, and its axes in our names of dimensions.

    Args:
      tensor: the name of the tensor.
      variables: the name of the variable; with "[a,b]" in it, the names of several
        variables.
      axes: for each axis of the tensor, one of our dimensions, or several merged
        dimensions in brackets; `*` is the index of the variable.
      layer: the index of the tensor along the first dimension of the variable, the
        dimension of stacked layers; None: the tensor is the complete variable.
    """

    tensor: str
    variables: str
    axes: str
    layer: int | None = None

    def names(self) -> list[str]:
        """Returns the names of the variables: for "a/[b,c]/d", "a/b/d" and "a/c/d"."""
        match = re.fullmatch(r"(.*?)\[(.*)\](.*)", self.variables)
        if match is None:
            return [self.variables]
        prefix, alternatives, suffix = match.groups()
        return [f"{prefix}{name}{suffix}" for name in alternatives.split(",")]

    def axis_dims(self) -> list[list[str]]:
        """Returns, for each axis of the tensor, the names of the dimensions that it merges."""
        axes = re.findall(r"\([^)]*\)|\S+", self.axes)
        return [axis.strip("()").split() for axis in axes]


def table(text: str, tensor_prefix: str = "", variable_prefix: str = "") -> list[Rule]:
    """Returns the rules of a table.

    Args:
      text: a line for each rule, with three columns: tensor, variables, axes.
      tensor_prefix: the start of the names of all tensors.
      variable_prefix: the start of the names of all variables.
    """
    rows = [line.split(maxsplit=2) for line in text.splitlines() if line.strip()]
    return [
        Rule(
            tensor=tensor_prefix + tensor,
            variables=variable_prefix + variables,
            axes=axes,
        )
        for tensor, variables, axes in rows
    ]


def each_layer(layers: int, rules: Iterable[Rule]) -> list[Rule]:
    """Returns the rules of all layers.

    Args:
      layers: the count of layers.
      rules: the rules of one layer, with `{layer}` in the names of tensors; if variables
        are stacked over layers, not in the names of variables.
    """
    rules = list(rules)
    rules_of_layers = []
    for layer in range(layers):
        for rule in rules:
            is_stacked = "{layer}" not in rule.variables
            rule_of_layer = Rule(
                tensor=rule.tensor.format(layer=layer),
                variables=rule.variables.format(layer=layer),
                axes=rule.axes,
                layer=layer if is_stacked else None,
            )
            rules_of_layers.append(rule_of_layer)
    return rules_of_layers


def to_variables(
    rules: Iterable[Rule], shapes: Shapes, tensors: Tensors, sizes: Sizes
) -> dict[str, np.ndarray]:
    """Returns the value of each variable by name, with zeros where a dimension is padded.

    Args:
      rules: the rules of the model.
      shapes: the shape of each variable, by name.
      tensors: the tensors by name.
      sizes: the size in the tensors of each dimension that is padded in the variables.

    Raises:
      CheckpointError: names or shapes of the tensors do not fit the variables.
    """
    rules = list(rules)
    tensor_shapes = {name: tensors.shape(name) for name in tensors}
    check(rules, shapes=shapes, tensor_shapes=tensor_shapes, sizes=sizes)
    arrays = {name: np.zeros(shape.sizes, np.float32) for name, shape in shapes.items()}
    for rule in rules:
        tensor = tensors[rule.tensor]
        shape = _unpadded_shape(rule, shapes, sizes)
        variable_views = _variable_views(rule, shape, arrays)
        for index, variable_view in enumerate(variable_views):
            # A view of the variable's array: the assignment writes into `arrays`.
            variable_view[...] = _tensor_view(rule, shape, tensor, index=index)
    return arrays


def to_tensors(
    rules: Iterable[Rule],
    shapes: Shapes,
    arrays: Mapping[str, np.ndarray],
    sizes: Sizes,
) -> dict[str, np.ndarray]:
    """Returns each tensor by name: the inverse of `to_variables`.

    Args:
      rules: the rules of the model.
      shapes: the shape of each variable, by name.
      arrays: the value of each variable, by name.
      sizes: the size in the tensors of each dimension that is padded in the variables.
    """
    tensors = {}
    for rule in rules:
        shape = _unpadded_shape(rule, shapes, sizes)
        tensor = np.empty(_tensor_shape(rule, shape), np.float32)
        variable_views = _variable_views(rule, shape, arrays)
        for index, variable_view in enumerate(variable_views):
            # A view of `tensor`: the assignment writes into `tensor`.
            tensor_view = _tensor_view(rule, shape, tensor, index=index)
            tensor_view[...] = variable_view
        tensors[rule.tensor] = tensor
    return dict(sorted(tensors.items()))


def check(
    rules: Iterable[Rule],
    shapes: Shapes,
    tensor_shapes: Mapping[str, tuple[int, ...]],
    sizes: Sizes,
) -> None:
    """Raises CheckpointError if names or shapes of tensors do not fit the variables, or if
    the rules do not cover the variables.

    Args:
      rules: the rules of the model.
      shapes: the shape of each variable, by name.
      tensor_shapes: the shape of each tensor, by name.
      sizes: the size in the tensors of each dimension that is padded in the variables.
    """
    rules = list(rules)
    variables = {name for rule in rules for name in rule.names()}
    unmatched = sorted(variables ^ set(shapes))  # names in only one of the two sets
    if unmatched:
        raise mtf.CheckpointError(
            mtf.errors.explain_error(
                "the variables of this configuration are not those of the other "
                "library's model.",
                variables=_abridge(unmatched),
                way_out="Use a configuration that `transformer.convert` wrote.",
            )
        )
    expected_shapes = {}
    for rule in rules:
        shape = _unpadded_shape(rule, shapes, sizes)
        expected_shapes[rule.tensor] = _tensor_shape(rule, shape)
    missing = sorted(set(expected_shapes) - set(tensor_shapes))
    unknown = sorted(set(tensor_shapes) - set(expected_shapes))
    other_shapes = [
        f"{name}: {tensor_shapes[name]}, expected {expected_shape}"
        for name, expected_shape in sorted(expected_shapes.items())
        if tensor_shapes.get(name, expected_shape) != expected_shape
    ]
    if missing or unknown or other_shapes:
        # Only the names that the message shows get suggestions.
        shown_names = [_with_suggestion(name, unknown) for name in missing[:_MAX_NAMES]]
        raise mtf.CheckpointError(
            mtf.errors.explain_error(
                "names or shapes are not those of the configuration.",
                missing=_abridge(shown_names + missing[_MAX_NAMES:]),
                unknown=_abridge(unknown),
                other_shape=_abridge(other_shapes),
                way_out="config.json and the tensors must be of one model.",
            )
        )


def _unpadded_shape(rule: Rule, shapes: Shapes, sizes: Sizes) -> mtf.Shape:
    """Returns the shape of the section of a variable that is in the tensor: without padding,
    and without the dimension of layers.
    """
    first_name = rule.names()[0]  # all variables of a rule have the same shape
    dims = list(shapes[first_name])
    if rule.layer is not None:
        del dims[0]
    return mtf.Shape([(dim.name, sizes.get(dim.name, dim.size)) for dim in dims])


def _axis_sizes(rule: Rule, shape: mtf.Shape) -> list[list[int]]:
    """Returns, for each axis of the tensor, the sizes of the dimensions that it merges."""
    size_of = {"*": len(rule.names())}
    size_of.update(zip(shape.names, shape.sizes))
    axis_sizes = []
    for axis in rule.axis_dims():
        axis_sizes.append([size_of[name] for name in axis])
    return axis_sizes


def _tensor_shape(rule: Rule, shape: mtf.Shape) -> tuple[int, ...]:
    """Returns the shape of the tensor, given the unpadded shape of a variable."""
    return tuple(math.prod(axis) for axis in _axis_sizes(rule, shape))


def _variable_views(
    rule: Rule, shape: mtf.Shape, arrays: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Returns, for each variable of the rule, a view of its section that is in the tensor."""
    section: tuple[Any, ...] = tuple(slice(size) for size in shape.sizes)
    if rule.layer is not None:
        section = (rule.layer, *section)
    return [arrays[name][section] for name in rule.names()]


def _tensor_view(
    rule: Rule, shape: mtf.Shape, tensor: np.ndarray, index: int
) -> np.ndarray:
    """Returns the view of the tensor that corresponds to one variable, with the variable's
    order of dimensions.

    Args:
      rule: the rule of the tensor.
      shape: the unpadded shape of the variable.
      tensor: the tensor.
      index: the index of the variable in `rule.names()`.
    """
    names = [name for axis in rule.axis_dims() for name in axis]
    sizes = [size for axis in _axis_sizes(rule, shape) for size in axis]
    unmerged = tensor.reshape(sizes)  # an axis for each dimension
    # One variable along the axis `*`, and all elements along the other axes.
    selection = tuple(index if name == "*" else slice(None) for name in names)
    dims = [name for name in names if name != "*"]
    order = [dims.index(name) for name in shape.names]
    return unmerged[selection].transpose(order)


def _with_suggestion(name: str, candidates: list[str]) -> str:
    """Returns a name, followed by similar names among the candidates if there are any."""
    similar = mtf.errors.near_misses(name, candidates)
    return f"{name} (similar: {similar})" if similar else name


def _abridge(names: list[str]) -> str:
    """Returns one name per line: at most `_MAX_NAMES`, and the count of the rest."""
    if not names:
        return "-"
    lines = names[:_MAX_NAMES]
    if len(names) > _MAX_NAMES:
        lines = [*lines, f"and {len(names) - _MAX_NAMES} more"]
    return "\n".join(lines)
