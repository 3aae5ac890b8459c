"""Legal layouts of eight devices, drawn at random.

for candidate in draw("moe", seed=0, count=30, is_legal=runs):
  print(candidate.text)
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import meshtf as mtf

MESHES = ("a:8", "a:4;b:2", "a:2;b:4", "a:2;b:2;c:2")
# What may be sharded along one axis, by model; "*" stands for the name of the axis.
_COMMON = (
    "batch:*",
    "heads:*; d_ff:*; vocab:*",
    "heads:*; d_ff:*",
    "d_ff:*; vocab:*",
    "length:*",
    "d_model:*",
)
RULES = {
    "lm": _COMMON,
    "bert": _COMMON,
    "moe": (*_COMMON, "experts:*", "batch:*; experts:*"),
}
_SHARE_OF_OPTION = (
    0.2  # of candidates that have FSDP, ZeRO-1, recompute, or microbatches
)
_MAX_DRAWS = 4_000


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mesh with its layouts, and what a trainer does.

    Attributes:
      axes: the axes of the mesh.
      layout, variable_layout, optimizer_layout: the rules, as `mtf.Mesh` takes them.
      recompute: whether the backward pass recomputes each block.
      microbatches: how many microbatches a batch is split into.
    """

    axes: str
    layout: str
    variable_layout: str = ""
    optimizer_layout: str = ""
    recompute: bool = False
    microbatches: int = 1

    def mesh(self, devices: str | None) -> mtf.Mesh:
        """Returns the mesh on devices, as `mtf.Mesh` takes them."""
        return mtf.Mesh(
            self.axes,
            layout=self.layout,
            variable_layout=self.variable_layout,
            optimizer_layout=self.optimizer_layout,
            devices=devices,
        )

    @property
    def text(self) -> str:
        """The candidate in one line."""
        words = [self.axes, self.layout.replace(" ", "")]
        if self.variable_layout:
            words.append("FSDP")
        if self.optimizer_layout:
            words.append("ZeRO-1")
        if self.recompute:
            words.append("recompute")
        if self.microbatches > 1:
            words.append(f"{self.microbatches} microbatches")
        return " ".join(words)


def draw(
    model: str,
    seed: int,
    count: int,
    is_legal: Callable[[Candidate], bool],
    excluded: Sequence[Candidate] = (),
) -> list[Candidate]:
    """Returns different legal candidates, fewer than `count` if there are not so many.

    Args:
      model: a key of `RULES`.
      seed: the seed of the draw.
      count: how many candidates.
      is_legal: whether a candidate can run.
      excluded: candidates that are not drawn.
    """
    rng = random.Random(seed)
    tried = set(excluded)
    drawn: list[Candidate] = []
    for _ in range(_MAX_DRAWS):
        if len(drawn) == count:
            break
        candidate = _draw_one(model, rng)
        if candidate in tried:
            continue
        tried.add(candidate)
        if is_legal(candidate):
            drawn.append(candidate)
    return drawn


def _draw_one(model: str, rng: random.Random) -> Candidate:
    """Returns a candidate, which may be illegal."""
    axes = rng.choice(MESHES)
    names = [axis.partition(":")[0] for axis in axes.split(";")]
    rules = rng.sample(RULES[model], len(names))
    layout = "; ".join(rule.replace("*", name) for rule, name in zip(rules, names))
    batch_axes = [name for rule, name in zip(rules, names) if "batch:" in rule]
    sharded = ""
    if batch_axes and "d_model:" not in layout:
        sharded = f"d_model:{batch_axes[0]}"
    options = [rng.random() < _SHARE_OF_OPTION for _ in range(4)]
    fsdp, zero, recompute, microbatches = options
    return Candidate(
        axes,
        layout,
        variable_layout=sharded if fsdp else "",
        optimizer_layout=sharded if zero and not fsdp else "",
        recompute=recompute,
        microbatches=2 if microbatches else 1,
    )
