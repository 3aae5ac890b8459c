"""Attention as one op: softmax(q · k + bias) · v, whose scores [length, kv_length] are stored by
neither pass.

    y = fused_attention(q, k, v, "length", "kv_length", "key", causal=True)

The forward pass keeps the logarithm of the sum of exponentials of each query's scores, with which
the backward pass computes the weights again (Dao et al. 2022, arXiv:2205.14135, section 3.1). A
device runs the kernel of its vendor where there is one that takes the op (`cudnn.py`), and else
computes one block of queries after another (`query_blocks.py`).

Batch and heads may be sharded, and the positions of queries; keys and values are gathered along
their positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Role,
    Sample,
    Source,
    Spec,
    Specs,
    Tensor,
    apply_all,
)
from meshtf.graph.op_kinds import FusedMatmulsOp, GradientBarrier, Kernel
from meshtf.names import Shape, accumulation_dtype
from meshtf.ops.attention import cudnn, query_blocks
from meshtf.ops.attention.attention_dims import (
    AttentionDims,
    Mask,
    Result,
    WeightDropout,
)
from meshtf.ops.common.broadcasting import conflicting_sizes

T = TypeVar("T")
_Q, _KV = "b:2;h:2;l:6;k:4", "b:2;h:2;m:6;k:4"
_GROUPED_Q, _GROUPED_KV = "b:2;g:2;h:3;l:4;k:4", "b:2;g:2;m:8;k:4"
# Each sample: length, kv_length, key, causal, window, bias_gradient, block; then the inputs.
_ATTRIBUTES: tuple[tuple[tuple[Any, ...], tuple[str, ...]], ...] = (
    (("l", "m", "k"), (_Q, _KV, _KV)),
    (("l", "m", "k", True, 0, False, 2), (_Q, _KV, _KV)),
    (("l", "m", "k", True, 3, False, 3), (_Q, _KV, _KV)),
    (("l", "m", "k", False, 0, True, 2), (_Q, _KV, _KV, "h:2;l:6;m:6")),
    (("l", "m", "k", False, 0, True, 3), (_Q, _KV, _KV, "b:2;m:6")),
    (("l", "m", "k", False, 0, False, 2), (_GROUPED_Q, _GROUPED_KV, _GROUPED_KV)),
    (
        ("l", "m", "k", False, 0, False, 2, 0.25, ("b", "l", "m")),
        (
            _Q,
            _KV,
            _KV,
            *("int b:2", "int b:2", "int l:6", "int l:6", "int m:6", "int m:6"),
        ),
    ),
    (("l", "m", "k", False), ("l:4;b:2;k:3", "m:5;k:3;b:2", "b:2;m:5;v:2")),
)


def _gradient_samples() -> Iterator[Sample]:
    """Yields inputs for the conformance suite of the gradient: logarithms of sums, which are any
    numbers there, and a result and its cotangent.
    """
    defaults = (False, 0, False, 0, 0.0, ())
    for attributes, (q, k, v, *further) in _ATTRIBUTES:
        attributes = (*attributes, *defaults[len(attributes) - 3 :])
        bias_gradient = attributes[5]
        value = next(dim for dim in v.split(";") if dim[0] in "kv")
        queries = [dim for dim in q.split(";") if not dim.startswith("k:")]
        y, log_sums = ";".join([*queries, value]), ";".join(queries)
        with_gradient = [q, k, v, *further] if bias_gradient else [q, k, v]
        names = [set(Shape(shape).names) for shape in with_gradient]
        mapped = sorted(set.intersection(*names))
        inputs = (q, k, v, *further, y, log_sums, y)
        yield Sample((*attributes, tuple(mapped)), inputs, gradient=False)


class _AttentionOp(FusedMatmulsOp):
    """The base of the two ops below. Their first inputs are q [*batch, *heads, length, key], k
    [*batch, *heads, kv_length, key], v [*batch, *heads, kv_length, value] and, if there is one, the
    bias, [*batch, *heads, length, kv_length]. Names of batch and heads may lack in all but q.

    Attributes:
      length: the positions of queries.
      kv_length: the positions of keys and values.
      key: the dimension that the product of q and k sums over.
      causal: whether query i attends to keys from 0 to i.
      window_size: to how many of the last keys a causal query attends; 0: all.
      bias_gradient: whether there is a bias, and it has a gradient.
      block: the largest number of queries whose scores are computed at once; 0: as many as memory
        allows.
      dropout: the fraction of weights that is dropped.
      masked: the dimensions of the mask of dropout, if there is one. Inputs after the bias are the
        random words of each, int32 [dim] twice.
      num_results: how many inputs come after these.
    """

    num_results: ClassVar[int] = 0

    length: str
    kv_length: str
    key: str
    causal: bool = False
    window_size: int = 0
    bias_gradient: bool = False
    block: int = 0
    dropout: float = 0.0
    masked: tuple[str, ...] = ()

    def contracted(self) -> tuple[str, ...]:
        return (self.key,)

    def kernel(self, platform: str, sharded: Collection[str], *xs: Spec) -> Kernel:
        shapes = [x.shape for x in xs[: len(xs) - self.num_results]]
        dims = self.dims(shapes)
        case = cudnn.AttentionCase(
            *(platform, xs[0].dtype, dims, cudnn.local_sizes(dims, shapes)),
            *(self.mask, self.bias_gradient, self.dropout),
            sharded=not {self.length, self.kv_length}.isdisjoint(sharded),
        )
        refusal = cudnn.refusal(case)
        block = self.workspace_specs(*xs)[0].shape[self.length]
        name = f"blocks of {block} queries" if refusal else "cuDNN"
        return Kernel("attention", name, refusal)

    @property
    def mask(self) -> Mask:
        """Which keys each query attends to."""
        return Mask(self.causal, self.window_size)

    def dims(self, shapes: Sequence[Shape]) -> AttentionDims:
        """Returns the names of the inputs' dimensions."""
        q, k, v, *bias = (shape.names for shape in self.tensors(shapes))
        of_bias = bias[0] if bias else None
        return AttentionDims(self.length, self.kv_length, self.key, q, k, v, of_bias)

    def tensors(self, inputs: Sequence[T]) -> Sequence[T]:
        """Returns those of the first inputs that are no random words: q, k, v, and the bias."""
        return inputs[: len(inputs) - 2 * len(self.masked)]

    def weight_dropout(self, inputs: Sequence[Any]) -> WeightDropout | None:
        """Returns the dropout of the weights, given the first inputs; None: there is none."""
        words = inputs[len(self.tensors(inputs)) :]
        if not words:
            return None
        pairs = zip(words[::2], words[1::2])
        return WeightDropout(self.dropout, dict(zip(self.masked, pairs)))

    def offset(self, context: LocalContext) -> Any:
        """Returns by how much the first query of a shard comes after its first key."""
        return context.shard_offset(self.length) - context.shard_offset(self.kv_length)

    def cudnn_kernel(
        self, context: LocalContext, dims: AttentionDims, q: Any
    ) -> cudnn.CudnnAttention | None:
        """Returns the kernels of the device that take the op; None: there are none."""
        how = (self.mask, self.bias_gradient, q.dtype.name, self.dropout)
        return cudnn.kernel_for(context, dims, *how)

    def workspace_specs(self, *xs: Spec) -> Specs:
        q, k, *_ = (x.shape for x in xs)
        other_dims = q.without(self.length, self.key) + k.only([self.kv_length])
        length = q[self.length]
        block = query_blocks.block_size(length, other_dims.size, self.block)
        scores = other_dims + Shape([(self.length, block)])
        # Of a block, and their exponentials.
        spec = Spec(scores, accumulation_dtype(xs[0].dtype))
        return spec, spec


class FusedAttention(_AttentionOp):
    """Attention: y [*batch, *heads, length, value], and the logarithms of the sums of exponentials
    [*batch, *heads, length].
    """

    # The logarithms have no gradient: only the backward pass reads them.
    conformance_samples = tuple(
        Sample(attributes, inputs, gradient=False) for attributes, inputs in _ATTRIBUTES
    )
    num_products = 2

    def output_specs(self, *xs: Spec) -> Specs:
        q, _, v, *_ = xs
        _check(self, *self.tensors(xs))
        value = v.shape.without(self.kv_length, *q.shape.without(self.key).names)
        queries = q.shape.without(self.key)
        return (
            Spec(queries + value, q.dtype),
            Spec(queries, accumulation_dtype(q.dtype)),
        )

    def role(self, factor: str) -> Role:
        return Role.UNSHARDED if factor in (self.kv_length, self.key) else Role.MAP

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        dims = self.dims(context.inputs)
        kernel = self.cudnn_kernel(context, dims, xs[0])
        if kernel is not None:
            return kernel.attend(*xs)
        return query_blocks.attend(
            dims,
            self.mask,
            self.block,
            self.offset(context),
            self.tensors(xs),
            self.weight_dropout(xs),
        )

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        d_output, _ = dy  # the other output is for the backward pass only
        with_gradient = xs[: 4 if self.bias_gradient else 3]
        in_all = set(xs[0].shape.names).intersection(
            *(x.shape.names for x in with_gradient[1:])
        )
        op = FusedAttentionGradient(
            *(self.length, self.kv_length, self.key, self.causal, self.window_size),
            bias_gradient=self.bias_gradient,
            block=self.block,
            dropout=self.dropout,
            masked=self.masked,
            mapped=tuple(sorted(in_all)),
        )
        dxs = apply_all(op, *xs, *y, d_output)
        return [*dxs, *[None] * (len(xs) - len(dxs))]

    def flops(self, q: Spec, k: Spec, v: Spec, *further: Spec) -> int:
        return _flops(self, q, v, of_key=1, of_value=1)


class FusedAttentionGradient(_AttentionOp):
    """The gradient of `FusedAttention`: dq, dk, dv, and that of the bias if it has one. The further
    inputs are y, the logarithms, and dy.

    Attributes:
      mapped: the dimensions that all outputs have; over the rest one of them is a sum.
    """

    mapped: tuple[str, ...] = ()
    conformance_samples = tuple(_gradient_samples())
    num_products = 5
    num_repeated_products = 1
    num_results = 3

    def output_specs(self, *xs: Spec) -> Specs:
        return xs[: 4 if self.bias_gradient else 3]

    def role(self, factor: str) -> Role:
        if factor == self.key:
            return Role.UNSHARDED
        return Role.MAP if factor in self.mapped else Role.SUM

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        *inputs, y, log_sums, dy = xs
        dims = self.dims(context.inputs[: len(inputs)])
        result = Result(y, log_sums, dy)
        kernel = self.cudnn_kernel(context, dims, inputs[0])
        if kernel is not None:
            return kernel.gradient(inputs, result)
        return query_blocks.gradient(
            dims,
            self.mask,
            self.block,
            self.offset(context),
            self.tensors(inputs),
            result,
            self.bias_gradient,
            self.weight_dropout(inputs),
        )

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        raise PlanError(
            explain_error(
                "the gradient of fused attention has no gradient itself.",
                inputs=", ".join(repr(x.shape) for x in xs[:3]),
                source=Source.of_caller(),
                way_out='Compute attention in float32, mtf.cast(x, "float32"): there it is two '
                "einsums.",
            )
        )

    def flops(self, q: Spec, k: Spec, v: Spec, *further: Spec) -> int:
        return _flops(self, q, v, of_key=3, of_value=2)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    length: str,
    kv_length: str,
    key: str,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    words: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> Tensor:
    """Returns softmax(q · k + bias) · v, [*batch, *heads, length, value].

    Args:
      q: queries, [*batch, *heads, length, key], in any order.
      k: keys, [*batch, *heads, kv_length, key], or a subset of these names.
      v: values, [*batch, *heads, kv_length, value], or a subset of these names.
      length: the positions of queries.
      kv_length: the positions of keys and values.
      key: the dimension that the product of q and k sums over.
      causal: whether query i attends to keys from 0 to i.
      window: to how many of the last keys a causal query attends; None: all.
      bias: added to the scores, [*batch, *heads, length, kv_length] or a subset of these names.
      dropout: the fraction of weights that is dropped.
      words: the random words of the mask of dropout: see `mask_words`. The dimensions are some of
        those of the scores, in their order.
    """
    inputs = [q, k, v]
    bias_gradient = False
    if bias is not None:
        inputs.append(bias)
        bias_gradient = not isinstance(bias.node.op, GradientBarrier)
    words = words or {}
    inputs += [x for pair in words.values() for x in pair]
    op = FusedAttention(
        *(length, kv_length, key, causal, window or 0),
        bias_gradient=bias_gradient,
        dropout=dropout,
        masked=tuple(words),
    )
    y, _log_sums = apply_all(op, *inputs)
    return y


def _check(op: FusedAttention, q: Spec, k: Spec, v: Spec, *bias: Spec) -> None:
    """Raises ShapeError or DTypeError if an op does not take these inputs."""
    if len({q.dtype, k.dtype, v.dtype}) > 1:
        raise DTypeError(
            f"attention with q of {q.dtype}, k of {k.dtype}, v of {v.dtype}: cast them with "
            "mtf.cast."
        )
    queries = q.shape.without(op.key)
    scores = queries.names + (op.kv_length,)
    for label, spec, names in (
        ("q", q, (op.length, op.key)),
        ("k", k, (op.kv_length, op.key)),
        ("v", v, (op.kv_length,)),
        *(("bias", spec, (op.kv_length,)) for spec in bias),
    ):
        missing = [name for name in names if name not in spec.shape]
        if missing:
            raise ShapeError(
                f'{label} of attention lacks "{missing[0]}": {spec.shape!r}.'
            )
    further = {
        "k": k.shape.without(op.key, *scores),
        "bias": bias[0].shape.without(*scores) if bias else (),
    }
    for label, dims in further.items():
        if dims:
            raise ShapeError(
                f"{label} of attention has dimensions that q lacks: {dims!r}."
            )
    num_values = len(v.shape.without(*scores))
    if num_values != 1 or op.length in k.shape or op.length in v.shape:
        raise ShapeError(
            f"v of attention has {op.kv_length!r}, one dimension of values, and names of q: not "
            f"{v.shape!r}."
        )
    for name, *_ in conflicting_sizes([x.shape for x in (q, k, v, *bias)]):
        raise ShapeError(
            f'dimension "{name}" has two sizes in the inputs of attention.'
        )


def _flops(
    op: FusedAttention | FusedAttentionGradient,
    q: Spec,
    v: Spec,
    of_key: int,
    of_value: int,
) -> int:
    """Returns the FLOPs of products of the size of q · k, and of that of weights · v.

    Args:
      op: the op.
      q: the spec of the queries.
      v: that of the values.
      of_key: the number of products of the size of q · k.
      of_value: the number of those of the other size.
    """
    queries = q.shape.without(op.key)
    num_scores = queries.size * v.shape[op.kv_length]
    value = v.shape.without(op.kv_length, *queries.names)
    return 2 * num_scores * (of_key * q.shape[op.key] + of_value * value.size)
