"""Random numbers: their quality, that every slice finds the same bits, seeds and error
texts.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.names import Shape
from meshtf.ops.control.seeds import seed
from meshtf.ops.random import counter_bits, random, random_ops

ROWS, COLUMNS = 1024, 1024


class Slice:
    """A context for rows [offset, offset + size) of each dimension."""

    compiled = False

    def __init__(self, **rows):
        self.rows = rows
        self.outputs = self.inputs = (Shape([(n, r[1]) for n, r in rows.items()]),)

    def local_size(self, name):
        return self.rows[name][1]

    def shard_offset(self, name):
        return tf.constant(self.rows[name][0])

    def num_shards(self, name):
        return 2 if self.rows[name][0] else 1

    def stored(self, x):
        return x


def hash_of(context, *seeds, salt=7):
    key = counter_bits.random_key([tf.constant(s) for s in (salt, *seeds)])
    sums = counter_bits.element_sums(
        counter_bits.index_words(context, list(context.rows), key)
    )
    return tf.reshape(counter_bits.mix(*sums), context.outputs[0].sizes).numpy()


@pytest.fixture(scope="module")
def whole():
    return hash_of(Slice(a=(0, ROWS), b=(0, COLUMNS)), 1, 2)


@pytest.fixture(scope="module")
def centred(whole):
    return whole / 2.0**32 - 0.5


@pytest.mark.parametrize(
    "rows, columns",
    [
        ((512, 512), (0, 1024)),
        ((0, 1024), (768, 256)),
        ((3, 5), (999, 7)),
        ((1023, 1), (1, 1)),
    ],
)
def test_any_slice_has_the_bits_of_the_whole(whole, rows, columns):
    part = hash_of(Slice(a=rows, b=columns), 1, 2)
    np.testing.assert_array_equal(
        part, whole[rows[0] : sum(rows), columns[0] : sum(columns)]
    )


@pytest.mark.parametrize(
    "kind", ["uniform", "integers", "normal", "truncated", "gumbel"]
)
def test_slices_of_every_kind_are_equal_in_every_bit(kind):
    def draw(**rows):
        op = random_ops.Random(
            kind,
            Shape([(n, r[1]) for n, r in rows.items()]),
            "int32" if kind == "integers" else "float32",
            5.0,
            0.5,
        )
        if kind == "integers":
            op = random_ops.Random(kind, op.shape, op.dtype, 5, 1)
        return op.local(Slice(**rows), tf.constant(3))[0].numpy()

    want = draw(a=(0, 7), b=(0, 31), c=(0, 5))
    np.testing.assert_array_equal(draw(a=(2, 3), b=(17, 14), c=(0, 5)), want[2:5, 17:])
    np.testing.assert_array_equal(draw(a=(0, 7), b=(30, 1), c=(4, 1)), want[:, 30:, 4:])


@pytest.mark.parametrize("kind", ["uniform", "normal", "truncated", "gumbel"])
def test_numbers_made_in_blocks_are_those_of_a_function(kind, monkeypatch):
    monkeypatch.setattr(counter_bits, "_BLOCK", 24)
    op = random_ops.Random(kind, Shape("a:7;b:3;c:5"), "float32", 5.0, 0.5)
    context = Slice(a=(0, 7), b=(0, 3), c=(0, 5))
    blocks = op.local(context, tf.constant(3))[0]
    np.testing.assert_allclose(
        blocks,
        tf.function(lambda s: op.local(context, s))(tf.constant(3))[0],
        rtol=2e-6,
        atol=2e-6,
    )  # whose graph optimiser moves factors
    monkeypatch.undo()
    np.testing.assert_array_equal(blocks, op.local(context, tf.constant(3))[0])


def mix_of(a, b):
    """The mix of `bits`, in Python's integers."""
    h = a >> 16 ^ a
    h = h * 0x7FEB352D + b & 0xFFFFFFFF
    h ^= h >> 15
    h = h * 0x846CA68B & 0xFFFFFFFF
    return h ^ h >> 16


def bits_of(seeds, *index):
    """The bits of one element by the formulas of `bits`, in Python's integers."""
    key = [0, 0x9E3779B9]
    for number in seeds:
        key = [mix_of(number + k & 0xFFFFFFFF, 0) ^ 0x85EBCA6B for k in key]
    key = [mix_of(k, 0) for k in key]
    sums = [0, 0]
    for d, i in enumerate(index):
        for j, salt in enumerate((0x68E31DA4, 0xB5297A4D)):
            word = mix_of(i + 0x9E3779B9 * d + key[j] & 0xFFFFFFFF, 0)
            sums[j] += mix_of(word + key[1 - j] + salt & 0xFFFFFFFF, 0)
    return mix_of(sums[0] & 0xFFFFFFFF, sums[1] & 0xFFFFFFFF)


@pytest.mark.parametrize("index", [(0, 0), (1, 0), (0, 1), (517, 1023), (1023, 3)])
def test_bits_are_those_of_the_formulas(whole, index):
    assert whole[index] == bits_of((7, 1, 2), *index)


def test_recorded_bits_are_those_of_the_formulas():
    def draw(first):
        key = counter_bits.random_key([first, tf.constant(2)])
        sums = counter_bits.element_sums(
            counter_bits.index_words(Slice(a=(3, 4), b=(0, 5)), ["a", "b"], key)
        )
        return tf.reshape(counter_bits.mix(*sums), [4, 5])

    found = tf.function(draw, autograph=False)(tf.constant(9)).numpy()
    want = [[bits_of((9, 2), 3 + i, j) for j in range(5)] for i in range(4)]
    np.testing.assert_array_equal(found, np.array(want, "uint32"))


def test_bits_are_fair_and_independent(whole):
    sigma = 0.5 / np.sqrt(whole.size)
    planes = [(whole >> k) & 1 for k in range(0, 32, 3)]
    assert max(abs(p.mean() - 0.5) for p in planes) < 4.5 * sigma
    assert (
        max(abs((p ^ q).mean() - 0.5) for p in planes for q in planes if p is not q)
        < 5 * sigma
    )


def test_quadruples_are_the_weak_spot_of_separable_hashes(whole):
    half = ROWS // 2
    quads = (
        whole[:half, :half]
        ^ whole[:half, half:]
        ^ whole[half:, :half]
        ^ whole[half:, half:]
    )
    worst = max(abs(((quads >> k) & 1).mean() - 0.5) for k in range(32))
    assert worst < 4.5 * 0.5 / np.sqrt(quads.size)


def test_rows_and_columns_are_uncorrelated(centred):
    for x in (centred[:200], centred[:, :200].T):
        correlations = np.corrcoef(x) - np.eye(200)
        assert np.abs(correlations).max() * np.sqrt(x.shape[1]) < 5.5  # of 20,000 pairs
    assert abs((centred[:-1] * centred[1:]).mean() * 12) < 4.5 / np.sqrt(centred.size)
    assert abs((centred[:, :-1] * centred[:, 1:]).mean() * 12) < 4.5 / np.sqrt(
        centred.size
    )


def test_the_spectrum_is_that_of_a_random_matrix(centred):
    largest = np.linalg.svd(
        (centred[:512, :512] * np.sqrt(12.0 / 512)), compute_uv=False
    )[0]
    assert 1.93 < largest < 2.07


def test_values_are_evenly_spread_and_as_rarely_equal_as_chance(whole):
    for part in (whole >> np.uint32(20), whole & np.uint32(0xFFF)):
        counts = np.bincount(part.ravel().astype("int64"), minlength=4096)
        expected = whole.size / 4096
        chi = (((counts - expected) ** 2 / expected).sum() - 4095) / np.sqrt(2 * 4095)
        assert abs(chi) < 4.5
    ordered = np.sort(whole.ravel())
    assert 70 < (ordered[1:] == ordered[:-1]).sum() < 190  # 128 expected


def test_no_two_rows_of_a_large_table_are_alike():
    sums = hash_of(Slice(a=(0, 1 << 20), b=(0, 2)), 5)
    assert (
        len(np.unique(sums.astype("uint64") @ np.array([1, 1 << 32], "uint64")))
        == 1 << 20
    )


def test_seeds_salts_and_their_order_matter(whole, centred):
    context = Slice(a=(0, ROWS), b=(0, COLUMNS))
    others = [
        hash_of(context, 1, 3),
        hash_of(context, 2, 1),
        hash_of(context, 1),
        hash_of(context, 1, 2, salt=8),
    ]
    for other in others:
        assert (other == whole).mean() < 1e-5
        correlation = (centred * (other / 2.0**32 - 0.5)).mean() * 12
        assert abs(correlation) < 4.5 / np.sqrt(whole.size)


def moments(x):
    x = x.astype("float64").ravel()
    z = (x - x.mean()) / x.std()
    return x.mean(), x.std(), (z**3).mean(), (z**4).mean()


@pytest.mark.parametrize(
    "function, wanted",
    [
        (
            lambda m: random.random_uniform(m, "a:512;b:512", seed=1),
            (0.5, 12**-0.5, 0, 1.8),
        ),
        (lambda m: random.random_normal(m, "a:512;b:512", seed=1), (0, 1, 0, 3)),
        (
            lambda m: random.truncated_normal(m, "a:512;b:512", seed=1),
            (0, 0.87963, 0, 2.3689),
        ),
    ],
)
def test_moments(function, wanted):
    x = function(mtf.Mesh("")).numpy()
    np.testing.assert_allclose(moments(x), wanted, atol=0.02)


def test_normal_tails_follow_the_normal_distribution():
    x = np.abs(random.random_normal(mtf.Mesh(""), "a:1024;b:1024", seed=1).numpy())
    for bound, share in ((1, 0.31731), (2, 0.045500), (3, 0.0026998), (4, 6.334e-5)):
        count = share * x.size
        assert abs((x > bound).sum() - count) < 4.5 * np.sqrt(count)


def test_the_two_words_of_box_and_muller_are_independent():
    x = (
        random.random_normal(mtf.Mesh(""), "a:1024;b:1024", seed=1)
        .numpy()
        .astype("float64")
    )
    n = np.sqrt(x.size)
    for y in (x, x**2 - 1):
        assert abs((y[:-1] * y[1:]).mean()) < 4.5 * 2 / n
        assert abs((y[:, :-1] * y[:, 1:]).mean()) < 4.5 * 2 / n


def test_ranges_and_types():
    mesh = mtf.Mesh("")
    x = random.random_uniform(mesh, "a:4096", -2, 3, dtype="bfloat16", seed=1).numpy()
    assert x.dtype.name == "bfloat16" and x.min() >= -2 and x.max() < 3
    x = random.random_uniform(mesh, "a:4096", -3, 4, dtype="int32", seed=1).numpy()
    assert x.dtype == "int32" and np.bincount(x + 3).min() > 450
    assert (
        np.abs(
            random.truncated_normal(mesh, "a:4096", 1.0, 0.1, seed=1).numpy() - 1
        ).max()
        < 0.2
    )
    with pytest.raises(mtf.DTypeError, match="no integers"):
        random.random_uniform(mesh, "a:4", 3, 3, dtype="int32", seed=1)
    with pytest.raises(mtf.DTypeError, match="floats or integers"):
        random.random_uniform(mesh, "a:4", dtype="bool", seed=1)


def test_categorical_draws_with_the_right_frequencies():
    mesh = mtf.Mesh("x:2", layout="v:x")
    wanted = np.array([0.5, 0.25, 0.125, 0.125])
    logits = mtf.broadcast(
        mtf.asarray(mesh, np.log(wanted).astype("float32"), "v:4"), "n:8192;v:4"
    )
    drawn = random.categorical(logits, "v", seed=1).numpy()
    np.testing.assert_allclose(np.bincount(drawn) / 8192, wanted, atol=0.02)
    assert (random.categorical(logits, "v", temperature=0.0, seed=1).numpy() == 0).all()


def test_dropout_keeps_the_mean_and_its_gradient_the_mask():
    mesh = mtf.Mesh("x:2;y:2", layout="a:x;b:y")
    x = mtf.ones(mesh, "a:256;b:256")
    y = random.dropout(x, 0.25, seed=1)
    assert set(np.unique(y.numpy())) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(y.numpy().mean() - 1) < 0.02
    (dx,) = mtf.gradients([y], [x])
    np.testing.assert_array_equal(dx.numpy(), y.numpy())
    shared = random.dropout(x, 0.25, seed=1, broadcast="a").numpy()
    assert (shared == shared[:1]).all() and 0 < (shared[0] == 0).sum() < 128
    assert random.dropout(x, 0.0) is x
    with pytest.raises(mtf.PlanError, match="below 1, not 1"):
        random.dropout(x, 1, seed=1)


def test_the_same_bits_op_by_op_and_under_xla():
    op = random_ops.Random("uniform", Shape("a:64;b:33"), "float32")
    context = Slice(a=(0, 64), b=(0, 33))
    compiled = tf.function(lambda s: op.local(context, s)[0], jit_compile=True)(
        tf.constant(3)
    )
    np.testing.assert_array_equal(
        compiled.numpy(), op.local(context, tf.constant(3))[0].numpy()
    )


def test_seeds_by_context_argument_and_tensor_agree():
    mesh = mtf.Mesh("")
    step = mtf.asarray(mesh, np.int32(5), "")
    with seed(1, 5):
        x = random.random_uniform(mesh, "a:8").numpy()
    with seed(1, step):
        np.testing.assert_array_equal(random.random_uniform(mesh, "a:8").numpy(), x)
    np.testing.assert_array_equal(
        random.random_uniform(mesh, "a:8", seed=(1, 5)).numpy(), x
    )
    assert (random.random_uniform(mesh, "a:8", seed=(1, 6)).numpy() != x).all()
    assert (
        random.random_uniform(mesh, "a:8", seed=(1, 5), name="other").numpy() != x
    ).all()


def test_errors_of_seeds():
    mesh = mtf.Mesh("")
    with pytest.raises(
        mtf.PlanError, match="(?s)'random_uniform' needs a seed.*with mtf.seed"
    ):
        random.random_uniform(mesh, "a:8")
    with seed(1):
        random.random_uniform(mesh, "a:8")
        with pytest.raises(mtf.PlanError, match="(?s)two random ops are called.*name="):
            random.random_uniform(mesh, "a:8")
        random.random_uniform(mesh, "a:8", name="other")
        with mtf.scope("layer"):
            random.random_uniform(mesh, "a:8")
    for wrong, text in (
        (2**40, "(?s)does not fit in 32 bits.*>> 32"),
        (0.5, "a seed is an integer"),
        (mtf.zeros(mesh, "a:2"), "scalar of int32"),
    ):
        with pytest.raises(mtf.PlanError, match=text), seed(wrong):
            pass
    with pytest.raises(mtf.PlanError, match="at least one"), seed():
        pass
