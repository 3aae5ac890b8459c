"""Attention by cuDNN's kernels, which XLA for CUDA calls: the scores are never in memory.

    kernel = kernel_for(context, dims, mask, bias_gradient=False, dtype="bfloat16")
    y, log_sums = kernel.attend(q, k, v)         # kernel None: `refusal` says why

XLA knows the kernels as custom calls. Their names, operands and configuration are those by which
`jax.nn.dot_product_attention(..., implementation="cudnn")` calls them; so are the limits.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import KernelCall, LocalContext
from meshtf.names import Shape
from meshtf.ops.attention.attention_dims import AttentionDims, Mask, Names, Result
from meshtf.ops.shapes.reshape import arrange

_DTYPES = {"bfloat16": "BF16", "float16": "F16"}
_MAX_KEY = 128
_KEY_MULTIPLE = 8
# Of each product of the kernels the dimension of both factors that is summed over; their tensors
# are [batch, heads, length, key].
_FORWARD = {"bmm1": (3, 3), "bmm2": (3, 2)}
_BACKWARD = {
    "bmm1_grad_gemm1": (2, 2),
    "bmm1_grad_gemm2": (3, 2),
    "bmm2_grad_gemm1": (2, 2),
    "bmm2_grad_gemm2": (3, 3),
}
Groups = Sequence[
    Names
]  # the names that each dimension of a tensor of a kernel stands for


@dataclasses.dataclass(frozen=True)
class CudnnAttention:
    """The kernels for attention of certain names and sizes.

    Attributes:
      context: the shard.
      dims: the names of the dimensions.
      mask: which keys each query attends to.
      bias_gradient: whether the bias has a gradient.
      sizes: the size of each dimension.
    """

    context: LocalContext
    dims: AttentionDims
    mask: Mask
    bias_gradient: bool
    sizes: dict[str, int]

    def attend(self, q: Any, k: Any, v: Any, *bias: Any) -> tuple[Any, ...]:
        """Returns (y, log_sums): see `FusedAttention`."""
        groups = [*self._of_inputs, *self._of_bias[: len(bias)]]
        results = [self._of_y, self._of_queries]
        name = "fmhaScaleBiasSoftmax" if bias else "fmhaSoftmax"
        dtypes = [q.dtype, tf.float32]
        y, log_sums = self._call(
            name, _FORWARD, [q, k, v, *bias], groups, dtypes, results
        )
        return (
            self._unpacked(y, self._of_y, self.dims.y_names),
            self._unpacked(log_sums, self._of_queries, self.dims.queries),
        )

    def gradient(self, inputs: Sequence[Any], result: Result) -> tuple[Any, ...]:
        """Returns the cotangents of q, k and v, and of the bias if it has one.

        Args:
          inputs: q, k, v and the bias.
          result: what the forward pass has computed, and dy.
        """
        q, k, v, *bias = inputs
        operands = [q, k, v, result.log_sums, result.dy, *bias, result.y]
        of_bias = self._of_bias[: len(bias)]
        groups = [*self._of_inputs, self._of_queries, self._of_y, *of_bias, self._of_y]
        results = [*self._of_inputs]
        names = [self.dims.q, self.dims.k, self.dims.value_names]
        if self.bias_gradient:
            assert self.dims.bias is not None
            results += of_bias
            names.append(self.dims.bias)
        name = "fmhaScaleBiasSoftmaxBackward" if bias else "fmhaSoftmaxBackward"
        dtypes = [q.dtype] * len(results)
        dxs = self._call(name, _BACKWARD, operands, groups, dtypes, results)
        return tuple(
            tf.cast(self._unpacked(dx, group, names_of_dx), x.dtype)
            for dx, group, names_of_dx, x in zip(dxs, results, names, inputs)
        )

    @property
    def _heads(self) -> Names:
        return (*self.dims.shared_heads, *self.dims.further_heads)

    @property
    def _of_queries(self) -> Groups:
        return (self.dims.batch, self._heads, (self.dims.length,))

    @property
    def _of_y(self) -> Groups:
        return (*self._of_queries, (".",))

    @property
    def _of_inputs(self) -> list[Groups]:
        keys = (self.dims.batch, self.dims.shared_heads, (self.dims.kv_length,))
        key = (self.dims.key,)
        return [(*self._of_queries, key), (*keys, key), (*keys, (".",))]

    @property
    def _of_bias(self) -> list[Groups]:
        names = self.dims.bias or ()
        batch = tuple(name for name in self.dims.batch if name in names)
        heads = tuple(name for name in self._heads if name in names)
        return [(batch, heads, (self.dims.length,), (self.dims.kv_length,))]

    def _call(
        self,
        name: str,
        products: dict[str, tuple[int, int]],
        operands: Sequence[Any],
        groups: Sequence[Groups],
        dtypes: Sequence[Any],
        results: Sequence[Groups],
    ) -> list[Any]:
        """Returns the results of a kernel, the last of which is its workspace.

        Args:
          name: the name of the kernel.
          products: see `_FORWARD`.
          operands: named tensors.
          groups: the names of each operand of the kernel.
          dtypes: the data type of each result.
          results: the names of each result of the kernel.
        """
        packed = [self._packed(x, group) for x, group in zip(operands, groups)]
        dtype = operands[0].dtype
        packed = [
            # The kernels take a bias of the data type of the queries.
            x if len(x.shape) == 3 else tf.cast(x, dtype)
            for x in packed
        ]
        shapes = [self._shape(group) for group in results]
        call = KernelCall(
            f"__cudnn${name}",
            self._configuration(products, dtype.name),
            [*zip(shapes, dtypes), ([0], tf.uint8)],
        )
        *ys, _workspace = self.context.call_kernel(call, packed)
        return ys

    def _configuration(self, products: dict[str, tuple[int, int]], dtype: str) -> str:
        """Returns the configuration of a kernel as text."""
        batch, heads, length, _ = self._shape(self._of_y)
        scores = [batch, heads, length, self.sizes[self.dims.kv_length]]
        config: dict[str, Any] = {
            "algorithm": {
                "algo_id": "0",
                "math_type": "TENSOR_OP_MATH",
                "tuning_knobs": {"17": "1", "24": "0"},
                "is_cudnn_frontend": True,
                "workspace_size": "0",
            },
            "fmha_scale": 1.0,
            "intermediate_tensor_shape": {
                "element_type": _DTYPES[dtype],
                "dimensions": [str(size) for size in scores],
                "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            },
            "is_flash_attention": True,
            "mask_type": "CAUSAL" if self.mask.causal else "NO_MASK",
            "dropout_rate": 0.0,
            "seed": 42,
            "sliding_window_length": self.mask.window,
            "max_seg_per_batch": 1,
            "is_paged_attention": False,
        }
        for name, (left, right) in products.items():
            config[f"{name}_dot_dimension_numbers"] = {
                "lhs_contracting_dimensions": [str(left)],
                "rhs_contracting_dimensions": [str(right)],
                "lhs_batch_dimensions": ["0", "1"],
                "rhs_batch_dimensions": ["0", "1"],
            }
        return json.dumps(
            {"operation_queue_id": "0", "cudnn_fmha_backend_config": config}
        )

    def _shape(self, groups: Groups) -> list[int]:
        """Returns the sizes of a tensor of a kernel."""
        return [math.prod(self.sizes[name] for name in group) for group in groups]

    def _packed(self, x: Any, groups: Groups) -> Any:
        """Returns a named tensor as a kernel takes it."""
        order = [name for group in groups for name in group]
        names = next(
            names
            for names in (*self.dims.tensors, self.dims.y_names, self.dims.queries)
            if sorted(names) == sorted(order)
        )
        return tf.reshape(arrange(x, names, order), self._shape(groups))

    def _unpacked(self, x: Any, groups: Groups, names: Names) -> Any:
        """Returns a result of a kernel as a tensor with these names."""
        order = [name for group in groups for name in group]
        y = tf.reshape(x, [self.sizes[name] for name in order])
        return arrange(y, order, names)


class AttentionCase(NamedTuple):
    """What attention is on a device: all that decides whether the kernels take it.

    Attributes:
      platform: what XLA compiles it for, such as "cuda"; "": any devices, or not XLA.
      dtype: the data type of the queries.
      dims: the names of the dimensions.
      sizes: the size of each on the device: see `local_sizes`.
      mask: which keys each query attends to.
      bias_gradient: whether the bias has a gradient.
      dropout: the fraction of weights that is dropped.
      sharded: whether positions are sharded, those of queries or those of keys.
    """

    platform: str
    dtype: str
    dims: AttentionDims
    sizes: dict[str, int]
    mask: Mask
    bias_gradient: bool
    dropout: float
    sharded: bool


def kernel_for(
    context: LocalContext,
    dims: AttentionDims,
    mask: Mask,
    bias_gradient: bool,
    dtype: str,
    dropout: float = 0.0,
) -> CudnnAttention | None:
    """Returns the kernels for attention; None: the device has none for it.

    Args:
      context: the shard.
      dims: the names of the dimensions.
      mask: which keys each query attends to.
      bias_gradient: whether the bias has a gradient.
      dtype: the data type of the queries.
      dropout: the fraction of weights that is dropped.
    """
    sizes = local_sizes(dims, context.inputs)
    shards = [context.num_shards(name) for name in (dims.length, dims.kv_length)]
    case = AttentionCase(
        platform=context.platform,
        dtype=dtype,
        dims=dims,
        sizes=sizes,
        mask=mask,
        bias_gradient=bias_gradient,
        dropout=dropout,
        sharded=max(shards) > 1,
    )
    if refusal(case):
        return None
    return CudnnAttention(context, dims, mask, bias_gradient, sizes)


def local_sizes(dims: AttentionDims, shapes: Sequence[Shape]) -> dict[str, int]:
    """Returns the size of each dimension on a device; "." is that of values.

    Args:
      dims: the names of the dimensions.
      shapes: the local shapes of q, k and v.
    """
    names = (dims.q, dims.k, dims.value_names)
    return {
        name: size
        for of_input, shape in zip(names, shapes)
        for name, size in zip(of_input, shape.sizes)
    }


def refusal(case: AttentionCase) -> str:
    """Returns why the kernels do not take attention; "": they take it."""
    return next(_refusals(case), "")


def _refusals(case: AttentionCase) -> Iterator[str]:
    """Yields all reasons why the kernels do not take attention."""
    dims, sizes = case.dims, case.sizes
    if case.platform != "cuda":
        yield "no CUDA device" if case.platform else "XLA does not compile it for CUDA"
    if case.dropout:
        yield "cuDNN takes no dropout here"
    if case.dtype not in _DTYPES:
        yield f"cuDNN takes no {case.dtype}"
    key = sizes[dims.key]
    if key > _MAX_KEY:
        yield f"cuDNN takes heads of up to {_MAX_KEY} elements, not {key}"
    if key % _KEY_MULTIPLE:
        yield f"cuDNN takes heads of a multiple of {_KEY_MULTIPLE} elements, not {key}"
    if sizes["."] != key:
        yield f"cuDNN takes values as large as keys, not {sizes['.']} for {key}"
    for name in (dims.length, dims.kv_length):
        if sizes[name] % 2:
            yield f"cuDNN takes no odd length: {name} is {sizes[name]} on a device"
    batch_and_heads = {*dims.batch, *dims.shared_heads}
    if not batch_and_heads:
        yield "cuDNN takes no keys without batch and heads"
    if {*dims.v} - {dims.kv_length, dims.value} != batch_and_heads:
        yield "cuDNN takes no keys and values that differ in batch and heads"
    # The kernels count positions from 0.
    if case.mask.causal and case.sharded:
        yield "cuDNN takes no causal mask over sharded positions"
    if dims.bias is not None:
        yield from _refusals_of_bias(dims, dims.bias, case.bias_gradient)


def _refusals_of_bias(
    dims: AttentionDims, bias: Names, has_gradient: bool
) -> Iterator[str]:
    """Yields why the kernels do not take a bias.

    Args:
      dims: the names of the dimensions.
      bias: those of the bias.
      has_gradient: whether the bias has a gradient.
    """
    heads = (*dims.shared_heads, *dims.further_heads)
    batch = tuple(name for name in dims.batch if name in bias)
    of_heads = tuple(name for name in heads if name in bias)
    if dims.length not in bias:
        yield f"cuDNN takes no bias without {dims.length}"
    if batch not in ((), dims.batch):
        yield "cuDNN takes no bias with a part of the batch"
    if of_heads not in ((), heads):
        yield "cuDNN takes no bias with a part of the heads"
    if has_gradient and (batch or of_heads != heads):
        yield "cuDNN has the gradient only of a bias of all heads, without a batch"
