"""Attention by cuDNN's kernels, which XLA for CUDA calls: the scores are never in memory.

    kernel = kernel_for(context, dims, mask, bias_gradient=False, dtype="bfloat16")
    y, log_sums = kernel.attend(q, k, v)         # kernel None: there is none for these inputs

XLA knows the kernels as custom calls. Their names, operands and configuration are those by which
`jax.nn.dot_product_attention(..., implementation="cudnn")` calls them; so are the limits.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import KernelCall, LocalContext
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
      batch: the dimensions of the batch.
      shared: the heads that keys and values have.
      further: the further heads of queries.
    """

    context: LocalContext
    dims: AttentionDims
    mask: Mask
    bias_gradient: bool
    sizes: dict[str, int]
    batch: Names
    shared: Names
    further: Names

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
        return (*self.shared, *self.further)

    @property
    def _of_queries(self) -> Groups:
        return (self.batch, self._heads, (self.dims.length,))

    @property
    def _of_y(self) -> Groups:
        return (*self._of_queries, (".",))

    @property
    def _of_inputs(self) -> list[Groups]:
        keys = (self.batch, self.shared, (self.dims.kv_length,))
        key = (self.dims.key,)
        return [(*self._of_queries, key), (*keys, key), (*keys, (".",))]

    @property
    def _of_bias(self) -> list[Groups]:
        names = self.dims.bias or ()
        batch = tuple(name for name in self.batch if name in names)
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


def kernel_for(
    context: LocalContext,
    dims: AttentionDims,
    mask: Mask,
    bias_gradient: bool,
    dtype: str,
) -> CudnnAttention | None:
    """Returns the kernels for attention; None: the device has none for it.

    Args:
      context: the shard.
      dims: the names of the dimensions.
      mask: which keys each query attends to.
      bias_gradient: whether the bias has a gradient.
      dtype: the data type of the queries.
    """
    if context.platform != "cuda":
        return None
    heads = [name for name in dims.queries if name != dims.length]
    of_keys = [name for name in heads if name in dims.k]
    *batch, shared = of_keys or [""]
    sizes = {"": 1}
    for names, shape in zip((dims.q, dims.k, dims.value_names), context.inputs):
        sizes.update(zip(names, shape.sizes))
    kernel = CudnnAttention(
        context,
        dims,
        mask,
        bias_gradient,
        sizes,
        batch=tuple(batch),
        shared=(shared,) if shared else (),
        further=tuple(name for name in heads if name not in dims.k),
    )
    takes = takes_heads(dtype, sizes[dims.key]) and _takes(kernel)
    return kernel if takes else None


def takes_heads(dtype: str, key: int) -> bool:
    """Returns whether there are kernels for a data type and heads of so many elements."""
    return dtype in _DTYPES and key <= _MAX_KEY and not key % _KEY_MULTIPLE


def _takes(kernel: CudnnAttention) -> bool:
    """Returns whether the kernels take what they would be called for."""
    dims, sizes = kernel.dims, kernel.sizes
    key = sizes[dims.key]
    length, kv_length = sizes[dims.length], sizes[dims.kv_length]
    batch_and_heads = {*kernel.batch, *kernel.shared}
    if not kernel.shared or sizes["."] != key or length % 2 or kv_length % 2:
        return False
    if {*dims.v} - {dims.kv_length, dims.value} != batch_and_heads:
        return False
    # The kernels count positions from 0.
    shards = [kernel.context.num_shards(x) for x in (dims.length, dims.kv_length)]
    if kernel.mask.causal and max(shards) > 1:
        return False
    return dims.bias is None or _takes_bias(kernel, dims.bias)


def _takes_bias(kernel: CudnnAttention, names: Names) -> bool:
    """Returns whether the kernels take a bias with these names."""
    heads = [*kernel.shared, *kernel.further]
    batch = [name for name in kernel.batch if name in names]
    of_heads = [name for name in heads if name in names]
    if kernel.dims.length not in names or batch not in ([], [*kernel.batch]):
        return False
    if kernel.bias_gradient:
        return not batch and of_heads == heads
    return of_heads in ([], heads)
