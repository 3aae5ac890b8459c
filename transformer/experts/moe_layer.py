"""A mixture-of-experts layer: many feed-forward layers, of which each token uses a few.

    layer = MixtureOfExperts(mesh, "d_model:512", "d_ff:2048", experts=64)
    y, report = layer(x, training=True)          # [batch length d_model] -> the same
    y, _ = layer(x)                              # [batch d_model]: decoding, one token per example
    loss = loss + report.loss                    # balance and z losses, weighted

Experts are a dimension, so expert parallelism is a rule of the layout, such as
"experts:data", and the two all-to-alls of GShard (Lepikhin et al. 2020, arXiv 2006.16668)
are two renames of dimensions:

    x         [batch     length             d_model]     batch:data
    tokens    [batch     experts_all capacity d_model]          a gather of x by index
    tokens    [batch_all experts     capacity d_model_expert]   renamed: an all-to-all
    results   [batch_all experts     capacity d_model_expert]   of the experts
    results   [batch     experts_all capacity d_model]          renamed: an all-to-all
    y         [batch     length             d_model]     results, weighted by gates

No tensor has both `batch` and `experts`, so both may be sharded along one mesh axis:
`batch:data; experts:data`. Variables of experts have `d_model_expert` in place of
`d_model`, so `d_model` may be sharded along `data`, too (FSDP).

Tokens are routed in *groups*: an expert has slots for each group. By default a group is an
example; with `group_size` it is a section of an example, or several examples. Microbatches
split a batch by examples, so they do not split a group within an example; if they would
split a group of several examples, that is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gin

import meshtf as mtf
from transformer.experts.dispatch import by_index, by_one_hot
from transformer.experts.gating import top_2
from transformer.experts.routing import CAPACITY, EXPERTS, TOKENS, Routing

# Names of dimensions.
_EXPERTS_SHARDED = "experts"  # layouts shard this one
_GROUP = "group"  # the groups of an example
_MEMBER = "member"  # the examples of a group
_DISPATCH = {"index": by_index, "one_hot": by_one_hot}


class Report(NamedTuple):
    """Losses and statistics of one call of the layer.

    Attributes:
      loss: the weighted sum of the router's losses, a scalar, for the training loss.
      load: the fraction of all choices that each expert got, [experts_all].
      dropped: the fraction of choices without a slot, a scalar.
      entropy: the mean entropy of the router's probabilities in nats, a scalar.
    """

    loss: mtf.Tensor
    load: mtf.Tensor
    dropped: mtf.Tensor
    entropy: mtf.Tensor


def reduce_report(stacked: Report, dim: str) -> Report:
    """Returns one report for several layers: the sum of losses, the mean of the rest.

    Args:
      stacked: the reports of the layers, stacked along `dim`.
      dim: the name of the dimension of layers, such as "layers".
    """
    return Report(
        loss=mtf.reduce_sum(stacked.loss),
        load=mtf.reduce_mean(stacked.load, dim),
        dropped=mtf.reduce_mean(stacked.dropped),
        entropy=mtf.reduce_mean(stacked.entropy),
    )


def report_metrics(reports: dict[str, Report]) -> dict[str, float]:
    """Returns four metrics of each report, by name such as "block_1/dropped".

    "dropped" and "entropy" are those of `Report`; "most_loaded" is the load of the busiest
    expert divided by the mean load; "router_loss" is `Report.loss`.

    Args:
      reports: the reports by block name.
    """
    metrics: dict[str, float] = {}
    for name, report in reports.items():
        load = report.load.numpy()
        metrics |= {
            f"{name}/dropped": float(report.dropped),
            f"{name}/entropy": float(report.entropy),
            f"{name}/most_loaded": float(load.max() * len(load)),
            f"{name}/router_loss": float(report.loss),
        }
    return metrics


def experts_text(reports: dict[str, Report], metrics: dict[str, float]) -> str:
    """Returns a line about all layers, such as "8 experts: 3.2% of choices dropped, the
    busiest has 1.4 times the mean load, router loss 0.0102".

    Args:
      reports: the reports by block name.
      metrics: the metrics of these reports, from `report_metrics`.
    """

    def values(name: str) -> list[float]:
        """Returns a metric of each layer."""
        return [metrics[f"{layer}/{name}"] for layer in reports]

    expert_counts = sorted({report.load.shape.size for report in reports.values()})
    mean_dropped = sum(values("dropped")) / len(reports)
    return (
        f"{' or '.join(map(str, expert_counts))} experts: "
        f"{mean_dropped:.1%} of choices dropped, "
        f"the busiest has {max(values('most_loaded')):.1f} times the mean load, "
        f"router loss {sum(values('router_loss')):.4f}"
    )


@gin.configurable
class MixtureOfExperts(mtf.Module):
    """Parallel feed-forward layers, and a router that assigns tokens to them.

    The router computes in float32, whatever x is ("selective precision": Fedus et al.
    2021, arXiv 2101.03961, section 2.4). Experts compute in the type of x.

    Args:
      mesh: the mesh of the variables.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      hidden_dim: the hidden dimension of each expert, such as "d_ff:2048".
      experts: the count of experts.
      activation: of experts, one of those that `mtf.layers.FeedForward` takes.
      gating: assigns tokens to experts, one of `transformer.experts.gating`.
      group_size: tokens of a group; a divisor or a multiple of the length. If there are
        fewer tokens, they are one group. None: the tokens of an example.
      shared_experts: experts that all tokens go through in addition (Dai et al. 2024, arXiv
        2401.06066).
      jitter: in training, the inputs of the router are multiplied by random numbers from
        1 - jitter to 1 + jitter.
      balance_weight: weight of the balance loss, which evens the load of experts.
      z_weight: weight of the z loss, which keeps logits small.
      dispatch: "index" gathers tokens by index; "one_hot" multiplies by one-hot tensors
        as the paper does, at a cost of slots times tokens, for comparison.
      output_initializer: of the last kernel of each expert.
      name: the last component of the path of its variables.

    Attributes:
      causal: whether tokens must not depend on later ones; then gatings in which experts
        choose among tokens are refused. Set by the block that contains the layer.

    Raises:
      ParseError: an unknown dispatch.
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
        (self.model_dim,) = mtf.Shape(model_dim)
        (hidden,) = mtf.Shape(hidden_dim)
        self._expert_model_name = f"{self.model_dim.name}_expert"
        self.gating = gating
        self.group_size = group_size
        self.jitter = jitter
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
                mtf.Dimension(self._expert_model_name, self.model_dim.size),
                hidden,
                activation,
                output_initializer=output_initializer,
                expert_dims=mtf.Dimension(_EXPERTS_SHARDED, experts),
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
        """Returns the weighted results of the experts, and a report; tokens without an expert
        become zero.

        Args:
          x: [..., length, d_model]; or one position while decoding, [..., d_model]:
            each token is then a group, and none is dropped.
          training: whether to apply jitter, and the gating's behaviour in training.
          nonpadding: bool [..., length]: the tokens that go through experts; None: all.

        Raises:
          ShapeError: groups do not fit the tokens, or microbatches would split them;
            or experts choose among tokens, and x has one position.
          PlanError: experts choose among tokens in a causal model.
        """
        outer = x.shape.without(TOKENS, self.model_dim.name).names
        order = [*outer, *x.shape.only([TOKENS]).names, self.model_dim.name]
        grouped = self._grouped(mtf.transpose(x, order), len(outer))
        if nonpadding is not None:
            nonpadding = self._grouped(
                mtf.transpose(nonpadding, order[:-1]), len(outer)
            )
        routing = self.gating(
            self._logits(grouped, training), nonpadding=nonpadding, training=training
        )
        if routing.choices is None and TOKENS not in x.shape:
            raise mtf.ShapeError(
                f"experts cannot choose among the tokens of one position, {x.shape!r}: "
                "the choice depends on later tokens.\n  To generate, use gating in which "
                "tokens choose: switch or top_k."
            )
        if routing.choices is None and self.causal:
            raise mtf.PlanError(
                "experts choose among tokens (expert_choice) in a decoder: the choice "
                "depends on later tokens, which the decoder predicts.\n  Use gating in "
                "which tokens choose: MixtureOfExperts.gating = @top_k, @switch or "
                "@top_2. expert_choice is for encoders."
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

    def _grouped(self, x: mtf.Tensor, num_outer: int) -> mtf.Tensor:
        """Returns x in groups. Where x has no `length`, each token is a group: `length`
        of size 1 is inserted after `num_outer` dimensions.
        """
        if TOKENS in x.shape:
            return into_groups(x, self.group_size)
        dims = list(x.shape)
        dims.insert(num_outer, mtf.Dimension(TOKENS, 1))
        return mtf.reshape(x, dims)

    def _logits(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        x = mtf.cast(x, "float32")
        if training:
            x = mtf.layers.multiplicative_jitter(x, self.jitter)
        return self.router(x)

    def _through_experts(self, x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
        """Dispatches tokens to experts, and combines their results."""
        model = self.model_dim.name
        groups = [n for n in x.shape.names if n not in (TOKENS, model)]
        to_experts = {n: f"{n}_all" for n in groups}
        to_experts[EXPERTS] = _EXPERTS_SHARDED
        to_experts[model] = self._expert_model_name
        tokens = mtf.transpose(
            self.dispatch.take(x, routing), [EXPERTS, *groups, CAPACITY, model]
        )
        results = self.experts(mtf.rename(tokens, to_experts))
        from_experts = {new: old for old, new in to_experts.items()}
        results = mtf.rename(results, from_experts)
        return self.dispatch.combine(results, routing, x)


def into_groups(x: mtf.Tensor, size: int | None) -> mtf.Tensor:
    """Returns x[*outer, length, ...] with groups of `size` tokens as its length.

    A group is a section of an example, [*outer, group, length, ...], or several
    neighbouring examples of the last dimension before `length`, which is divided by
    their count.

    Raises:
      ShapeError: groups do not fit the tokens, or microbatches would split them.
    """
    length = x.shape[TOKENS]
    leading = list(x.shape)[: x.shape.index(TOKENS)]
    if size is None or size == length or size > length and not leading:
        return x
    if length % size == 0:
        return mtf.unflatten(x, TOKENS, [(_GROUP, length // size), (TOKENS, size)])
    examples = leading[-1] if leading else mtf.Dimension("example", 1)
    num_examples = size // length  # of a group
    if size >= examples.size * length:
        num_examples = examples.size
    is_uneven = size > num_examples * length and num_examples < examples.size
    if is_uneven or num_examples < 1 or examples.size % num_examples:
        raise mtf.ShapeError(
            f"groups of {size} tokens do not fit {x.shape!r}.\n  Take a divisor of "
            f'"{TOKENS}", or a multiple by a divisor of "{examples.name}".'
        )
    if num_examples > 1 and mtf.microbatches_of(examples.name) > 1:
        raise mtf.ShapeError(
            f"microbatches would split groups of {size} tokens: a group is "
            f'{num_examples} neighbouring elements of "{examples.name}", and a microbatch '
            "takes elements at a stride.\n"
            f"  Take groups of at most {length} tokens, which microbatches do not split."
        )
    groups = (examples.name, examples.size // num_examples)
    x = mtf.unflatten(x, examples.name, [groups, (_MEMBER, num_examples)])
    return mtf.flatten(x, [_MEMBER, TOKENS], TOKENS)
