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
    """An op in meshtf and in TensorFlow, and its inputs."""

    family: str
    name: str
    inputs: tuple[str, ...]  # "b:64;d:32", "int b:64" or "complex b:64;d:32"
    ours: Fn
    plain: Fn
    shard_dim: str  # the dimension of interest, which is sharded
    gradient: bool = True
    below: int = 0  # upper bound of integers
    exact: bool = True  # whether both have equal results

    def names(self) -> list[str]:
        """Returns the named shape of each input, without its kind."""
        return [text.rpartition(" ")[2] for text in self.inputs]

    def arrays(self) -> list[np.ndarray]:
        """Returns random arrays for the inputs."""
        rng = np.random.default_rng(0)
        return [
            self._array(text.partition(" ")[0], mtf.Shape(names).sizes, rng)
            for text, names in zip(self.inputs, self.names())
        ]

    def _array(
        self,
        kind: str,
        sizes: tuple[int, ...],
        rng: Any,
    ) -> np.ndarray:
        if kind == "int":
            return rng.integers(0, self.below, sizes).astype("int32")
        real = rng.normal(size=sizes).astype("float32")
        return (
            real + 1j * rng.normal(size=sizes).astype("float32")
            if kind == "complex"
            else real
        )


def _layer_norm(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-6)


def _layers(h: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    def body(i: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.tanh(tf.matmul(h, w[i]) * 0.06)

    return tf.while_loop(
        lambda i, _: i < 8,
        body,
        (0, h),
        maximum_iterations=8,
    )[1]


def _named_layers(h: mtf.Tensor, w: mtf.Tensor) -> mtf.Tensor:
    def body(h: mtf.Tensor, w: mtf.Tensor) -> tuple[mtf.Tensor, None]:
        return mtf.rename(mtf.tanh(mtf.einsum([h, w], "b;e") * 0.06), "e", "d"), None

    return mtf.scan(body, h, w, "layers")[0]


def _recurrence(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    def body(before: Any, row: Any) -> Any:
        return row[0] * before + row[1]

    return tf.scan(body, (a, b), tf.zeros_like(b[0]))


def _attend(q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    return tf.einsum("bnld,bnmd->bnlm", q, k)


def _conv(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(x, kernel, 1, "SAME")


def _conv_transpose(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d_transpose(
        x,
        kernel,
        [16, 64, 64, 16],
        2,
        "SAME",
    )


IMAGES = "b:16;h:32;w:32;c:32"
ROWS = "b:512;d:2048"
TABLE = ("v:8192;d:256", "int b:8192")

CASES = (
    Case(
        "einsum",
        "x[b k] w[k o]",
        ("b:256;k:1024", "k:1024;o:1024"),
        lambda x, w: mtf.einsum([x, w], "b;o"),
        tf.matmul,
        "k",
    ),
    Case(
        "einsum",
        "q[b n l d] k[b n m d]",
        ("b:16;n:8;l:128;d:64", "b:16;n:8;m:128;d:64"),
        lambda q, k: mtf.einsum([q, k], "b;n;l;m"),
        _attend,
        "n",
    ),
    Case(
        "elementwise",
        "gelu",
        (ROWS,),
        mtf.gelu,
        lambda x: tf.nn.gelu(x, True),
        "d",
    ),
    Case(
        "elementwise",
        "x * y + z[d]",
        (ROWS, ROWS, "d:2048"),
        lambda x, y, z: x * y + z,
        lambda x, y, z: x * y + z,
        "d",
    ),
    Case(
        "reductions",
        "reduce_sum over d",
        (ROWS,),
        lambda x: mtf.reduce_sum(x, "d"),
        lambda x: tf.reduce_sum(x, -1),
        "d",
    ),
    Case(
        "reductions",
        "reduce_max over d",
        (ROWS,),
        lambda x: mtf.reduce_max(x, "d"),
        lambda x: tf.reduce_max(x, -1),
        "d",
    ),
    Case(
        "softmax",
        "softmax over d",
        (ROWS,),
        lambda x: mtf.softmax(x, "d"),
        tf.nn.softmax,
        "d",
    ),
    Case(
        "norm",
        "layer_norm over d",
        (ROWS,),
        lambda x: mtf.layer_norm(x, "d"),
        _layer_norm,
        "d",
    ),
    Case(
        "loss",
        "cross_entropy over v",
        ("b:512;v:4096", "int b:512"),
        lambda x, y: mtf.cross_entropy(x, y, "v"),
        lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x),
        "v",
        below=4096,
    ),
    Case(
        "gather",
        "along v",
        TABLE,
        lambda x, i: mtf.gather(x, i, "v"),
        lambda x, i: tf.gather(x, i),
        "v",
        below=8192,
    ),
    Case(
        "segments",
        "segment_sum into v",
        ("b:8192;d:256", "int b:8192"),
        lambda x, i: mtf.segment_sum(x, i, "v:1024"),
        lambda x, i: tf.math.unsorted_segment_sum(x, i, 1024),
        "v",
        below=1024,
    ),
    Case(
        "scatter",
        "scatter_add to v",
        ("v:8192;d:256", "int b:4096", "b:4096;d:256"),
        lambda x, i, y: mtf.scatter_add(x, i, y, "v"),
        lambda x, i, y: tf.tensor_scatter_nd_add(x, i[:, None], y),
        "v",
        below=8192,
    ),
    Case(
        "sort",
        "sort along d",
        ("b:128;d:2048",),
        lambda x: mtf.sort(x, "d"),
        tf.sort,
        "d",
    ),
    Case(
        "top_k",
        "top_k of d, k:8",
        (ROWS,),
        lambda x: mtf.top_k(x, "d", "k:8")[0],
        lambda x: tf.math.top_k(x, 8)[0],
        "d",
    ),
    Case(
        "cumulative",
        "cumsum along d",
        (ROWS,),
        lambda x: mtf.cumsum(x, "d"),
        lambda x: tf.cumsum(x, -1),
        "d",
    ),
    Case(
        "cumulative",
        "linear_recurrence along d",
        ("d:128;b:512", "d:128;b:512"),
        lambda a, b: mtf.math.linear_recurrence(mtf.sigmoid(a), b, "d"),
        lambda a, b: _recurrence(tf.sigmoid(a), b),
        "d",
    ),
    Case(
        "convolution",
        "conv 3x3",
        (IMAGES, "i:3;j:3;c:32;o:32"),
        lambda x, k: mtf.conv(x, k, "h:i;w:j"),
        _conv,
        "h",
    ),
    Case(
        "convolution",
        "conv_transpose 4x4, stride 2",
        (IMAGES, "i:4;j:4;o:16;c:32"),
        lambda x, k: mtf.conv_transpose(x, k, "h:i;w:j", stride=2),
        _conv_transpose,
        "h",
    ),
    Case(
        "pooling",
        "max_pool 2x2",
        (IMAGES,),
        lambda x: mtf.max_pool(x, "h:2;w:2"),
        lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"),
        "h",
    ),
    Case(
        "pooling",
        "avg_pool 3x3, stride 1",
        (IMAGES,),
        lambda x: mtf.avg_pool(x, "h:3;w:3", stride=1, padding="same"),
        lambda x: tf.nn.avg_pool2d(x, 3, 1, "SAME"),
        "h",
    ),
    Case(
        "shift",
        "roll along d by 5",
        (ROWS,),
        lambda x: mtf.roll(x, "d", 5),
        lambda x: tf.roll(x, 5, -1),
        "d",
    ),
    Case(
        "shapes",
        "concat along d",
        (ROWS, ROWS),
        lambda x, y: mtf.concat([x, y], "d"),
        lambda x, y: tf.concat([x, y], -1),
        "d",
    ),
    Case(
        "shapes",
        "transpose",
        (ROWS,),
        lambda x: mtf.transpose(x, "d;b"),
        tf.transpose,
        "d",
    ),
    Case(
        "fft",
        "fft along n",
        ("complex b:256;n:2048",),
        lambda x: mtf.math.fft(x, "n"),
        tf.signal.fft,
        "n",
    ),
    Case(
        "random",
        "random_normal",
        ("int seed:2",),
        lambda s: mtf.random_normal(s.mesh, ROWS, seed=mtf.reduce_sum(s)),
        lambda s: tf.random.stateless_normal([512, 2048], s),
        "d",
        gradient=False,
        below=9,
        exact=False,
    ),
    Case(
        "a call alone",
        "relu of 64 numbers",
        ("b:8;d:8",),
        mtf.relu,
        tf.nn.relu,
        "d",
    ),
    Case(
        "loops",
        "scan of 8 layers",
        ("b:256;d:256", "layers:8;d:256;e:256"),
        _named_layers,
        _layers,
        "d",
    ),
)
