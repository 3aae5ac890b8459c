"""`benchmarks.ops.matmuls` times what `ops/linear/matmul_kernels.py` changes, and one
product that it
does not.
"""

import pytest

from benchmarks.ops.matmuls import Form, _program, forms, speeds
from meshtf.graph import MatmulKernels
from meshtf.runtime.tf_internals.onednn_names import ONEDNN_MATMULS, onednn_matmul


class Place:
    matmul_kernels = MatmulKernels(1, onednn_matmul)


@pytest.mark.parametrize("form", forms(256), ids=str)
def test_all_but_the_first_are_computed_in_another_way(form):
    program = _program(form, Place).get_concrete_function(*form.inputs())
    kinds = [op.type for op in program.graph.get_operations()]
    assert any(kind in ("Pad", *ONEDNN_MATMULS) for kind in kinds) is (
        "1,040" not in form.title
    )
    assert sum(kind in ("MatMul", *ONEDNN_MATMULS) for kind in kinds) == 8


def test_both_ways_are_timed():
    assert all(speed > 0 for speed in speeds(Form("small", 16, 16, 16), 1))
