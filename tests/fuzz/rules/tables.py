"""Ops that programs are drawn of and that one line can say: elementwise, reductions,
along a name.

`{}` or `{0}` stands for a value, `{1}` for another or for a dimension. Functions with
poles or branches get arguments that lie away from them: sin(x) + 1.5 is never 0. Those
with kinks are what `KINKED` finds; their kinks do not lie at 0, where many numbers of a
program do.
"""

from __future__ import annotations

import re

UNARY = (
    "mtf.tanh({})",
    "{} * 0.5",
    "mtf.sin({})",
    "mtf.sigmoid({})",
    "mtf.softplus({})",
    "mtf.relu({})",
    "mtf.math.erf({})",
    "1.0 * {} / (1.5 + mtf.sin({}))",
    "mtf.square(mtf.sin({}))",
    "-{}",
    "mtf.cos({})",
    "mtf.math.atan({})",
    "mtf.exp(mtf.sin({}))",
    "mtf.math.expm1(mtf.sin({}))",
    "mtf.log(mtf.square({}) + 0.5)",
    "mtf.math.log1p(mtf.square({}))",
    "mtf.sqrt(mtf.square({}) + 0.5)",
    "mtf.rsqrt(mtf.square({}) + 0.5)",
    "mtf.math.reciprocal(mtf.sin({}) + 1.5)",
    "mtf.math.tan(mtf.sin({}) * 0.7)",
    "mtf.math.asin(mtf.sin({}) * 0.7)",
    "mtf.math.acos(mtf.sin({}) * 0.7)",
    "mtf.math.sinh(mtf.sin({}))",
    "mtf.math.cosh(mtf.sin({}))",
    "mtf.math.erfinv(mtf.sin({}) * 0.7)",
    "mtf.math.lgamma(mtf.sin({}) + 1.5)",
    "mtf.gelu({})",
    "mtf.gelu({}, approximate=False)",
    "mtf.silu({})",
    "mtf.elu({} - 0.125)",
    "mtf.selu({} - 0.125)",
    "mtf.leaky_relu({} - 0.125)",
    "mtf.squared_relu({} - 0.125)",
    "mtf.abs({} - 0.125)",
    "mtf.clip({}, -0.625, 0.875)",
    "{} * mtf.sign({} - 0.125)",
    "{} * mtf.floor({} + 0.375)",
    "{} * mtf.ceil({} + 0.375)",
    "{} * mtf.round({} + 0.125)",
)
BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * mtf.sin({1})",
    "mtf.maximum({0}, {1})",
    "mtf.minimum({0}, {1} - 0.125)",
    "mtf.math.logaddexp({0}, {1})",
    "mtf.sin(mtf.math.squared_difference({0}, {1}))",
    "mtf.math.atan2({0}, mtf.square({1}) + 0.5)",
    "mtf.pow(mtf.sin({0}) + 1.5, mtf.sin({1}))",
    "mtf.pow({0}, 2.0) * mtf.sin({1})",
    "mtf.divide({0}, mtf.square({1}) + 0.5)",
    "mtf.multiply({0}, mtf.cos({1}))",
    "mtf.math.divide_no_nan({0}, mtf.round({1} + 0.125) * (mtf.sin({1}) + 1.5))",
    "mtf.math.floormod({0} + 0.125, mtf.sin({1}) + 1.5)",
    "{0} * mtf.floordiv({1} + 0.125, mtf.sin({1}) + 1.5)",
)
CONDITIONS = (
    "{0} > 0.125",
    "mtf.less({0}, 0.125)",
    "mtf.greater_equal({0}, {1} - 0.125)",
    "mtf.logical_and(mtf.greater({0}, -0.5), mtf.less({1}, 0.75))",
    "mtf.logical_or({0} > 0.5, {1} > 0.25)",
    "mtf.math.logical_xor({0} > 0.125, {1} > 0.25)",
    "mtf.logical_not(mtf.less_equal({0}, 0.125))",
    "mtf.is_finite({0})",
    "mtf.equal(mtf.sign({0} - 0.125), mtf.sign({1} - 0.125))",
    "mtf.not_equal(mtf.sign({0} - 0.125), mtf.sign({1} - 0.125))",
)
REDUCE = (
    "mtf.reduce_sum({}, {!r})",
    "mtf.reduce_mean({}, {!r})",
    "mtf.reduce_max({}, {!r})",
    "mtf.reduce_logsumexp({}, {!r})",
    "mtf.reduce_min({}, {!r})",
    "mtf.reduce_prod(mtf.sin({}) + 1.5, {!r})",
    "mtf.reduce_variance({}, {!r})",
    "mtf.reduce_rms(mtf.square({}) + 0.5, {!r})",
    "mtf.math.nth_largest({}, {!r}, 1)",
    "mtf.math.nth_smallest({}, {!r}, 0)",
)
ALONG = (
    "mtf.softmax({}, {!r})",
    "mtf.log_softmax({}, {!r})",
    "mtf.cumsum({}, {!r})",
    "mtf.cumsum({}, {!r}, reverse=True, exclusive=True)",
    "mtf.roll({}, {!r}, 1)",
    "mtf.shift({}, {!r}, 1)",
    "mtf.layer_norm({}, {!r})",
    "mtf.sort({}, {!r})",
    "mtf.math.linear_recurrence(mtf.sigmoid({0}), {0}, {1!r})",
    "mtf.concat([mtf.slice({0}, {1!r}, {2}, {3}), mtf.slice({0}, {1!r}, 0, {2})], "
    "{1!r})",
    "mtf.stack(list(reversed(mtf.unstack({}, {!r}))), {!r})",
    "mtf.cumsum({}, {!r}, exclusive=True)",
    "mtf.cumsum({}, {!r}, reverse=True)",
    "mtf.math.cumprod(mtf.sin({}) + 1.5, {!r})",
    "mtf.math.cumprod(mtf.sin({}) + 1.5, {!r}, exclusive=True)",
    "mtf.math.cumprod(mtf.sin({}) + 1.5, {!r}, reverse=True)",
    "mtf.math.cummax({}, {!r})",
    "mtf.math.cummin({}, {!r}, reverse=True)",
    "mtf.math.cumulative_logsumexp({}, {!r})",
    "mtf.math.cumulative_logsumexp({}, {!r}, reverse=True)",
    "mtf.math.linear_recurrence(mtf.sigmoid({0}), {0}, {1!r}, reverse=True)",
    "mtf.rms_norm({}, {!r})",
    "mtf.sort({}, {!r}, descending=True)",
    "mtf.roll({}, {!r}, -1)",
    "mtf.shift({}, {!r}, -1)",
    "mtf.take_along_axis({0}, mtf.argsort({0}, {1!r}), {1!r})",
    "{0} * mtf.cast(mtf.argmax({0}, {1!r}), {4!r})",
    "{0} * mtf.cast(mtf.argmin({0}, {1!r}), {4!r})",
)
STEPS = re.compile(
    r"floor|ceil|round|, \{1\} - 0.125"
)  # rounding of an argument moves steps
KINKED = re.compile(
    r"relu|selu|\.elu|(?<!soft)max|min|sort|abs|sign|floor|ceil|round|clip|nth|"
    r"where|top_"
)
# Ops that round no number.
EXACT = re.compile(
    r"mtf\.(math\.)?(relu|maximum|reduce_(max|min)|nth_\w+|roll|shift|sort|concat|stack|"
    r"cummax|cummin|take_along_axis|transpose|rename|broadcast|replicate|shard|split|"
    r"max_pool|dynamic_(shift|slice))\("
)
# What has a gradient, and no second one; or one of a user's own which is not linear: a
# second gradient takes it of sums of cotangents or of their terms, by where they meet.
ONCE = re.compile(r"reduce_prod|lambda.*(tanh\(dy|\b(dy\d+) \* \2\b)")
