"""The cases of benchmarks.ops: one or two ops of each family, in meshtf and in TensorFlow.

    case = CASES[0]
    case.ours(*tensors)          # on named tensors
    case.plain(*arrays)          # the same in plain TensorFlow

Sizes are such that one call takes a few milliseconds on a CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import meshtf as mtf

Fn = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """An op in meshtf and in TensorFlow, and its inputs.

    Attributes:
      family: the family of ops, such as "reductions".
      name: a description of the op.
      inputs: the kind and the shape of each input: "b:64;d:32" (float32), "int b:64" or
        "complex b:64;d:32".
      ours: the op in meshtf, a function of named tensors.
      plain: the same in plain TensorFlow.
      shard_dim: the dimension of interest, which is sharded.
      gradient: whether the op has a gradient.
      below: the exclusive upper bound of integer inputs; 0: there are none.
      exact: whether both have equal results, so that they are compared; random ops do not.
    """

    family: str
    name: str
    inputs: tuple[str, ...]
    ours: Fn
    plain: Fn
    shard_dim: str
    gradient: bool = True
    below: int = 0
    exact: bool = True

    def shapes(self) -> list[str]:
        """Returns the shape of each input, without its kind, such as "b:64;d:32"."""
        shapes = []
        for text in self.inputs:
            _kind, _, shape = text.rpartition(" ")
            shapes.append(shape)
        return shapes

    def arrays(self) -> list[np.ndarray]:
        """Returns random arrays for the inputs."""
        rng = np.random.default_rng(0)
        return [self._array(text, rng) for text in self.inputs]

    def _array(self, text: str, rng: np.random.Generator) -> np.ndarray:
        """Returns a random array for an input, such as "int b:64"."""
        kind, _, shape = text.rpartition(" ")
        sizes = mtf.Shape(shape).sizes
        if kind == "int":
            return rng.integers(0, self.below, sizes).astype("int32")
        real = rng.normal(size=sizes).astype("float32")
        if kind == "complex":
            return real + 1j * rng.normal(size=sizes).astype("float32")
        return real


def _layer_norm(x: tf.Tensor) -> tf.Tensor:
    """Returns x [b, d] with mean 0 and variance 1 over d."""
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-6)


def _plain_layers(h: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Returns h [b, d] after eight layers with the kernels w [layers, d, d]."""

    def body(i: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.tanh(tf.matmul(h, w[i]) * 0.06)

    _, h = tf.while_loop(
        cond=lambda i, h: i < 8,
        body=body,
        loop_vars=(0, h),
        maximum_iterations=8,
    )
    return h


def _named_layers(h: mtf.Tensor, w: mtf.Tensor) -> mtf.Tensor:
    """Returns h [b, d] after a scan over the kernels w [layers, d, e]; e is as large as d.
    The factor 0.06 keeps activations from growing.
    """

    def body(h: mtf.Tensor, w: mtf.Tensor) -> tuple[mtf.Tensor, None]:
        y = mtf.tanh(mtf.einsum([h, w], "b;e") * 0.06)
        return mtf.rename(y, "e", "d"), None

    h, _ = mtf.scan(body, h, w, "layers")
    return h


def _recurrence(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns y with y[i] = a[i] * y[i - 1] + b[i] along the first dimension; y[-1] = 0."""

    def body(y: tf.Tensor, elements: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        a, b = elements
        return a * y + b

    return tf.scan(body, (a, b), tf.zeros_like(b[0]))


def _attention_scores(q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    """Returns scores [b, n, l, m] of queries [b, n, l, d] and keys [b, n, m, d]."""
    return tf.einsum("bnld,bnmd->bnlm", q, k)


def _conv(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Returns the convolution [b, h, w, o] of x [b, h, w, c] by kernel [i, j, c, o]."""
    return tf.nn.conv2d(x, kernel, strides=1, padding="SAME")


def _conv_transpose(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Returns the transposed convolution [b, 2h, 2w, o] of x [b, h, w, c] by kernel
    [i, j, o, c], for the sizes of IMAGES.
    """
    return tf.nn.conv2d_transpose(
        x, kernel, output_shape=[16, 64, 64, 16], strides=2, padding="SAME"
    )


IMAGES = "b:16;h:32;w:32;c:32"
MATRIX = "b:512;d:2048"
TABLE = ("v:8192;d:256", "int b:8192")

CASES = (
    Case(
        family="einsum",
        name="x[b k] w[k o]",
        inputs=("b:256;k:1024", "k:1024;o:1024"),
        ours=lambda x, w: mtf.einsum([x, w], "b;o"),
        plain=tf.matmul,
        shard_dim="k",
    ),
    Case(
        family="einsum",
        name="q[b n l d] k[b n m d]",
        inputs=("b:16;n:8;l:128;d:64", "b:16;n:8;m:128;d:64"),
        ours=lambda q, k: mtf.einsum([q, k], "b;n;l;m"),
        plain=_attention_scores,
        shard_dim="n",
    ),
    Case(
        family="elementwise",
        name="gelu",
        inputs=(MATRIX,),
        ours=mtf.gelu,
        plain=lambda x: tf.nn.gelu(x, approximate=True),
        shard_dim="d",
    ),
    Case(
        family="elementwise",
        name="x * y + z[d]",
        inputs=(MATRIX, MATRIX, "d:2048"),
        ours=lambda x, y, z: x * y + z,
        plain=lambda x, y, z: x * y + z,
        shard_dim="d",
    ),
    Case(
        family="reductions",
        name="reduce_sum over d",
        inputs=(MATRIX,),
        ours=lambda x: mtf.reduce_sum(x, "d"),
        plain=lambda x: tf.reduce_sum(x, -1),
        shard_dim="d",
    ),
    Case(
        family="reductions",
        name="reduce_max over d",
        inputs=(MATRIX,),
        ours=lambda x: mtf.reduce_max(x, "d"),
        plain=lambda x: tf.reduce_max(x, -1),
        shard_dim="d",
    ),
    Case(
        family="softmax",
        name="softmax over d",
        inputs=(MATRIX,),
        ours=lambda x: mtf.softmax(x, "d"),
        plain=tf.nn.softmax,
        shard_dim="d",
    ),
    Case(
        family="norm",
        name="layer_norm over d",
        inputs=(MATRIX,),
        ours=lambda x: mtf.layer_norm(x, "d"),
        plain=_layer_norm,
        shard_dim="d",
    ),
    Case(
        family="loss",
        name="cross_entropy over v",
        inputs=("b:512;v:4096", "int b:512"),
        ours=lambda x, y: mtf.cross_entropy(x, y, "v"),
        plain=lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x),
        shard_dim="v",
        below=4096,
    ),
    Case(
        family="gather",
        name="along v",
        inputs=TABLE,
        ours=lambda x, i: mtf.gather(x, i, "v"),
        plain=lambda x, i: tf.gather(x, i),
        shard_dim="v",
        below=8192,
    ),
    Case(
        family="segments",
        name="segment_sum into v",
        inputs=("b:8192;d:256", "int b:8192"),
        ours=lambda x, i: mtf.segment_sum(x, i, "v:1024"),
        plain=lambda x, i: tf.math.unsorted_segment_sum(x, i, 1024),
        shard_dim="v",
        below=1024,
    ),
    Case(
        family="scatter",
        name="scatter_add to v",
        inputs=("v:8192;d:256", "int b:4096", "b:4096;d:256"),
        ours=lambda x, i, y: mtf.scatter_add(x, i, y, "v"),
        plain=lambda x, i, y: tf.tensor_scatter_nd_add(x, i[:, None], y),
        shard_dim="v",
        below=8192,
    ),
    Case(
        family="sort",
        name="sort along d",
        inputs=("b:128;d:2048",),
        ours=lambda x: mtf.sort(x, "d"),
        plain=tf.sort,
        shard_dim="d",
    ),
    Case(
        family="top_k",
        name="top_k of d, k:8",
        inputs=(MATRIX,),
        ours=lambda x: mtf.top_k(x, "d", "k:8")[0],
        plain=lambda x: tf.math.top_k(x, 8)[0],
        shard_dim="d",
    ),
    Case(
        family="cumulative",
        name="cumsum along d",
        inputs=(MATRIX,),
        ours=lambda x: mtf.cumsum(x, "d"),
        plain=lambda x: tf.cumsum(x, -1),
        shard_dim="d",
    ),
    Case(
        family="cumulative",
        name="linear_recurrence along d",
        inputs=("d:128;b:512", "d:128;b:512"),
        ours=lambda a, b: mtf.math.linear_recurrence(mtf.sigmoid(a), b, "d"),
        plain=lambda a, b: _recurrence(tf.sigmoid(a), b),
        shard_dim="d",
    ),
    Case(
        family="convolution",
        name="conv 3x3",
        inputs=(IMAGES, "i:3;j:3;c:32;o:32"),
        ours=lambda x, k: mtf.conv(x, k, "h:i;w:j"),
        plain=_conv,
        shard_dim="h",
    ),
    Case(
        family="convolution",
        name="conv_transpose 4x4, stride 2",
        inputs=(IMAGES, "i:4;j:4;o:16;c:32"),
        ours=lambda x, k: mtf.conv_transpose(x, k, "h:i;w:j", stride=2),
        plain=_conv_transpose,
        shard_dim="h",
    ),
    Case(
        family="pooling",
        name="max_pool 2x2",
        inputs=(IMAGES,),
        ours=lambda x: mtf.max_pool(x, "h:2;w:2"),
        plain=lambda x: tf.nn.max_pool2d(x, ksize=2, strides=2, padding="VALID"),
        shard_dim="h",
    ),
    Case(
        family="pooling",
        name="avg_pool 3x3, stride 1",
        inputs=(IMAGES,),
        ours=lambda x: mtf.avg_pool(x, "h:3;w:3", stride=1, padding="same"),
        plain=lambda x: tf.nn.avg_pool2d(x, ksize=3, strides=1, padding="SAME"),
        shard_dim="h",
    ),
    Case(
        family="shift",
        name="roll along d by 5",
        inputs=(MATRIX,),
        ours=lambda x: mtf.roll(x, "d", 5),
        plain=lambda x: tf.roll(x, 5, -1),
        shard_dim="d",
    ),
    Case(
        family="shapes",
        name="concat along d",
        inputs=(MATRIX, MATRIX),
        ours=lambda x, y: mtf.concat([x, y], "d"),
        plain=lambda x, y: tf.concat([x, y], -1),
        shard_dim="d",
    ),
    Case(
        family="shapes",
        name="transpose",
        inputs=(MATRIX,),
        ours=lambda x: mtf.transpose(x, "d;b"),
        plain=tf.transpose,
        shard_dim="d",
    ),
    Case(
        family="fft",
        name="fft along n",
        inputs=("complex b:256;n:2048",),
        ours=lambda x: mtf.math.fft(x, "n"),
        plain=tf.signal.fft,
        shard_dim="n",
    ),
    Case(
        family="random",
        name="random_normal",
        inputs=("int seed:2",),
        ours=lambda s: mtf.random_normal(s.mesh, MATRIX, seed=mtf.reduce_sum(s)),
        plain=lambda s: tf.random.stateless_normal([512, 2048], s),
        shard_dim="d",
        gradient=False,
        below=9,
        exact=False,
    ),
    Case(
        family="a call alone",
        name="relu of 64 numbers",
        inputs=("b:8;d:8",),
        ours=mtf.relu,
        plain=tf.nn.relu,
        shard_dim="d",
    ),
    Case(
        family="loops",
        name="scan of 8 layers",
        inputs=("b:256;d:256", "layers:8;d:256;e:256"),
        ours=_named_layers,
        plain=_plain_layers,
        shard_dim="d",
    ),
)
