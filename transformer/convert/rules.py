"""Conversion rules: names of another library's tensors and of our variables, and the axes of
their tensors in our dimension names.

    BLOCK = '''
      ln_1.weight          attention_norm/scale                 d_model
      attn.c_attn.weight   attention/[query,key,value]/kernel   d_model (* heads d_kv)
      attn.c_proj.weight   attention/output/kernel              (heads d_kv) d_model
    '''
    rules = each_layer(12, table(BLOCK, theirs="h.{layer}.", ours="block_{layer}/"))
    arrays = to_ours(rules, shapes, tensors)          # by our names
    tensors = to_theirs(rules, shapes, arrays)        # by their names, bit for bit

The last line of the table says that their tensor has two axes: heads and d_kv merged, and
d_model. Our variable has these dimensions in any order, such as `[heads d_kv d_model]`. If
one of their tensors holds several of our variables, `*` is the axis that counts them. This
describes transposes, merged heads and fused kernels. If one of our variables holds all
layers, stacked along its first dimension, our name has no `{layer}`: each index of that
dimension is one of their tensors. If one of our dimensions is padded, `sizes` has their
size, as in {"vocab": 50257}.
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
_MAX_NAMES = 6  # shown of each list in an error


class Tensors(Protocol):
    """Another library's tensors by name; shapes are available without reading a tensor."""

    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> np.ndarray: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """One of their tensors, the variables of ours that it holds, and its axes in our
    dimension names.

    Args:
      theirs: their name.
      ours: our name; "[a,b]" in it means several variables.
      axes: for each axis of theirs one of our dimensions, or several merged ones in
        brackets; `*` counts variables.
      row: its index along the first dimension of our variable; None: all of it.
    """

    theirs: str
    ours: str
    axes: str
    row: int | None = None

    def names(self) -> list[str]:
        """Returns the names of our variables."""
        match = re.fullmatch(r"(.*?)\[(.*)\](.*)", self.ours)
        if match is None:
            return [self.ours]
        prefix, alternatives, suffix = match.groups()
        return [f"{prefix}{name}{suffix}" for name in alternatives.split(",")]

    def axis_dims(self) -> list[list[str]]:
        """Returns the names of our dimensions that each axis of theirs merges."""
        axes = re.findall(r"\([^)]*\)|\S+", self.axes)
        return [axis.strip("()").split() for axis in axes]


def table(text: str, theirs: str = "", ours: str = "") -> list[Rule]:
    """Returns the rules of lines of three columns.

    Args:
      text: the table.
      theirs: prefix of their names.
      ours: prefix of our names.
    """
    rules = []
    for line in text.splitlines():
        if line.strip():
            their_name, our_name, axes = line.split(maxsplit=2)
            rules.append(Rule(theirs + their_name, ours + our_name, axes))
    return rules


def each_layer(layers: int, rules: Iterable[Rule]) -> list[Rule]:
    """Returns rules with a `{layer}` in their names, for each layer."""
    return [
        Rule(
            rule.theirs.format(layer=layer),
            rule.ours.format(layer=layer),
            rule.axes,
            None if "{layer}" in rule.ours else layer,
        )
        for layer in range(layers)
        for rule in rules
    ]


def to_ours(
    rules: Iterable[Rule], shapes: Shapes, tensors: Tensors, sizes: Sizes
) -> dict[str, np.ndarray]:
    """Returns the values of our variables by name, padded with zeros where they are
    larger than theirs.

    Args:
      rules: the rules of the model.
      shapes: the shapes of our variables.
      tensors: their tensors.
      sizes: their sizes of dimensions that are padded in our variables.

    Raises:
      CheckpointError: names or shapes of their tensors do not fit our variables.
    """
    rules = list(rules)
    check(rules, shapes, {name: tensors.shape(name) for name in tensors}, sizes)
    arrays = {name: np.zeros(shape.sizes, np.float32) for name, shape in shapes.items()}
    for rule in rules:
        tensor = tensors[rule.theirs]
        shape = _shape(rule, shapes, sizes)
        for index, target in enumerate(_variable_views(rule, shape, arrays)):
            target[...] = _tensor_view(rule, shape, tensor, index)
    return arrays


def to_theirs(
    rules: Iterable[Rule],
    shapes: Shapes,
    arrays: Mapping[str, np.ndarray],
    sizes: Sizes,
) -> dict[str, np.ndarray]:
    """Returns tensors under their names for the values of our variables;
    see `to_ours`.
    """
    tensors = {}
    for rule in rules:
        shape = _shape(rule, shapes, sizes)
        tensor = np.empty(_tensor_shape(rule, shape), np.float32)
        for index, source in enumerate(_variable_views(rule, shape, arrays)):
            _tensor_view(rule, shape, tensor, index)[...] = source
        tensors[rule.theirs] = tensor
    return dict(sorted(tensors.items()))


def check(
    rules: Iterable[Rule],
    shapes: Shapes,
    tensor_shapes: Mapping[str, tuple[int, ...]],
    sizes: Sizes,
) -> None:
    """Checks that names and shapes of their tensors fit our variables.

    Args:
      rules: the rules of the model.
      shapes: the shapes of our variables.
      tensor_shapes: the shapes of their tensors.
      sizes: their sizes of dimensions that are padded in our variables.

    Raises:
      CheckpointError: they differ, or the rules do not cover our variables.
    """
    rules = list(rules)
    ours = {name for rule in rules for name in rule.names()}
    unmatched = sorted(ours ^ set(shapes))
    if unmatched:
        raise mtf.CheckpointError(
            mtf.errors.explain_error(
                "this configuration has variables that the other library's model has "
                "not, or lacks some.",
                variables=_abridged(unmatched),
                way_out="Convert what `transformer.convert` made the sizes of.",
            )
        )
    expected = {
        rule.theirs: _tensor_shape(rule, _shape(rule, shapes, sizes)) for rule in rules
    }
    missing = sorted(set(expected) - set(tensor_shapes))
    unknown = sorted(set(tensor_shapes) - set(expected))
    differ = [
        f"{name}: {tensor_shapes[name]} found, {shape} wanted"
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
    """Returns the shape, in our dimensions, of that section of each of our variables
    which is in one of their tensors.
    """
    name, *_ = rule.names()
    dims = list(shapes[name])
    if rule.row is not None:
        del dims[0]
    return mtf.Shape([(dim.name, sizes.get(dim.name, dim.size)) for dim in dims])


def _axis_sizes(rule: Rule, shape: mtf.Shape) -> list[list[int]]:
    """Returns the sizes of the dimensions that each axis of theirs merges."""
    size_of = {"*": len(rule.names())}
    size_of.update(zip(shape.names, shape.sizes))
    axis_sizes = []
    for axis in rule.axis_dims():
        axis_sizes.append([size_of[name] for name in axis])
    return axis_sizes


def _tensor_shape(rule: Rule, shape: mtf.Shape) -> tuple[int, ...]:
    """Returns the shape of their tensor."""
    return tuple(math.prod(axis) for axis in _axis_sizes(rule, shape))


def _variable_views(
    rule: Rule, shape: mtf.Shape, arrays: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Returns views of those sections of our variables which one tensor holds."""
    section: tuple[Any, ...] = tuple(slice(size) for size in shape.sizes)
    if rule.row is not None:
        section = (rule.row, *section)
    return [arrays[name][section] for name in rule.names()]


def _tensor_view(
    rule: Rule, shape: mtf.Shape, tensor: np.ndarray, index: int
) -> np.ndarray:
    """Returns the view of their tensor that is variable `index` of the rule."""
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
    return f"{name} (close: {similar})" if similar else name


def _abridged(names: list[str]) -> str:
    """Returns a name a line; of a long list the first ones and a count of the rest."""
    if not names:
        return "-"
    lines = names[:_MAX_NAMES]
    if len(names) > _MAX_NAMES:
        lines = [*lines, f"and {len(names) - _MAX_NAMES} more"]
    return "\n".join(lines)
