"""Matmuls give the same results in every stored form and by every kernel."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import meshtf as mtf
from meshtf.graph import MatmulKernels
from meshtf.ops.linear import matmul_kernels
from meshtf.ops.linear.matmul_kernels import fast_matmul
from meshtf.runtime.devices import matmul_choice
from meshtf.runtime.lowering import local_context as runtime_at
from meshtf.runtime.tf_internals.onednn_names import (
    ONEDNN_MATMULS,
    onednn_kernel,
    onednn_matmul,
)

# Products of m, k, n, what is stored transposed, threads -> which inputs get wider
CASES = [
    (256, 128, 1024, "", 1, "b"),
    (256, 128, 1040, "", 1, ""),
    (512, 128, 1024, "", 1, ""),
    (16, 128, 1024, "", 1, ""),
    (256, 128, 1024, "a", 1, "b"),
    (1024, 256, 64, "a", 1, "a"),
    (1024, 32, 64, "a", 1, ""),
    (384, 256, 1024, "a", 1, "b"),
    (64, 1024, 512, "b", 1, ""),
    (64, 1024, 512, "ab", 1, ""),
    (512, 64, 1024, "", 2, ""),
    (512, 64, 4096, "", 2, "b"),
    (512, 64, 4096, "", 3, ""),
    (1024, 256, 64, "a", 2, "a"),
    (1024, 256, 4096, "a", 2, "b"),
    (2048, 64, 4096, "", 2, ""),
    (1024, 5120, 64, "a", 1, ""),
]

# The same with the matrices of a batch (0: none) -> whether oneDNN computes it
BY_ONEDNN = [
    (64, 1024, 32, "b", 1, 0, True),
    (8, 16, 8, "b", 1, 0, True),
    (600, 64, 32, "b", 1, 0, True),
    (600, 64, 32, "b", 2, 0, False),
    (500, 64, 32, "b", 2, 0, True),
    (4, 64, 256, "b", 1, 0, False),
    (64, 64, 256, "", 1, 0, False),
    (64, 64, 256, "a", 1, 0, False),
    (64, 64, 256, "ab", 1, 0, False),
    (128, 32, 128, "b", 1, 3, True),
    (128, 128, 32, "", 1, 3, True),
    (128, 128, 32, "a", 1, 3, True),
    (32, 64, 128, "ab", 1, 3, True),
    (128, 32, 128, "b", 2, 3, False),
    (128, 32, 128, "b", 2, 8, True),
    (16, 16, 16, "", 1, 50, False),
    (4, 128, 128, "", 1, 3, False),
    (64, 32, 1024, "", 1, 3, False),
    (64, 32, 1024, "b", 1, 3, True),
    (1024, 512, 32, "", 1, 2, True),
    (16, 256, 1024, "b", 1, 2, False),
]


# Products where TensorFlow has oneDNN compute all -> whether the second matrix is
# transposed first
TRANSPOSED_FIRST = [
    (512, 1024, 512, "b", True),
    (512, 512, 64, "b", True),
    (500, 1024, 512, "b", False),
    (512, 1040, 512, "b", False),
    (512, 1024, 520, "b", False),
    (512, 1024, 512, "", False),
    (512, 1024, 512, "a", False),
    (512, 1024, 512, "ab", False),
    (512, 66_560, 64, "b", False),
]


def matrices(rng, m, k, n, flips):
    """Returns random a `[m, k]` and b `[k, n]`; those in `flips` are stored transposed."""
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    return a.T.copy() if "a" in flips else a, b.T.copy() if "b" in flips else b


@pytest.mark.parametrize(("m", "k", "n", "flips", "threads", "wider"), CASES)
def test_padded_matrices_give_the_same_matmul(rng, m, k, n, flips, threads, wider):
    a, b = matrices(rng, m, k, n, flips)
    context = context_of(threads)
    program = tf.function(
        lambda a, b: fast_matmul(a, b, "a" in flips, "b" in flips, context)
    ).get_concrete_function(a, b)
    padded = [op for op in program.graph.get_operations() if op.type == "Pad"]
    assert len(padded) == len(wider)
    assert {
        name
        for name, x in zip("ab", program.inputs, strict=True)
        if any(op.inputs[0] is x for op in padded)
    } == set(wider)
    want = (a.T if "a" in flips else a) @ (b.T if "b" in flips else b)
    np.testing.assert_allclose(
        program(tf.constant(a), tf.constant(b)), want, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(
    ("m", "k", "n", "flips", "threads", "count", "asked"), BY_ONEDNN
)
def test_onednn_kernel_gives_the_same_matmul(
    rng, m, k, n, flips, threads, count, asked
):
    pairs = [matrices(rng, m, k, n, flips) for _ in range(count or 1)]
    a, b = (np.stack(xs) if count else xs[0] for xs in zip(*pairs))
    program = tf.function(
        lambda a, b: fast_matmul(
            a, b, "a" in flips, "b" in flips, context_of(threads, True)
        )
    ).get_concrete_function(a, b)
    assert bool(kinds(program.graph) & {*ONEDNN_MATMULS}) is asked
    want = (a.swapaxes(-1, -2) if "a" in flips else a) @ (
        b.swapaxes(-1, -2) if "b" in flips else b
    )
    np.testing.assert_allclose(
        program(tf.constant(a), tf.constant(b)), want, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(("m", "k", "n", "flips", "transposes_b"), TRANSPOSED_FIRST)
def test_onednn_gets_b_transposed_where_the_output_has_few_columns(
    rng, m, k, n, flips, transposes_b
):
    a, b = matrices(rng, m, k, n, flips)
    context = SimpleNamespace(matmul_kernels=MatmulKernels(2, all_onednn=True))
    program = tf.function(
        lambda a, b: fast_matmul(a, b, "a" in flips, "b" in flips, context)
    ).get_concrete_function(a, b)
    ops_by_type = {op.type: op for op in program.graph.get_operations()}
    assert ("Transpose" in ops_by_type) is transposes_b and not ops_by_type.keys() & {
        "Pad",
        *ONEDNN_MATMULS,
    }
    assert ops_by_type["MatMul"].get_attr("transpose_b") is (
        "b" in flips and not transposes_b
    )
    want = (a.T if "a" in flips else a) @ (b.T if "b" in flips else b)
    np.testing.assert_allclose(
        program(tf.constant(a), tf.constant(b)), want, rtol=1e-4, atol=2e-3
    )


def context_of(threads, onednn=False):
    """Returns the context of a device whose matmul kernels have `threads` threads."""
    if onednn and not all(map(onednn_kernel, ONEDNN_MATMULS)):
        pytest.skip("this TensorFlow was built without oneDNN")
    return SimpleNamespace(
        matmul_kernels=MatmulKernels(threads, onednn_matmul if onednn else None)
    )


@pytest.mark.parametrize("flips", ["a", "b"])
def test_infinite_numbers_stay_in_their_rows(rng, flips):
    a, b = matrices(rng, 1024, 256, 64, flips)
    (a.T if "a" in flips else a)[0, 0], b[0, 0] = np.inf, 1.0
    y = tf.function(
        lambda a, b: fast_matmul(a, b, "a" in flips, "b" in flips, context_of(1, True))
    )(a, b)
    assert y[0, 0] == np.inf and np.isfinite(y[1:]).all()


def test_other_types_stay_as_they_are(rng):
    a, b = matrices(rng, 256, 128, 1024, "b")

    def both(a, b):
        a, b = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
        return [
            fast_matmul(x, y, False, flip, context_of(1, True))
            for x, y, flip in (
                (a, b, True),
                (a, tf.transpose(b), False),
                (a[None], b[None], True),
            )
        ]

    assert not kinds(tf.function(both).get_concrete_function(a, b).graph) & {
        "Pad",
        *ONEDNN_MATMULS,
    }


def test_outside_of_functions_tensorflow_computes_products(rng):
    a, b = matrices(rng, 64, 64, 64, "b")
    np.testing.assert_array_equal(
        fast_matmul(a, b, False, True, context_of(1, True)),
        fast_matmul(a, b, False, True),
    )


def kinds(graph):
    """Returns the types of all ops of a graph and its functions."""
    definition = graph.as_graph_def()
    nodes = [
        *definition.node,
        *(n for f in definition.library.function for n in f.node_def),
    ]
    return {node.op for node in nodes}


@pytest.mark.parametrize("layout", ["", "batch:data", "d_ff:data"])
def test_programs_are_the_same_with_wider_rows(monkeypatch, rng, layout):
    x, w = (
        rng.standard_normal(s).astype(np.float32) for s in ((256, 256), (256, 2048))
    )
    mesh, wider, seen = (
        mtf.Mesh("data:2", layout=layout),
        matmul_kernels._pad_columns,
        [],
    )
    monkeypatch.setattr(
        matmul_kernels, "_pad_columns", lambda x: seen.append(x.shape[1]) or wider(x)
    )

    def loss(x, w):
        x, w = (mtf.asarray(mesh, v, n) for v, n in ((x, "batch;d"), (w, "d;d_ff")))
        h = mtf.einsum([x, w], "batch;d_ff")
        return float(mtf.reduce_sum(mtf.tanh(h)))

    losses = []
    for kernels in (None, MatmulKernels(1)):
        monkeypatch.setattr(
            runtime_at, "matmul_kernels", lambda devices, kernels=kernels: kernels
        )
        losses.append(loss(x, w))
        assert bool(seen) is bool(kernels)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_what_is_saved_has_no_kernels_of_the_processor_at_hand(
    monkeypatch, rng, tmp_path
):
    asked, mesh = [], mtf.Mesh("")
    monkeypatch.setattr(
        runtime_at,
        "matmul_kernels",
        lambda devices: asked.append(devices) or MatmulKernels(1),
    )
    x, w = (
        mtf.asarray(mesh, rng.standard_normal((16, 8)).astype(np.float32), names)
        for names in ("batch;d_model", "vocab;d_model")
    )
    predict = mtf.function(lambda x: mtf.einsum([x, w], "batch;vocab"))
    mtf.export_saved_model(predict, x).save(str(tmp_path))
    saved = saved_model_pb2.SavedModel.FromString(
        (tmp_path / "saved_model.pb").read_bytes()
    )
    (meta_graph,) = saved.meta_graphs
    assert not asked and "MatMul" in {
        n.op for f in meta_graph.graph_def.library.function for n in f.node_def
    }
    predict(x)
    assert asked


def test_which_processors_have_the_kernel(monkeypatch):
    cpus = ["/job:localhost/replica:0/task:0/device:CPU:0"]
    monkeypatch.setattr(matmul_choice, "_has_avx_without_avx512", lambda: True)
    monkeypatch.setattr(matmul_choice, "onednn_rewrites", lambda: False)
    assert matmul_choice.matmul_kernels(cpus).threads >= 1
    assert matmul_choice.matmul_kernels([*cpus, cpus[0].replace("CPU", "GPU")]) is None
    monkeypatch.setattr(matmul_choice, "onednn_rewrites", lambda: True)
    assert matmul_choice.matmul_kernels(cpus)[1:] == (None, True)
    monkeypatch.setattr(matmul_choice, "onednn_rewrites", lambda: False)
    monkeypatch.setattr(matmul_choice, "_has_avx_without_avx512", lambda: False)
    assert matmul_choice.matmul_kernels(cpus) is None


@pytest.mark.parametrize(
    ("flags", "without"),
    [
        ("flags : fpu avx avx2", True),
        ("", False),
        ("flags : avx avx2 avx512f", False),
        ("flags : sse4_2", False),
    ],
)
def test_processors_are_known_by_their_flags(monkeypatch, tmp_path, flags, without):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    monkeypatch.setattr(matmul_choice, "_CPUINFO", tmp_path / "cpuinfo")
    assert matmul_choice._has_avx_without_avx512.__wrapped__() is without
