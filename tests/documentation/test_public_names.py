"""The public names of meshtf: a promise, so that a change of it is a change here."""

from __future__ import annotations

import inspect
import re

import pytest

import meshtf as mtf
from meshtf.names.public_path import MATH_FUNCTIONS
from tests.documentation import former_names

pytestmark = pytest.mark.every_case


def test_public_names_are_those_of_the_list():
    assert dir(mtf) == sorted(set(mtf.__all__))
    assert len(mtf.__all__) == len(set(mtf.__all__))
    for name in mtf.__all__:
        getattr(mtf, name)


def test_the_list_of_public_names():
    listed = (former_names.ROOT / "tests" / "data" / "public_names.txt").read_text()
    assert dir(mtf) == listed.split()


MODULES = [getattr(mtf, name) for name in mtf.__all__]
MODULES = [module for module in MODULES if inspect.ismodule(module)]


@pytest.mark.parametrize(
    "module", [*MODULES, mtf.layers.initializers], ids=lambda module: module.__name__
)
def test_dir_lists_public_names_alone(module):
    names = dir(module)
    assert names == sorted(getattr(module, "__all__", names))
    assert not any(name.startswith("_") for name in names)
    assert not {"Any", "TYPE_CHECKING", "unknown_name", "annotations"} & set(names)


def test_errors_know_the_functions_of_math():
    assert set(mtf.math.__all__) == MATH_FUNCTIONS


def test_the_table_of_mesh_tensorflow_names_is_that_of_the_page():
    page = former_names.PAGE.read_text(encoding="utf-8")
    assert former_names.FILE.read_text(encoding="utf-8") == former_names.file_text(page)


@pytest.mark.parametrize(
    "package, name, way_out",
    [
        (mtf, "get_variable", "mtf.Variable(mesh, shape"),
        (mtf, "import_tf_tensor", "mtf.asarray("),
        (mtf, "Lowering", "mtf.function"),
        (mtf, "optimize", "mtf.optimizers"),
        (mtf.layers, "dense", "mtf.layers.Dense("),
        (mtf, "erf", "it is `meshtf.math.erf`"),
        (mtf, "Op", "it is `meshtf.graph.Op`"),
        (mtf, "reduce_men", "Did you mean reduce_mean"),
        (mtf, "from_numpy", "'meshtf' has no 'from_numpy': write mtf.asarray(mesh,"),
        (
            mtf.layers,
            "Linear",
            "'meshtf.layers' has no 'Linear': write mtf.layers.Dense(",
        ),
        (
            mtf.optimizers,
            "AdafactorOptimizer",
            "Mesh-TensorFlow's optimize.AdafactorOptimizer is here: `mtf.optimizers.Ada",
        ),
        (mtf.optimizers, "AdamV", "Did you mean Adam"),
        (mtf.decoding, "greedy_decode", "mtf.decoding.sample(step, prompt"),
        (mtf, "latest_checkpoint", "write mtf.checkpoints.latest(folder)"),
        (mtf.checkpoints, "latest_checkpoint", "write mtf.checkpoints.latest(folder)"),
        (mtf, "take", 'write mtf.gather(table, ids, "vocab")'),
        (mtf, "accuracy", "write mtf.reduce_mean(mtf.equal("),
        (mtf, "zzzzzz", "'meshtf' has no 'zzzzzz'"),
    ],
)
def test_an_unknown_name_says_what_takes_its_place(package, name, way_out):
    with pytest.raises(AttributeError, match=re.escape(way_out)):
        getattr(package, name)
