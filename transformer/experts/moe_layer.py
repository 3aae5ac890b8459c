"""A mixture-of-experts layer: many feed-forward layers; each token uses a few of them.

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

The layout has no rules for `batch_all` and `experts_all`, so these are not sharded. No tensor
has both `batch` and `experts`, so both may be sharded along one mesh axis. Variables of
experts have `d_model_expert` in place of `d_model`, so that may be sharded there, too (FSDP).

A *choice* is an expert that a token is to go through. Tokens are routed in *groups*: an
expert has `capacity` slots for each group, a slot stores one token, and choices beyond that
are dropped. By default a group is an example; with `group_size` it is a section of an
example, or several examples. Microbatches split a batch by examples, so they do not split a
group within an example; if they would split a group of several examples, that is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gin

import meshtf as mtf
from transformer.experts.dispatch import by_index, by_one_hot
from transformer.experts.gating import top_2
from transformer.experts.routing import (
    CAPACITY,
    EXPERTS,
    TOKENS,
    Routing,
    check_count,
)

# Names of dimensions.
_EXPERTS_SHARDED = "experts"  # of experts' variables and inputs; layouts shard this one
_GROUP = "group"  # the groups of an example
_MEMBER = "member"  # the examples of a group
_DISPATCH = {"index": by_index, "one_hot": by_one_hot}


class Report(NamedTuple):
    """Losses and statistics of one call of the layer.

    Attributes:
      loss: the weighted sum of the router's losses, means over the batch's tokens: a scalar.
      load: the fraction of all choices that each expert got, [experts_all].
      dropped: the fraction of choices without a slot, a scalar.
      entropy: the mean entropy of the router's probabilities in nats, a scalar.
      tokens: the count of tokens without padding, a float32 scalar. The other fields are
        means over them, so the report of a batch is the mean of its parts' reports,
        weighted by `tokens`.
    """

    loss: mtf.Tensor
    load: mtf.Tensor
    dropped: mtf.Tensor
    entropy: mtf.Tensor
    tokens: mtf.Tensor


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
        tokens=mtf.reduce_mean(stacked.tokens),  # the same in all layers
    )


def report_metrics(reports: dict[str, Report]) -> dict[str, float]:
    """Returns four metrics of each report, by name such as "block_1/dropped".

    "dropped", "entropy" and "router_loss" are fields of `Report`; "most_loaded" is the load
    of the busiest expert divided by the mean load.

    Args:
      reports: the reports by block name.
    """
    metrics: dict[str, float] = {}
    for name, report in reports.items():
        load = report.load.numpy()  # sums to 1, so the mean load is 1 / len(load)
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

    def layer_values(metric: str) -> list[float]:
        """Returns the value of a metric for each layer."""
        return [metrics[f"{block}/{metric}"] for block in reports]

    expert_counts = sorted({report.load.shape.size for report in reports.values()})
    mean_dropped = sum(layer_values("dropped")) / len(reports)
    return (
        f"{' or '.join(map(str, expert_counts))} experts: "
        f"{mean_dropped:.1%} of choices dropped, "
        f"the busiest has {max(layer_values('most_loaded')):.1f} times the mean load, "
        f"router loss {sum(layer_values('router_loss')):.4f}"
    )


@gin.configurable
class MixtureOfExperts(mtf.Module):
    """Parallel feed-forward layers, and a router that assigns tokens to them.

    The router computes in float32 whatever the dtype of x ("selective precision": Fedus et
    al. 2021, arXiv 2101.03961, section 2.4). Experts compute in the dtype of x.

    Args:
      mesh: the mesh of the variables.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      hidden_dim: the hidden dimension of each expert, such as "d_ff:2048".
      experts: the count of experts.
      activation: the activation of experts: see `mtf.layers.FeedForward`.
      gating: the function that assigns tokens to experts: see `transformer.experts.gating`.
      group_size: the count of tokens of a group, a divisor or a multiple of the length. If
        there are fewer tokens, they are one group. None: a group is an example.
      shared_experts: the count of experts that every token goes through in addition (Dai et
        al. 2024, arXiv 2401.06066).
      jitter: the range of random factors: in training, the inputs of the router are
        multiplied by numbers from 1 - jitter to 1 + jitter.
      balance_weight: the weight of the balance loss, which evens the load of experts.
      z_weight: the weight of the z loss, which keeps logits small.
      dispatch: "index" gathers tokens by index; "one_hot" multiplies by one-hot tensors
        as the paper of GShard does, at a cost of slots times tokens, for comparison.
      output_initializer: the initializer of the last kernel of each expert; None: the
        default of `mtf.layers.FeedForward`.
      name: the last component of the path of the layer's variables.

    Attributes:
      causal: whether tokens must not depend on later ones; then a gating in which experts
        choose among tokens raises. Set by the block that contains the layer.

    Raises:
      ParseError: an unknown dispatch, or a count that is not an integer, or too small.
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
        check_count("MixtureOfExperts.experts", experts, minimum=1)
        check_count("MixtureOfExperts.shared_experts", shared_experts, minimum=0)
        if group_size is not None:
            check_count("MixtureOfExperts.group_size", group_size, minimum=1)
        # `Shape` parses texts such as "d_model:512"; each has one dimension.
        (self.model_dim,) = mtf.Shape(model_dim)
        (d_hidden,) = mtf.Shape(hidden_dim)
        self._expert_model_name = f"{self.model_dim.name}_expert"
        self.gating = gating
        self.group_size = group_size
        self.jitter = jitter
        self.dispatch = _DISPATCH[dispatch]
        self.loss_weights = {"balance": balance_weight, "z": z_weight}
        # In this scope, paths of variables start with the path of this module.
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
                d_hidden,
                activation=activation,
                output_initializer=output_initializer,
                expert_dims=mtf.Dimension(_EXPERTS_SHARDED, experts),
                name="experts",
            )
            self.shared = None
            if shared_experts:
                # One layer with the hidden sizes of all shared experts together computes
                # the sum of their outputs.
                self.shared = mtf.layers.FeedForward(
                    mesh,
                    self.model_dim,
                    mtf.Dimension(d_hidden.name, d_hidden.size * shared_experts),
                    activation=activation,
                    output_initializer=output_initializer,
                    name="shared",
                )

    def __call__(
        self,
        x: mtf.Tensor,
        training: bool = False,
        nonpadding: mtf.Tensor | None = None,
    ) -> tuple[mtf.Tensor, Report]:
        """Returns the weighted sum of experts' results for each token, shaped as x, and a
        report. The result is 0 for a token without an expert.

        Args:
          x: the tokens, [..., length, d_model]; in decoding, tokens at one position, [...,
            d_model]: then each token is a group, and none is dropped.
          training: whether to apply jitter, and the gating's behaviour in training.
          nonpadding: bool [..., length]: True for tokens that go through experts; None:
            all do.

        Raises:
          ShapeError: groups do not fit the tokens, or microbatches would split them;
            or experts choose among tokens, and x has one position.
          PlanError: experts choose among tokens in a causal model.
        """
        outer_names = x.shape.without(TOKENS, self.model_dim.name).names
        num_outer = len(outer_names)
        # The dimensions of x in the order [*outer, length, d_model]; in decoding there is no
        # `length`.
        order = [*outer_names, *x.shape.only([TOKENS]).names, self.model_dim.name]
        grouped_x = self._split_into_groups(mtf.transpose(x, order), num_outer)
        if nonpadding is not None:
            nonpadding = mtf.transpose(nonpadding, order[:-1])  # without d_model
            nonpadding = self._split_into_groups(nonpadding, num_outer)
        logits = self._router_logits(grouped_x, training)
        routing = self.gating(logits, nonpadding=nonpadding, training=training)
        if routing.choices is None:
            self._check_experts_may_choose(x.shape)
        y = self._apply_experts(grouped_x, routing)
        # From groups back to the dimensions of x, in their order.
        y = mtf.reshape(y, [x.shape.dim(name) for name in order])
        y = mtf.transpose(y, x.shape.names)
        if self.shared is not None:
            y = y + self.shared(x)
        loss = mtf.add_n(
            [value * self.loss_weights[name] for name, value in routing.losses.items()]
        )
        load, dropped, entropy = routing.load, routing.dropped, routing.entropy
        return y, Report(loss, load, dropped, entropy, tokens=routing.num_tokens)

    def _check_experts_may_choose(self, shape: mtf.Shape) -> None:
        """Raises an error if experts would choose among tokens of one position, or in a
        causal model.
        """
        if TOKENS not in shape:
            raise mtf.ShapeError(
                f"experts cannot choose among the tokens of one position, {shape!r}: "
                "the choice depends on later tokens.\n  To generate, use gating in which "
                "tokens choose: switch or top_k."
            )
        if self.causal:
            raise mtf.PlanError(
                "experts choose among tokens (expert_choice) in a decoder: the choice "
                "depends on later tokens, which the decoder predicts.\n  Use gating in "
                "which tokens choose: MixtureOfExperts.gating = @top_k, @switch or "
                "@top_2. expert_choice is for encoders."
            )

    def _split_into_groups(self, x: mtf.Tensor, num_outer: int) -> mtf.Tensor:
        """Returns x [*outer, length, ...] split into groups by `into_groups`.

        If x has no `length`, each token is a group: a dimension `length` of size 1 is
        inserted after the `num_outer` outer dimensions.
        """
        if TOKENS in x.shape:
            return into_groups(x, self.group_size)
        dims = list(x.shape)
        dims.insert(num_outer, mtf.Dimension(TOKENS, 1))
        return mtf.reshape(x, dims)

    def _router_logits(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        """Returns the logits of experts for each token, [*groups, length, experts_all]."""
        x = mtf.cast(x, "float32")
        if training:
            x = mtf.layers.multiplicative_jitter(x, self.jitter)
        return self.router(x)

    def _apply_experts(self, x: mtf.Tensor, routing: Routing) -> mtf.Tensor:
        """Returns the weighted sum of experts' results for each token, shaped as x
        [*groups, length, d_model].
        """
        d_model = self.model_dim.name
        group_names = [name for name in x.shape.names if name not in (TOKENS, d_model)]
        tokens = self.dispatch.take(x, routing)  # the token in each slot of each expert
        tokens = mtf.transpose(tokens, [EXPERTS, *group_names, CAPACITY, d_model])
        # With the new names, the layout shards `experts` instead of the groups: an
        # all-to-all. Renaming back is another one.
        new_names = {name: f"{name}_all" for name in group_names}
        new_names[EXPERTS] = _EXPERTS_SHARDED
        new_names[d_model] = self._expert_model_name
        old_names = {new: old for old, new in new_names.items()}
        results = self.experts(mtf.rename(tokens, new_names))
        results = mtf.rename(results, old_names)
        return self.dispatch.combine(results, routing, x)


def into_groups(x: mtf.Tensor, size: int | None) -> mtf.Tensor:
    """Returns x [*outer, length, ...] reshaped so that `length` is a group of tokens.

    If a group is a section of an example, the result is [*outer, group, length, ...] with
    `length` of `size`. If a group is several neighbouring examples, along the last
    dimension before `length`, that dimension is divided by their count, and `length` is
    multiplied by it.

    Args:
      x: the tokens, [*outer, length, ...].
      size: the count of tokens of a group; None: a group is an example, and x is returned.

    Raises:
      ShapeError: groups do not fit the tokens, or microbatches would split them.
    """
    length = x.shape[TOKENS]
    outer_dims = list(x.shape)[: x.shape.index(TOKENS)]
    is_single_example = not outer_dims
    if size is None or size == length or (size > length and is_single_example):
        return x
    if length % size == 0:
        return mtf.unflatten(x, TOKENS, [(_GROUP, length // size), (TOKENS, size)])
    example_dim = mtf.Dimension("example", 1)
    if not is_single_example:
        example_dim = outer_dims[-1]
    examples_per_group = _examples_per_group(
        num_examples=example_dim.size, length=length, size=size
    )
    if examples_per_group is None:
        raise mtf.ShapeError(
            f"groups of {size} tokens do not fit {x.shape!r}.\n  Take a divisor of "
            f'"{TOKENS}", or a multiple by a divisor of "{example_dim.name}".'
        )
    if examples_per_group > 1 and mtf.microbatches_of(example_dim.name) > 1:
        raise mtf.ShapeError(
            f"microbatches would split groups of {size} tokens: a group is "
            f'{examples_per_group} neighbouring elements of "{example_dim.name}", and a microbatch '
            "takes elements at a stride.\n"
            f"  Take groups of at most {length} tokens, which microbatches do not split."
        )
    # [..., examples, length] -> [..., groups, members, length] -> [..., groups, length]
    group_dim = (example_dim.name, example_dim.size // examples_per_group)
    x = mtf.unflatten(x, example_dim.name, [group_dim, (_MEMBER, examples_per_group)])
    return mtf.flatten(x, [_MEMBER, TOKENS], TOKENS)


def _examples_per_group(num_examples: int, length: int, size: int) -> int | None:
    """Returns the count of examples in a group; None: such groups do not fit.

    If all examples together have at most `size` tokens, they are one group.

    Args:
      num_examples: the count of all examples.
      length: the count of tokens of an example.
      size: the count of tokens of a group.
    """
    if size >= num_examples * length:
        return num_examples
    count, remainder = divmod(size, length)
    if count == 0 or remainder or num_examples % count:
        return None
    return count
