"""Names of another library's tensors and of our variables, and how the axes of theirs
read in ours.

    BLOCK = '''
      ln_1.weight          attention_norm/scale                 d_model
      attn.c_attn.weight   attention/[query,key,value]/kernel   d_model (* heads d_kv)
      attn.c_proj.weight   attention/output/kernel              (heads d_kv) d_model
    '''
    rules = each_layer(12, table(BLOCK, theirs="h.{layer}.", ours="block_{layer}/"))
    arrays = to_ours(rules, shapes, tensors)          # by our names
    tensors = to_theirs(rules, shapes, arrays)        # by theirs, the same bits

The last line of the table says that their tensor has two axes: heads and d_kv in one,
and d_model. Ours has these names in any order, such as `[heads d_kv d_model]`. A tensor
of theirs that is several of ours has a `*`, which counts them. So transposes, merged
heads and fused kernels need no more words. Where one variable of ours serves all
layers, with their dimension in front, our name has no `{layer}`: each of its rows is a
tensor of theirs. Where one of our dimensions is filled up, `sizes` says how large it is
there, as in {"vocab": 50257}.
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


class Tensors(Protocol):
    """Another library's tensors by name, whose shapes are known before they
    are read.
    """

    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> np.ndarray: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """One of their tensors, the variables of ours that it is made of, and its axes in
    our names.

    Args:
      theirs: their name.
      ours: our name; "[a,b]" in it stands for several.
      axes: for each axis of theirs one of our names, or several in brackets; `*` counts
        variables.
      row: which row of our variable it is; None: all of it.
    """

    theirs: str
    ours: str
    axes: str
    row: int | None = None

    def names(self) -> list[str]:
        """Returns the names of our variables."""
        before, *several = re.split(r"\[(.*)\]", self.ours)
        return (
            [f"{before}{n}{several[1]}" for n in several[0].split(",")]
            if several
            else [before]
        )

    def parts(self) -> list[list[str]]:
        """Returns what each axis of theirs is made of."""
        return [
            axis.strip("()").split() for axis in re.findall(r"\([^)]*\)|\S+", self.axes)
        ]


def table(text: str, theirs: str = "", ours: str = "") -> list[Rule]:
    """Returns the rules of lines of three columns.

    Args:
      text: the table.
      theirs: what their names begin with.
      ours: what our names begin with.
    """
    columns = [line.split(maxsplit=2) for line in text.splitlines() if line.strip()]
    return [Rule(theirs + their, ours + our, axes) for their, our, axes in columns]


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
    """Returns the values of our variables, by name; 0 where they are larger than
    theirs.

    Args:
      rules: of the model.
      shapes: of our variables.
      tensors: of theirs.
      sizes: of dimensions that are smaller there.

    Raises:
      CheckpointError: names or shapes of theirs are not those that our variables ask
        for.
    """
    rules = list(rules)
    check(rules, shapes, {name: tensors.shape(name) for name in tensors}, sizes)
    arrays = {name: np.zeros(shape.sizes, np.float32) for name, shape in shapes.items()}
    for rule in rules:
        tensor, shape = tensors[rule.theirs], _shape(rule, shapes, sizes)
        for part, target in enumerate(_targets(rule, shape, arrays)):
            target[...] = _view(rule, shape, tensor, part)
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
    found = {}
    for rule in rules:
        shape = _shape(rule, shapes, sizes)
        tensor = np.empty(_sizes(rule, shape), np.float32)
        for part, source in enumerate(_targets(rule, shape, arrays)):
            _view(rule, shape, tensor, part)[...] = source
        found[rule.theirs] = tensor
    return dict(sorted(found.items()))


def check(
    rules: Iterable[Rule],
    shapes: Shapes,
    found: Mapping[str, tuple[int, ...]],
    sizes: Sizes,
) -> None:
    """Compares names and shapes of theirs with those that our variables ask for.

    Args:
      rules: of the model.
      shapes: of our variables.
      found: shapes of their tensors.
      sizes: of dimensions that are smaller there.

    Raises:
      CheckpointError: they differ, or rules and variables do.
    """
    rules = list(rules)
    ours = [name for rule in rules for name in rule.names()]
    lost = sorted(set(ours) ^ set(shapes))
    if lost:
        raise mtf.CheckpointError(
            mtf.explain_error(
                "this configuration has variables that the other library's model has "
                "not, or lacks some.",
                variables=_some(lost),
                way_out="Convert what `transformer.convert` made the sizes of.",
            )
        )
    wanted = {rule.theirs: _sizes(rule, _shape(rule, shapes, sizes)) for rule in rules}
    missing, unknown = (
        sorted(set(wanted) - set(found)),
        sorted(set(found) - set(wanted)),
    )
    differ = [
        f"{name}: {found[name]} found, {size} wanted"
        for name, size in sorted(wanted.items())
        if name in found and found[name] != size
    ]
    if missing or unknown or differ:
        close = [
            f"{n} (close: {c})" if (c := mtf.near_misses(n, unknown)) else n
            for n in missing[:6]
        ]
        raise mtf.CheckpointError(
            mtf.explain_error(
                "names or shapes are not those of the configuration.",
                missing=_some(close + missing[6:]),
                unknown=_some(unknown),
                other_shape=_some(differ),
                way_out="config.json and the tensors must be of one model.",
            )
        )


def _shape(rule: Rule, shapes: Shapes, sizes: Sizes) -> mtf.Shape:
    """Returns the shape, in our names, of that part of our variables which one tensor
    has.
    """
    dims = list(shapes[rule.names()[0]])[0 if rule.row is None else 1 :]
    return mtf.Shape([(dim.name, sizes.get(dim.name, dim.size)) for dim in dims])


def _axes(rule: Rule, shape: mtf.Shape) -> list[list[int]]:
    known = {"*": len(rule.names()), **dict(zip(shape.names, shape.sizes))}
    return [[known[name] for name in axis] for axis in rule.parts()]


def _sizes(rule: Rule, shape: mtf.Shape) -> tuple[int, ...]:
    """Returns the shape of their tensor."""
    return tuple(math.prod(axis) for axis in _axes(rule, shape))


def _targets(
    rule: Rule, shape: mtf.Shape, arrays: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Returns views of those parts of our variables which one tensor has."""
    part: tuple[Any, ...] = tuple(slice(size) for size in shape.sizes)
    if rule.row is not None:
        part = (rule.row, *part)
    return [arrays[name][part] for name in rule.names()]


def _view(rule: Rule, shape: mtf.Shape, tensor: np.ndarray, part: int) -> np.ndarray:
    """Returns a view of their tensor that is one of our variables."""
    names = [name for axis in rule.parts() for name in axis]
    split = tensor.reshape([size for axis in _axes(rule, shape) for size in axis])
    split = split[tuple(part if name == "*" else slice(None) for name in names)]
    kept = [name for name in names if name != "*"]
    return split.transpose([kept.index(name) for name in shape.names])


def _some(names: list[str]) -> str:
    more = f"\nand {len(names) - 6} more" if len(names) > 6 else ""
    return "\n".join(names[:6]) + more if names else "-"
