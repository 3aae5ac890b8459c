"""Small TensorFlow functions for each rule of the import."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

raw = tf.raw_ops


# A function and its arguments: the type of each ("f" floats, "p" positive ones, "i" integers
# below 4), then sizes.
Case = tuple[Callable[..., Any], list[str]]


def _moving_slices(x: tf.Tensor, i: tf.Tensor, j: tf.Tensor) -> list[tf.Tensor]:
    return [x[:, i], x[i : i + 3, None, ..., 1:2], x[..., j - 1 + 2 : j + 3, i - 4]]


CASES: dict[str, Case] = {
    "add_n": (lambda x, y: tf.add_n([x, y, x]), ["f 8 6", "f 8 6"]),
    "select": (lambda x, y: tf.where(x > 0, y, x * 2.0), ["f 8 6", "f 6"]),
    "select of numbers": (lambda x: tf.where(x > 0, 1.0, 2.0) * x, ["f 8 6"]),
    "select of a known condition": (
        lambda x, y: raw.SelectV2(condition=True, t=y, e=x) * x,
        ["f 6 6", "f 6"],
    ),
    "outer": (lambda x, y: x[:, None] * y[None, :], ["f 8", "f 6"]),
    "matmul": (lambda x, y: tf.matmul(x, y, transpose_b=True), ["f 8 6", "f 4 6"]),
    "batched matmul": (tf.matmul, ["f 8 4 6", "f 8 6 2"]),
    "attention": (
        lambda x, y: tf.nn.softmax(tf.einsum("blhd,bmhd->bhlm", x, y)),
        ["f 8 4 2 6", "f 8 4 2 6"],
    ),
    "einsum with dots": (
        lambda x, y: tf.einsum("...d,df->...f", x, y),
        ["f 8 4 6", "f 6 2"],
    ),
    "reductions": (
        lambda x: (
            tf.reduce_mean(x, 0),
            tf.reduce_max(x, [1, 2]),
            tf.reduce_min(x, -1, keepdims=True),
            tf.reduce_prod(x, 1),
            raw.EuclideanNorm(input=x, axis=2),
            tf.nn.l2_loss(x),
        ),
        ["p 8 4 6"],
    ),
    "ranks": (
        lambda x: (tf.argmax(x, 1), tf.argmin(x, 0), *tf.math.top_k(x, 2)),
        ["f 8 6"],
    ),
    "softmax of merged axes": (
        lambda x: tf.nn.log_softmax(tf.reshape(x, [8, 24])),
        ["f 8 4 6"],
    ),
    "cross entropy": (
        lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x),
        ["f 8 4", "i 8"],
    ),
    "soft cross entropy": (
        lambda x, y: raw.SoftmaxCrossEntropyWithLogits(
            features=x, labels=tf.nn.softmax(y)
        )[0],
        ["f 8 6", "p 8 6"],
    ),
    "cumulative": (
        lambda x: (
            tf.cumsum(x, 1, reverse=True),
            tf.math.cumprod(x, 0, exclusive=True),
        ),
        ["p 8 4"],
    ),
    "convolution": (
        lambda x, k: tf.nn.conv2d(x, k, [1, 2, 1, 1], [[0, 0], [1, 1], [2, 0], [0, 0]]),
        ["f 8 8 6 4", "f 3 3 4 2"],
    ),
    "grouped convolution": (
        lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"),
        ["f 8 6 6 4", "f 3 3 2 6"],
    ),
    "depthwise convolution": (
        lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "VALID"),
        ["f 8 6 6 4", "f 3 1 4 2"],
    ),
    "transposed convolution": (
        lambda x, k: tf.nn.conv2d_transpose(x, k, [8, 8, 6, 2], 2),
        ["f 8 4 3 4", "f 3 3 2 4"],
    ),
    "volumes": (
        lambda x, k: tf.nn.max_pool3d(
            tf.nn.conv3d(x, k, [1] * 5, "SAME"), 2, 2, "VALID"
        ),
        ["f 4 4 6 4 2", "f 3 1 3 2 4"],
    ),
    "transposed volumes": (
        lambda x, k: tf.nn.avg_pool3d(
            tf.nn.conv3d_transpose(x, k, [4, 4, 4, 4, 2], 2), 2, 1, "SAME"
        ),
        ["f 4 2 2 2 4", "f 2 2 2 2 4"],
    ),
    "pools": (
        lambda x: (
            tf.nn.max_pool2d(x, 2, 2, "SAME"),
            tf.nn.avg_pool2d(x, 3, 1, "VALID"),
        ),
        ["f 8 5 6 4"],
    ),
    "window over merged rows": (
        lambda x: tf.nn.max_pool2d(tf.reshape(x, [8, 6, 4, 2]), 3, 1, "SAME"),
        ["f 8 2 3 4 2"],
    ),
    "dilation by blocks": (
        lambda x: tf.batch_to_space(
            tf.space_to_batch(x, [2, 2], [[1, 1], [0, 2]]) * 2.0,
            [2, 2],
            [[1, 1], [0, 2]],
        ),
        ["f 8 4 6 2"],
    ),
    "resized": (
        lambda x: (
            tf.image.resize(x, [6, 9], "bilinear")
            * tf.image.resize(x, [6, 9], "nearest")
        ),
        ["f 8 3 6 2"],
    ),
    "blocks of pixels": (
        lambda x: tf.nn.space_to_depth(tf.nn.depth_to_space(x, 2) ** 2, 4),
        ["f 4 4 2 8"],
    ),
    "reshapes": (
        lambda x: tf.transpose(tf.reshape(x, [8, 2, 3, 4]), [0, 2, 1, 3]),
        ["f 8 6 4"],
    ),
    "other digits": (lambda x: tf.reshape(x, [8, 9, 4, 2]) ** 2, ["f 8 6 6 2"]),
    "two factorings": (
        lambda x, y: tf.reshape(x, [8, 12]) + tf.reshape(y, [8, 12]),
        ["f 8 4 3", "f 8 3 4"],
    ),
    "one axis less": (lambda x: tf.squeeze(tf.expand_dims(x, 1) * 2.0, [1]), ["f 8 6"]),
    "repeats": (
        lambda x: tf.tile(x, [1, 2]) + tf.broadcast_to(x[:, :1], [8, 12]),
        ["f 8 6"],
    ),
    "fill": (lambda x: x + tf.fill([8, 6], x[0, 0]), ["f 8 6"]),
    "stacks": (
        lambda x, y: tf.stack(tf.unstack(tf.stack([x, y * y], 1), axis=2), 0),
        ["f 8 6", "f 8 6"],
    ),
    "moves": (lambda x: tf.roll(tf.reverse(x, [1]), [1, 2], [0, 1]), ["f 8 6"]),
    "slices": (
        lambda x: (x[:, 1:3], x[..., ::2], x[2:, None, 1], x[:, ::-1], x[1:8:3], x[-1]),
        ["f 8 6 4"],
    ),
    "slices that move": (
        lambda x, i: _moving_slices(x, i[0], i[1]),
        ["f 8 6 4", "i 2"],
    ),
    "a slice by begin": (lambda x: tf.slice(x, [2, 0], [4, 3]), ["f 8 6"]),
    "padding": (
        lambda x: (
            tf.pad(x, [[0, 0], [1, 2]], constant_values=3.0),
            tf.pad(x, [[1, 1], [0, 0]]),
            tf.pad(x, [[2, 1], [0, 2]], "REFLECT"),
            tf.pad(x[:, :1], [[0, 0], [1, 1]], "SYMMETRIC"),
        ),
        ["f 8 6"],
    ),
    "joins": (
        lambda x, y: (
            tf.concat([x, y], 1),
            tf.concat([x, x], 0),
            tf.concat([x[:, :1], y], 1),
        ),
        ["f 8 6", "f 8 4"],
    ),
    "splits": (
        lambda x: (*tf.split(x, 3, 1), *tf.split(x**2, [1, 5], 1)),
        ["f 8 6"],
    ),
    "gathers": (
        lambda x, i: (
            tf.gather(x, i),
            tf.gather(x, i[0], axis=1),
            tf.gather(x, i, batch_dims=1),
        ),
        ["f 8 6", "i 8 4"],
    ),
    "along an axis": (
        lambda x, i: tf.gather(x, i, axis=2, batch_dims=2),
        ["f 8 4 6", "i 8 4 3"],
    ),
    "one hot of logarithms": (
        lambda x, i: tf.reduce_logsumexp(
            x + tf.one_hot(i, 6, 0.0, tf.math.log(0.0)), -1
        ),
        ["f 8 6", "i 8"],
    ),
    "one hot": (
        lambda x, i: x * tf.one_hot(i, 6, 2.0, -1.0) + tf.one_hot(i, 6),
        ["f 8 6", "i 8"],
    ),
    "segments": (lambda x, i: tf.math.unsorted_segment_sum(x, i, 4), ["f 8 6", "i 8"]),
    "Fourier": (
        lambda x: (
            tf.math.real(tf.signal.fft2d(tf.complex(x, x * 2.0)))
            + tf.abs(tf.signal.ifft(tf.signal.fft(tf.complex(x, x))))
        ),
        ["f 8 4 6"],
    ),
    "imaginary": (
        lambda x: tf.math.imag(tf.math.conj(tf.signal.ifft2d(tf.complex(x, x)))),
        ["f 8 4 6"],
    ),
    "without a rule": (
        lambda x, y: (
            tf.math.atan2(x, y) + tf.linalg.band_part(x, 1, 0) * tf.math.lgamma(y)
        ),
        ["p 8 6", "p 8 6"],
    ),
    "matrices": (
        lambda x, y: (
            tf.linalg.inv(x + 9.0 * tf.eye(4)),
            tf.linalg.det(x),
            tf.linalg.diag_part(x),
            tf.linalg.diag(x[:, 0]),
            tf.linalg.set_diag(x, y[..., 0]),
            tf.linalg.solve(x + 9.0 * tf.eye(4), y),
            tf.linalg.triangular_solve(x + 9.0 * tf.eye(4), y),
            tf.linalg.solve(x + 9.0 * tf.eye(4), tf.ones([8, 4, 1])),
            tf.linalg.cholesky(tf.matmul(x, x, transpose_b=True) + 9.0 * tf.eye(4)),
        ),
        ["f 8 4 4", "f 8 4 2"],
    ),
    "images": (
        lambda x: (
            tf.image.rgb_to_hsv(x),
            raw.ResizeBicubic(images=x, size=[6, 9]),
            tf.image.extract_patches(x, [1, 2, 2, 1], [1] * 4, [1] * 4, "VALID"),
            tf.nn.lrn(x),
            raw.Dilation2D(
                input=x,
                filter=tf.ones([2, 2, 3]),
                strides=[1] * 4,
                rates=[1] * 4,
                padding="SAME",
            ),
        ),
        ["p 8 4 6 3"],
    ),
    "real coefficients": (
        lambda x: (tf.abs(tf.signal.rfft(x)), tf.abs(tf.signal.rfft2d(x))),
        ["f 8 4 6"],
    ),
    "rotated images": (
        lambda x: raw.ImageProjectiveTransformV3(
            images=x,
            transforms=tf.constant([[0.9, 0.2, 0.0, -0.2, 0.9, 1.0, 0.0, 0.0]] * 8),
            output_shape=[4, 6],
            fill_value=0.0,
            interpolation="BILINEAR",
        ),
        ["f 8 4 6 3"],
    ),
    "ratios": (
        lambda x, y: [
            result_of(kind, x, y) for kind in ("Xdivy", "Xlog1py", "Xlogy", "MulNoNan")
        ],
        ["p 8 6", "p 8 6"],
    ),
    "angles": (
        lambda x: [
            call(getattr(raw, kind), x * 0.25)
            for kind in (
                "Acos",
                "Asin",
                "Asinh",
                "Atan",
                "Atanh",
                "Cosh",
                "Sinh",
                "Tan",
            )
        ],
        ["p 8 6"],
    ),
    "special functions": (
        lambda x, y: (
            tf.math.digamma(x),
            tf.math.erfinv(x * 0.25),
            tf.math.ndtri(x * 0.25),
            tf.math.acosh(x + 1.0),
            tf.math.softsign(x),
            tf.math.igamma(x, y),
            tf.math.igammac(x, y),
            tf.math.zeta(x + 2.0, y),
            tf.math.polygamma(1.0, x),
            raw.FakeQuantWithMinMaxArgs(inputs=x, min=0, max=2),
            raw.ClipByValue(t=x, clip_value_min=0.4, clip_value_max=0.6),
        ),
        ["p 8 6", "p 8 6"],
    ),
}
WITHOUT_GRADIENT = {
    "bits": (
        lambda i, x: (
            tf.bitwise.bitwise_and(i, 3),
            tf.bitwise.bitwise_or(i, i[0]),
            tf.bitwise.bitwise_xor(i, 1),
            tf.bitwise.invert(i),
            tf.bitwise.left_shift(i, 2),
            tf.bitwise.right_shift(i, 1),
            tf.bitcast(x, tf.int32),
            tf.truncatediv(i, 3),
            tf.truncatemod(i, 3),
            tf.math.nextafter(x, x + 1.0),
        ),
        ["i 8 6", "f 8 6"],
    ),
    "gradients of tensorflow": (
        lambda x, y: tf.add_n(
            [
                raw.EluGrad(gradients=x, outputs=y),
                raw.LeakyReluGrad(gradients=x, features=y, alpha=0.1),
                raw.ReciprocalGrad(y=y, dy=x),
                raw.Relu6Grad(gradients=x, features=y),
                raw.ReluGrad(gradients=x, features=y),
                raw.RsqrtGrad(y=y, dy=x),
                raw.SeluGrad(gradients=x, outputs=y),
                raw.SigmoidGrad(y=y, dy=x),
                raw.SoftplusGrad(gradients=x, features=y),
                raw.SoftsignGrad(gradients=x, features=y),
                raw.SqrtGrad(y=y, dy=x),
                raw.TanhGrad(y=y, dy=x),
            ]
        ),
        ["f 8 6", "p 8 6"],
    ),
    "colors": (
        lambda x: (
            tf.image.adjust_contrast(x, 0.5),
            tf.image.adjust_hue(x, 0.1),
            tf.image.adjust_saturation(x, 0.5),
            tf.image.hsv_to_rgb(x),
            tf.image.resize(x, [2, 3], "area"),
        ),
        ["p 8 4 6 3"],
    ),
    "in top k": (lambda x, y: tf.math.in_top_k(y, x, 2), ["f 8 4", "i 8"]),
    "booleans": (
        lambda x: (tf.reduce_all(x > 0, 1), tf.reduce_any(x > 1, 0), (x > 0)[:, 0]),
        ["f 8 4"],
    ),
}


def result_of(kind: str, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    operation = getattr(raw, kind)
    if kind.startswith("Logical"):
        return tf.cast(call(operation, x > 0.5, y > 2.0), tf.float32)
    if kind == "Complex":
        return tf.abs(call(operation, x, tf.broadcast_to(y, [8, 6])))
    return tf.cast(call(operation, x, y), tf.float32)


def call(operation: Any, *operands: tf.Tensor) -> tf.Tensor:
    names = list(inspect.signature(operation).parameters)
    return operation(**dict(zip(names, operands)))
