"""A campaign of faults: processes of a training run are killed or stopped at random.

    python -m tests.faults.campaign --faults=50 --seed=1
    python -m tests.faults.campaign --faults=22 --spmd         # on a live mesh

A run is launched on two workers with restarts. Its driver or one of its workers is
killed with SIGKILL, or stopped with SIGSTOP as if it hung, at random moments: while it
starts, between steps, and while a checkpoint is being written. When the run has ended
in spite of that, its losses and all of its variables must be, bit for bit, those of a
run that nobody disturbed. With --spmd a run is two processes of one live mesh, which save
beside their steps, and one of them is the victim. Then the next run is disturbed, until
there have been as many faults as were asked for.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import app, flags

import meshtf as mtf
from tests.cluster.processes.launched import ROOT, Launched
from transformer.training.reporting import metrics

TIMEOUT = 10.0  # after which a worker that hangs is noticed
_LONGEST_WAIT = 8.0  # between the start of a driver and a fault
_LONGEST_WAIT_SPMD = 20.0  # from the start of the processes on
_HANGS = 0.15  # the share of faults that stop a process, and do not end it
_IN_SAVES = 0.4  # the share that waits until a checkpoint is being written


def define_flags() -> None:
    """Defines the flags of the command; not at import, as absl refuses to define a flag
    twice and other commands define some of these names.
    """
    flags.DEFINE_integer("faults", 50, "How many there are.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Another one, other moments and victims.")
    flags.DEFINE_integer("steps", 120, "Steps of each run.")
    flags.DEFINE_bool("spmd", False, "Whether the runs are processes of a live mesh.")


class Campaign:
    """Undisturbed and disturbed runs, and what became of them.

    Args:
      folder: for the runs.
      steps: of each run.
      seed: of moments and victims.
      spmd: whether runs are processes of a live mesh, without workers.
    """

    def __init__(self, folder: Path, steps: int, seed: int, spmd: bool = False) -> None:
        self.folder = folder
        self.spmd = spmd
        self.steps = steps
        self.random = random.Random(seed)
        self.faults: collections.Counter[str] = collections.Counter()
        self.survived = 0
        self.wrong = []
        self._runs = 0
        shutil.copytree(
            ROOT / "docs", folder / "text"
        )  # which nobody changes meanwhile
        undisturbed = self._start("undisturbed", 0)
        with undisturbed as launched:
            if launched.wait():
                raise RuntimeError(f"the undisturbed run failed:\n{launched.text}")
        self.want = self._result("undisturbed")

    def disturb(self, count: int) -> None:
        """Disturbs one run with up to so many faults, and compares its end."""
        self._runs += 1
        name = f"disturbed_{self._runs}"
        before = self.faults.total()
        with self._start(name, count + 2) as launched:
            for k in range(count):
                started = "process 1 of 2: id" if self.spmd else "serving the driver"
                if not launched.wait_for(started, after=self._seen) or not self._strike(
                    launched, self.folder / name
                ):
                    break
                print(f"{name}, fault {k + 1}: {self._last}", flush=True)
            launched.wait(600.0)
        faults = self.faults.total() - before
        self._seen = 0
        other = (
            self._differences(self._result(name)) if launched.code == 0 else "no result"
        )
        if other:
            self.wrong.append(
                f"{name} ended with code {launched.code}, {other}:\n{launched.text}"
            )
        else:
            self.survived += faults

    _seen = 0
    _last = ""

    def _start(self, name: str, restarts: int) -> Launched:
        settings = {
            "train.steps": self.steps,
            "train.batch_size": 8,
            "train.save_every": 5,
            "train.report_every": 1,
            "train.deterministic": True,
            "ByteText.length": 16,
            "ByteText.corpus": "@data.text_files",
            "Evaluation.num_examples": 8,
            "sample.max_new_tokens": 2,
            "data.text_files.pattern": repr(f"{self.folder}/text/**/*.md"),
            "Architecture.d_model": 16,
            "Architecture.d_ff": 32,
            "Architecture.heads": 2,
            "Architecture.d_kv": 8,
            "Architecture.blocks": 1,
            "Architecture.dropout": 0.1,
        }
        if self.spmd:
            settings |= {"Mesh.devices": "'spmd:cpu'", "train.async_save": True}
        command = [
            sys.executable,
            "-m",
            "transformer.train",
            f"--model_dir={self.folder / name}",
            *(f"--gin_param={key} = {value}" for key, value in settings.items()),
        ]
        return Launched(
            command,
            *(["--spmd"] if self.spmd else []),
            "--workers=2",
            f"--timeout={TIMEOUT}",
            "--wait=120",
            f"--restarts={restarts}",
            env={"XLA_FLAGS": ""},
        )

    def _strike(self, launched: Launched, folder: Path) -> bool:
        """Harms one process at a random moment; returns whether the run was still
        going.
        """
        longest_wait = _LONGEST_WAIT_SPMD if self.spmd else _LONGEST_WAIT
        time.sleep(self.random.uniform(0.0, longest_wait))
        saving = self.random.random() < _IN_SAVES and self._wait_for_save(
            launched, folder
        )
        victims = ["worker 0", "worker 1"]
        if not self.spmd:
            victims.insert(0, "driver")
        victim = self.random.choice(victims)
        stop = self.random.random() < _HANGS
        pid = (
            launched.driver if victim == "driver" else launched.workers[int(victim[-1])]
        )
        if launched.code is not None or launched.wait_for(
            "in total; checkpoint", 0.0, self._seen
        ):
            return False
        self._seen = len(launched.lines)
        try:
            os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)
        except ProcessLookupError:
            return False
        self._last = (
            f"{'SIGSTOP' if stop else 'SIGKILL'} {victim}" + " while saving" * saving
        )
        self.faults[self._last] += 1
        return launched.wait_for(
            r"fault \d+: (going on|all processes start)", 120.0, self._seen
        )

    def _wait_for_save(self, launched: Launched, folder: Path) -> bool:
        """Waits until a checkpoint is being written; returns whether one is."""
        end = time.monotonic() + 10.0
        while launched.code is None and time.monotonic() < end:
            if any(
                ".tmp" in path
                for path in (os.listdir(folder) if folder.exists() else ())
            ):
                return True
            time.sleep(0.0005)
        return False

    def _result(self, name: str) -> dict[str, np.ndarray]:
        """Returns the losses and the variables with which a run ended."""
        folder = self.folder / name
        found = mtf.checkpoints.latest(str(folder))
        assert found is not None and found[0] == self.steps, f"{name}: {found}"
        reader = tf.train.load_checkpoint(f"{found[1]}/variables")
        losses = {
            f"{key} {line['step']}": np.array(line[key])
            for line in metrics.read(str(folder))
            for key in ("loss", "held_out_loss")
            if key in line and line["step"]
        }
        return losses | {
            v: reader.get_tensor(v) for v in reader.get_variable_to_shape_map()
        }

    def _differences(self, result: dict[str, np.ndarray]) -> str:
        """Returns what is not as it was without faults, or ""."""
        return ", ".join(
            f"{key} is another"
            for key, want in self.want.items()
            if key not in result or not np.array_equal(result[key], want)
        )

    def __str__(self) -> str:
        rows = [f"  {count:>4}  {kind}" for kind, count in sorted(self.faults.items())]
        return "\n".join(
            [
                f"{self.faults.total()} faults in {self._runs} runs, {self.survived} "
                "survived bit for bit",
                *rows,
                *self.wrong,
            ]
        )


def run(
    faults: int, steps: int, seed: int, each: int = 10, spmd: bool = False
) -> Campaign:
    """Returns a campaign of so many faults, at most `each` of them in one run."""
    with tempfile.TemporaryDirectory(prefix="meshtf_faults_") as folder:
        campaign = Campaign(Path(folder), steps, seed, spmd)
        while campaign.faults.total() < faults and not campaign.wrong:
            campaign.disturb(min(each, faults - campaign.faults.total()))
        return campaign


def main(argv: Sequence[str]) -> int:
    """Runs a campaign, prints what came of it, and returns the exit code."""
    campaign = run(
        flags.FLAGS.faults, flags.FLAGS.steps, flags.FLAGS.seed, spmd=flags.FLAGS.spmd
    )
    print(campaign, flush=True)
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    define_flags()
    app.run(main)
