"""A mixture of experts: many feed-forward layers, of which each token goes through a
few.

    layer = MixtureOfExperts(mesh, "d_model:512", "d_ff:2048", experts=64)
    y, report = layer(x, training=True)          # [batch length d_model] -> the same
    y, _ = layer(x)                              # [batch d_model]: a token each of texts to write
    loss = loss + report.loss                    # balance and z losses, weighted

Experts are a dimension, so expert parallelism is a rule of the layout, and the two
all_to_alls of GShard (Lepikhin et al. 2020, arXiv 2006.16668) are two renames:

    x         [batch     length             d_model]     batch:data
    tokens    [batch     experts_all capacity d_model]   rows of x, by number
    tokens    [batch_all experts     capacity d_model_expert]   experts:data: an all_to_all
    results   [batch_all experts     capacity d_model_expert]
    results   [batch     experts_all capacity d_model]          an all_to_all
    y         [batch     length             d_model]     rows of results, times gates

Gates never know of `experts`, so `batch:data; experts:data` is a legal layout.
Variables of experts have no `d_model`, so it may be cut along `data`, too (FSDP). A row
of x is a group: experts have slots for tokens of each. `group_size` makes other groups,
of parts of a row or of several rows. Microbatches part a batch by rows, so groups
within rows do not know of them; microbatches that would cut groups of several rows are
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gin

import meshtf as mtf
from transformer.experts.dispatch import by_index, by_product
from transformer.experts.gating import top_2
from transformer.experts.routing import CAPACITY, EXPERTS, TOKENS, Routing

_CUT = "experts"  # the name by which experts are cut
_GROUP, _ROW = "group", "row"
_DISPATCH = {"index": by_index, "one_hot": by_product}


class Report(NamedTuple):
    """What a layer tells of a call."""

    loss: (
        mtf.Tensor
    )  # scalar: the losses of the router, weighted, to be added to the loss
    load: mtf.Tensor  # [experts_all]: each expert's share of all choices
    dropped: mtf.Tensor  # scalar: the share of choices that no expert had a slot for
    entropy: mtf.Tensor  # scalar: of a token's probabilities, in nats


def report_metrics(reports: dict[str, Report]) -> dict[str, float]:
    """Returns what reports say as numbers by name, such as "block_1/dropped".

    "most_loaded" is the load of the busiest expert, as a multiple of the mean.
    """
    numbers: dict[str, float] = {}
    for name, report in reports.items():
        load = report.load.numpy()
        numbers |= {
            f"{name}/dropped": float(report.dropped),
            f"{name}/entropy": float(report.entropy),
            f"{name}/most_loaded": float(load.max() * len(load)),
        }
    return numbers


@gin.configurable
class MixtureOfExperts(mtf.Module):
    """Feed-forward layers side by side, and a router that says which tokens go through
    which.

    The router computes in float32, whatever x is ("selective precision": Fedus et al.
    2021, arXiv 2101.03961, section 2.4). Experts compute in the type of x.

    Args:
      mesh: where the variables lie.
      model_dim: what comes in and goes out, such as "d_model:512".
      hidden_dim: what lies between in each expert, such as "d_ff:2048".
      experts: how many there are.
      activation: of experts, one of those that `mtf.layers.FeedForward` takes.
      gating: which tokens go where, one of `transformer.experts.gating`.
      group_size: tokens of a group; it divides the length, or is a multiple of it. If
        there are fewer tokens, they are one group. None: the tokens of a row.
      shared_experts: experts that all tokens go through besides (Dai et al. 2024, arXiv
        2401.06066).
      jitter: in training, what the router sees is times random numbers from 1 - jitter
        to 1 + jitter.
      balance_weight: of the balance loss, by which the load of experts becomes even.
      z_weight: of the z loss, by which logits stay small.
      dispatch: "index" finds rows by number; "one_hot" multiplies with tensors of zeros
        and ones, as the paper does, at a cost that grows with slots times tokens: it is
        there to compare.
      output_initializer: of the last kernel of each expert.
      name: the last part of the path of its variables.

    Attributes:
      causal: whether no token may know of those after it; then gatings are refused in
        which experts choose among tokens. The block that it is part of says so.

    Raises:
      ParseError: there is no such dispatch.
    """

    causal = False

    def __init__(
        self,
        mesh: mtf.Mesh,
        model_dim: mtf.Dimension | str,
        hidden_dim: mtf.Dimension | str,
        experts: int = 8,
        activation: str = "relu",
        gating: Callable[..., Routing] = top_2,
        group_size: int | None = None,
        shared_experts: int = 0,
        jitter: float = 0.0,
        balance_weight: float = 1e-2,
        z_weight: float = 1e-3,
        dispatch: str = "index",
        output_initializer: mtf.layers.initializers.Initializer | None = None,
        name: str = "moe",
    ) -> None:
        super().__init__(name)
        if dispatch not in _DISPATCH:
            raise mtf.ParseError(f'dispatch is "index" or "one_hot", not {dispatch!r}.')
        (self.model_dim,), (hidden,) = mtf.Shape(model_dim), mtf.Shape(hidden_dim)
        self._inside = f"{self.model_dim.name}_expert"
        self.gating, self.group_size, self.jitter = gating, group_size, jitter
        self.dispatch = _DISPATCH[dispatch]
        self.weights = {"balance": balance_weight, "z": z_weight}
        with self.scope():
            self.router = mtf.layers.Dense(
                mesh,
                self.model_dim,
                mtf.Dimension(EXPERTS, experts),
                use_bias=False,
                name="router",
            )
            self.experts = mtf.layers.FeedForward(
                mesh,
                mtf.Dimension(self._inside, self.model_dim.size),
                hidden,
                activation,
                output_initializer=output_initializer,
                expert_dims=mtf.Dimension(_CUT, experts),
                name="experts",
            )
            self.shared = (
                mtf.layers.FeedForward(
                    mesh,
                    self.model_dim,
                    mtf.Dimension(hidden.name, hidden.size * shared_experts),
                    activation,
                    output_initializer=output_initializer,
                    name="shared",
                )
                if shared_experts
                else None
            )

    def __call__(
        self,
        x: mtf.Tensor,
        training: bool = False,
        nonpadding: mtf.Tensor | None = None,
    ) -> tuple[mtf.Tensor, Report]:
        """Returns what experts made of x, and a report; tokens that none works on
        become zero.

        Args:
          x: [..., length, d_model]; or one position of texts that are written, [...,
            d_model]: each token is then a group, in which none is dropped.
          training: whether there is jitter, and what gatings do in training.
          nonpadding: bool [..., length]: the tokens that go through experts; None: all.

        Raises:
          ShapeError: groups do not fit the tokens, or microbatches would cut them; or
            experts, which choose among tokens, are given one position.
          PlanError: experts choose among tokens, and none may know of those after it.
        """
        rows = x.shape.without(TOKENS, self.model_dim.name).names
        order = [*rows, *x.shape.only([TOKENS]).names, self.model_dim.name]
        grouped = self._grouped(mtf.transpose(x, order), len(rows))
        if nonpadding is not None:
            nonpadding = self._grouped(mtf.transpose(nonpadding, order[:-1]), len(rows))
        routing = self.gating(
            self._logits(grouped, training), nonpadding=nonpadding, training=training
        )
        if routing.choices is None and TOKENS not in x.shape:
            raise mtf.ShapeError(
                f"experts cannot choose among the tokens of one position, {x.shape!r}: "
                "which token goes "
                "where depends on later ones.\n  To write texts, let tokens choose: "
                "switch or top_k."
            )
        if routing.choices is None and self.causal:
            raise mtf.PlanError(
                "experts choose among tokens (expert_choice) in a decoder: which token "
                "goes where "
                "depends on later tokens, those that it is to predict.\n  Let tokens "
                "choose: "
                "MixtureOfExperts.gating = @top_k, @switch or @top_2; only encoders "
                "can take this one."
            )
        y = self._through_experts(grouped, routing)
        y = mtf.transpose(
            mtf.reshape(y, [x.shape.dim(n) for n in order]), x.shape.names
        )
        loss = mtf.add_n(
            [value * self.weights[kind] for kind, value in routing.losses.items()]
        )
        if self.shared is not None:
            y = y + self.shared(x)
        return y, Report(loss, routing.load, routing.dropped, routing.entropy)

    def _grouped(self, x: mtf.Tensor, rows: int) -> mtf.Tensor:
        """Returns x in groups; where there is no length after so many rows, each token
        is a group.
        """
        if TOKENS in x.shape:
            return into_groups(x, self.group_size)
        return mtf.reshape(
            x, [*list(x.shape)[:rows], mtf.Dimension(TOKENS, 1), *list(x.shape)[rows:]]
        )

    def _logits(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        x = mtf.cast(x, "float32")
        if training:
            x = mtf.layers.multiplicative_jitter(x, self.jitter)
        return self.router(x)

    def _through_experts(self, x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
        groups = [n for n in x.shape.names if n not in (TOKENS, self.model_dim.name)]
        model = self.model_dim.name
        away = {EXPERTS: _CUT, model: self._inside, **{n: f"{n}_all" for n in groups}}
        tokens = mtf.transpose(
            self.dispatch.take(x, routing), [EXPERTS, *groups, CAPACITY, model]
        )
        results = self.experts(mtf.rename(tokens, away))
        results = mtf.rename(results, {new: old for old, new in away.items()})
        return self.dispatch.bring_back(results, routing, x)


def into_groups(x: mtf.Tensor, size: int | None) -> mtf.Tensor:
    """Returns x[*rows, length, ...] with groups of `size` tokens as its length.

    Groups are parts of a row, [*rows, group, length, ...], or several neighbouring rows
    of the last dimension before `length`, which then has that many rows less.

    Raises:
      ShapeError: groups do not fit the tokens, or microbatches would cut them.
    """
    length, leading = x.shape[TOKENS], list(x.shape)[: x.shape.index(TOKENS)]
    if size is None or size == length or size > length and not leading:
        return x
    if length % size == 0:
        return mtf.split_dim(x, TOKENS, [(_GROUP, length // size), (TOKENS, size)])
    rows = leading[-1] if leading else mtf.Dimension("rows", 1)
    several = rows.size if size >= rows.size * length else size // length
    if (
        size > several * length
        and several < rows.size
        or several < 1
        or rows.size % several
    ):
        raise mtf.ShapeError(
            f"groups of {size} tokens do not fit {x.shape!r}.\n  The size of a group "
            "divides "
            f'"{TOKENS}", or is that of several rows of "{rows.name}" which divide it.'
        )
    if several > 1 and mtf.microbatches_of(rows.name) > 1:
        raise mtf.ShapeError(
            f"a microbatch would cut groups of {size} tokens: each takes every "
            "so-many-th row of "
            f'"{rows.name}", and a group is {several} neighbouring rows of {length} '
            "tokens.\n"
            f"  Take groups of at most {length} tokens, which microbatches do not cut."
        )
    x = mtf.split_dim(
        x, rows.name, [(rows.name, rows.size // several), (_ROW, several)]
    )
    return mtf.merge(x, [_ROW, TOKENS], TOKENS)
