"""What a type checker says about calls of users: right ones pass, wrong ones are seen."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.documentation.test_house import ROOT

# "# error: CODE" marks the lines that mypy must report, with the code; it reports no others.
SNIPPETS = """
from typing import Any

import numpy as np

import meshtf as mtf

mesh = mtf.Mesh("data:2", "batch:data")
x = mtf.ones(mesh, "batch:4;d:2")
w = mtf.Variable(mesh, "d:2", "ones", "w")
array = np.ones((4, 2), "float32")

# Operators
y: mtf.Tensor = x + 1
y = 2.0 * x
y = x * w
y = w + 1
y = -w
y = x < 3
y = x == y
text: str = x + 1  # error: assignment
x + "1"  # error: operator
x + [1]  # error: operator
x @ y  # error: operator
x.T  # error: attr-defined

# Indices and methods
y = x["batch", 0]
y = w["d", 0:1]
y = x[{"batch": 0, "d": x.astype("int32")}]
y = x.sum("d").mean().max().min(["batch"])
x[0]  # error: index
x[:, 0]  # error: index
x["batch"]  # error: index
x.sum(1)  # error: arg-type
size: int = len(x) + x.ndim
y = w.value
w.assign_add(1.0)


# Functions
@mtf.function
def double(x: mtf.Tensor, times: int = 2) -> mtf.Tensor:
    return x * times


@mtf.function(mesh=mesh)
def pair(x: mtf.Tensor) -> tuple[mtf.Tensor, mtf.Tensor]:
    return x, x


@mtf.function(x="batch;d")
def named(x: mtf.Tensor) -> mtf.Tensor:
    return x


y = double(x)
y = double(x, times=3)
double(x, times="3")  # error: arg-type
double()  # error: call-arg
number: int = double(x)  # error: assignment
first, second = pair(x)
y = first + second
pair(x) + 1  # error: operator
y = named(array)
number = named(array)  # error: assignment
y = mtf.function(lambda x: x + 1, mesh=mesh, x="batch;d")(array)
mtf.function(mesh="data:2")(double)  # error: call-overload
forecast: mtf.Forecast = mtf.explain(double, x)
y = mtf.recompute(named)(x)


class Model(mtf.Module):
    @mtf.function
    def predict(self, x: mtf.Tensor) -> mtf.Tensor:
        return x


y = Model().predict(x)
number = Model().predict(x)  # error: assignment

# Own ops
y = mtf.slicewise(lambda t: t, [x], shardable="batch")
outputs: list[mtf.Tensor] = mtf.slicewise(lambda t: (t, t), [x], ["batch:4", "d:2"])
mtf.slicewise(lambda t: t, x)  # error: call-overload
y = mtf.slicewise(lambda t: (t, t), [x], ["batch:4", "d:2"])  # error: assignment
"""


@pytest.mark.slow
def test_types_of_calls(tmp_path):
    path = tmp_path / "snippets.py"
    path.write_text(SNIPPETS)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--follow-imports"]
    command += ["silent", "--cache-dir", str(ROOT / ".mypy_cache"), str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.stderr, run.stderr
    errors = re.findall(r"snippets\.py:(\d+): error: .*\[([\w-]+)\]", run.stdout)
    lines = SNIPPETS.split("\n")
    expected = [
        (str(i + 1), line.partition("# error: ")[2])
        for i, line in enumerate(lines)
        if "# error: " in line
    ]
    assert errors == expected, run.stdout
