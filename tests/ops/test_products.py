"""Products of matrices whose rows lie a multiple of 4 KiB apart are computed with wider rows."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.ops import products
from meshtf.ops.products import product
from meshtf.runtime import at as runtime_at
from meshtf.runtime import processor

# Products of m, k, n, what is stored transposed, threads -> which inputs get wider
CASES = [(256, 128, 1024, "", 1, "b"), (256, 128, 1040, "", 1, ""), (512, 128, 1024, "", 1, ""),
         (16, 128, 1024, "", 1, ""), (256, 128, 1024, "a", 1, "b"), (1024, 256, 64, "a", 1, "a"),
         (1024, 32, 64, "a", 1, ""), (384, 256, 1024, "a", 1, "b"), (64, 1024, 512, "b", 1, "ab"),
         (512, 1024, 512, "b", 1, ""), (64, 1024, 512, "ab", 1, ""), (512, 64, 1024, "", 2, ""),
         (512, 64, 4096, "", 2, "b"), (512, 64, 4096, "", 3, ""), (64, 1024, 512, "b", 2, ""),
         (1024, 256, 64, "a", 2, "a"), (1024, 256, 4096, "a", 2, "b"), (2048, 64, 4096, "", 2, ""),
         (1024, 5120, 64, "a", 1, ""), (64, 16384, 512, "b", 1, "")]


def matrices(rng, m, k, n, flips):
  """Returns inputs as they are stored."""
  a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
  return a.T.copy() if "a" in flips else a, b.T.copy() if "b" in flips else b


@pytest.mark.parametrize(("m", "k", "n", "flips", "threads", "wider"), CASES)
def test_where_rows_get_wider_the_product_is_the_same(rng, m, k, n, flips, threads, wider):
  a, b = matrices(rng, m, k, n, flips)
  at = SimpleNamespace(product_threads=threads)
  program = tf.function(lambda a, b: product(a, b, "a" in flips, "b" in flips, at)
                        ).get_concrete_function(a, b)
  padded = [op for op in program.graph.get_operations() if op.type == "Pad"]
  assert len(padded) == len(wider)
  assert {name for name, x in zip("ab", program.inputs, strict=True)
          if any(op.inputs[0] is x for op in padded)} == set(wider)
  want = (a.T if "a" in flips else a) @ (b.T if "b" in flips else b)
  np.testing.assert_allclose(program(tf.constant(a), tf.constant(b)), want, rtol=1e-4, atol=1e-3)


def test_infinite_numbers_stay_in_their_rows(rng):
  a, b = matrices(rng, 64, 1024, 512, "b")
  a[0, 0], b[0, 0] = np.inf, 1.0
  y = product(a, b, False, True, SimpleNamespace(product_threads=1)).numpy()
  assert y[0, 0] == np.inf and np.isfinite(y[1:]).all()


def test_other_types_and_batches_stay_as_they_are(rng):
  a, b = matrices(rng, 256, 128, 1024, "")
  at = SimpleNamespace(product_threads=1)

  def both(a, b):
    return product(tf.cast(a, tf.float64), tf.cast(b, tf.float64), False, False, at), product(
        a[None], b[None], False, False, at)

  assert not pads(tf.function(both).get_concrete_function(a, b).graph)


def pads(graph):
  """Returns how often something is padded in a graph and its functions."""
  definition = graph.as_graph_def()
  nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
  return sum(node.op == "Pad" for node in nodes)


@pytest.mark.parametrize("layout", ["", "batch:data", "d_ff:data"])
def test_programs_are_the_same_with_wider_rows(monkeypatch, rng, layout):
  x, w = (rng.standard_normal(s).astype(np.float32) for s in ((256, 256), (256, 2048)))
  mesh, wider, seen = mtf.Mesh("data:2", layout=layout), products._wider, []
  monkeypatch.setattr(products, "_wider", lambda x: seen.append(x.shape[1]) or wider(x))

  def loss(x, w):
    x, w = (mtf.import_tensor(mesh, v, n) for v, n in ((x, "batch;d"), (w, "d;d_ff")))
    h = mtf.einsum([x, w], "batch;d_ff")
    return float(mtf.reduce_sum(mtf.tanh(h)))

  found = []
  for threads in (0, 1):
    monkeypatch.setattr(runtime_at, "product_threads", lambda devices, n=threads: n)
    found.append(loss(x, w))
    assert bool(seen) is bool(threads)
  np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_which_processors_have_the_kernel(monkeypatch):
  cpus = ["/job:localhost/replica:0/task:0/device:CPU:0"]
  monkeypatch.setattr(processor, "_without_avx512", lambda: True)
  monkeypatch.setattr(processor, "onednn_rewrites", lambda: False)
  assert processor.product_threads(cpus) >= 1
  assert processor.product_threads([*cpus, cpus[0].replace("CPU", "GPU")]) == 0
  monkeypatch.setattr(processor, "onednn_rewrites", lambda: True)
  assert processor.product_threads(cpus) == 0
  monkeypatch.setattr(processor, "onednn_rewrites", lambda: False)
  monkeypatch.setattr(processor, "_without_avx512", lambda: False)
  assert processor.product_threads(cpus) == 0


@pytest.mark.parametrize(("flags", "without"), [("flags : fpu avx avx2", True), ("", False),
                                                ("flags : avx avx2 avx512f", False),
                                                ("flags : sse4_2", False)])
def test_processors_are_known_by_their_flags(monkeypatch, tmp_path, flags, without):
  (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
  monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
  assert processor._without_avx512.__wrapped__() is without
