"""Module paths in the names that XLA keeps of ops."""

from __future__ import annotations

import pytest

from meshtf.runtime.spmd.compiled.hlo_origins import origin

JAX = "jit(step)/shard_map/call_exported/"
END = "/XlaCallModule/all-gather.0"


@pytest.mark.parametrize(
    "op_name, path",
    [
        (f"{JAX}lm/embeddings/cast.86{END}", "lm/embeddings"),
        (f"{JAX}lm/loop.1/while/lm/block_3/q/einsum.4{END}", "lm/block_3/q"),
        # What a backward loop computes again.
        (f"{JAX}gradients/lm/loop.1/while/lm/norm/add.2{END}", "gradients/lm/norm"),
        (f"{JAX}gradients/lm/l.1/while/gradients/lm/q/dot.2{END}", "gradients/lm/q"),
        (f"{JAX}a/loop.1/while/a/loop.2/while/a/b/dot.2_1/MatMul", "a/b"),
        # Outside of modules.
        (f"{JAX}clip.205{END}", "clip"),
        (f"{JAX}gradients/einsum.219{END}", "gradients/einsum"),
        (f"{JAX}load_28{END}", "load_28"),
        # Merged.
        (f"{JAX}lm/block/(norm/add.1{END}:q/dot.2{END})", "lm/block"),
        (f"{JAX}(lm/a/add.1{END}:lm/b/(c/add.1{END}:d/add.1{END}))", "lm"),
        (f"{JAX}(gradients/lm/add.1{END}:clip.2{END})", "gradients/lm, clip"),
        (f"{JAX}gradients/(a/b/add.1{END}:c/add.1{END})", "gradients/a, gradients/c"),
        (f"(a/b/add.1{END}:a/c/add.1{END})", "a"),
        ("", "?"),
        ("jit(step)", "?"),
    ],
)
def test_the_path_of_a_name(op_name, path):
    assert origin([op_name]) == path


def test_tensors_without_a_name_are_told():
    name = f"{JAX}lm/norm/add.1{END}"
    assert origin([name], num_tensors=2) == "lm/norm and others"
    merged = f"{JAX}lm/(norm/add.1{END}:q/dot.2{END})"
    assert origin([merged], num_tensors=2) == "lm"
    assert origin([], num_tensors=2) == "?"
