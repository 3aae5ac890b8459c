"""Training in one process of its own, or in several with one mesh.

training = train_apart(tmp_path, "experts", axes="data:32", layout="batch:data")
training = train_together(tmp_path, "BERT", axes="data:8", layout="batch:data")
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.processes.launched import ROOT, Launched
from tests.transformer.live.training import Training, load

# The devices of the tests' own process are fixed. Without the flag a process has as many as
# its mesh needs.
_ENVIRONMENT = {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}


def _command(path: Path, model: str, settings: dict[str, Any]) -> list[str]:
    text = json.dumps({"devices": "spmd:cpu", **settings})
    return [
        sys.executable,
        "-m",
        "tests.transformer.live.training",
        str(path),
        model,
        text,
    ]


def train_apart(folder: Path, model: str, **settings: Any) -> Training:
    """Returns the results of `train` in a process of its own, with any number of devices."""
    path = folder / "apart.npz"
    subprocess.run(
        _command(path, model, settings), env=os.environ | _ENVIRONMENT, check=True
    )
    return load(path)


def train_together(
    folder: Path, model: str, workers: int = 2, **settings: Any
) -> Training:
    """Returns the results of `train` in several processes, which share the devices equally."""
    path = folder / "together.npz"
    command = _command(path, model, settings)
    with Launched(
        command, "--spmd", f"--workers={workers}", env=_ENVIRONMENT
    ) as launched:
        assert launched.wait() == 0, launched.text
    return load(path)
