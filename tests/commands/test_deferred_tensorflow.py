"""Commands that only plan import no TensorFlow.

If one does after a change, a module reads an attribute of TensorFlow while it is imported, or
recording does: `-X importtime` says in which module.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from meshtf import deferred_tensorflow
from tests.commands.test_help import ROOT, run

# A module that TensorFlow imports with itself.
LOADED = "tensorflow.core"
SMALL = [
    "--gin_file=lm_stdlib.gin",
    "--gin_param=Architecture.blocks = 2",
    "--hardware=cpu",
    "--devices=4",
]


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "--gin_file=lm_stdlib.gin", "--gin_file=layouts/fsdp.gin"],
        ["explain", "--gin_file=moe.gin", "--hardware=h100"],
        ["explain", "--gin_file=models/bert_base.gin"],
        ["explain", "--gin_file=pipeline.gin"],
        ["explain", "--gin_file=t5_stdlib.gin"],
        ["search", *SMALL, "--stages=1,2", "--why_not=batch:data"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_plans_need_no_tensorflow(words):
    code, out, err, imports = run("meshtf", *words)
    # A search that takes a while says how far it is.
    messages = [line for line in err.splitlines() if "plans" not in line]
    assert code == 0 and out and not messages
    assert "numpy" in imports
    packages = {name.partition(".")[0] for name in imports}
    assert not {"tensorflow", "keras", "jax", "sklearn", "h5py", "scipy"} & packages


def test_layouts_that_are_measured_run_on_tensorflow():
    measured = ["--measure=2", "--mesh_devices=logical:4"]
    code, out, err, imports = run("meshtf", "search", *SMALL, *measured)
    assert code == 0 and "measured" in out, err
    assert LOADED in imports
    # A package that Python refuses to import is listed, but none of its modules.
    optional = ("keras.", "jax.", "sklearn.", "h5py.", "scipy._")
    assert not [name for name in imports if name.startswith(optional)]


# Defers the import as `meshtf/__init__.py` does for a command: before any other import.
DEFER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "meshtf.deferred_tensorflow", "meshtf/deferred_tensorflow.py"
)
deferred = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = deferred
spec.loader.exec_module(deferred)
print(deferred.is_deferred())
deferred.defer()
"""


def python(code):
    """Returns what a program prints after the import was deferred."""
    done = subprocess.run(
        [sys.executable, "-c", DEFER + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


def test_the_first_attribute_imports_it():
    printed = python("""
import tensorflow as tf
import tensorflow
print(deferred.is_deferred(), "tensorflow.core" in sys.modules)
print(int(tf.constant(3) + 4), "tensorflow.core" in sys.modules, tf is tensorflow)
import tensorflow.core.framework.types_pb2
import tensorflow
print(tf.Tensor is tensorflow.Tensor)
""")
    assert printed == ["False", "True", "False", "7", "True", "True", "True"]


def test_an_imported_tensorflow_stays():
    tensorflow = sys.modules["tensorflow"]
    deferred_tensorflow.defer()
    assert sys.modules["tensorflow"] is tensorflow
    assert not deferred_tensorflow.is_deferred()


def test_programs_that_fall_back_to_tensorflow_work_as_before():
    printed = python("""
import meshtf as mtf
print("tensorflow.core" in sys.modules)
mesh = mtf.Mesh("data:2", "batch:data", devices="logical:2")
import tensorflow as tf
class Around(tf.Module):
    pass
class Net(mtf.Module):
    def __init__(self):
        super().__init__()
        self.around = Around()
        self.around.scale = mtf.Variable(mesh, "", "ones", "scale")
        last = mtf.layers.Dense(mesh, "h:2", "o:2")
        self.parts = [mtf.layers.Dense(mesh, "d:2", "h:2"), {"b": last}]
    def __call__(self, x):
        return self.parts[1]["b"](self.parts[0](x))
net = Net()
y = mtf.function(lambda x: net(x), x="batch;d")([[1.0, 2.0], [3.0, 4.0]])
print(y.numpy().shape == (2, 2), len(net.variables), net.variables[0].name)
""")
    assert printed == ["False", "False", "True", "5", "net/scale"]
