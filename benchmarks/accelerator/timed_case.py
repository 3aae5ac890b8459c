"""Times one training step of a folder in this process, beside plain JAX: see `run.py`.

    python FOLDER/timed_case.py gpt2 FOLDER/gpt2.row --rounds=5 --steps=5

meshtf's step and that of `jax_peer.py` start with equal weights and take rounds of steps in turn,
all on one batch of random tokens. The row is written after each part. Nothing but jax and numpy is
imported. A step's time is the mean of a round, after which the program waits for the device, and of
all rounds the median.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import jax_peer
import numpy as np

FOLDER = Path(__file__).resolve().parent
# FLOP/s of dense products of bfloat16, by data sheet; the first name in the device's kind counts.
PEAKS = {"H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
_WARM_UP = 3  # steps before any is timed

Row = dict[str, Any]
# (state, batch, index of the step) -> (next state, loss)
Step = Callable[[Any, dict[str, Any], Any], tuple[Any, Any]]


class TimedStep:
    """A compiled training step with its state on the device.

    Args:
      step: the step, whose state may be overwritten.
      state: the first state.
      batch: the batch of all steps.

    Attributes:
      losses: the loss of each step, scalars on the device.
      compile_seconds: the time of tracing and compiling.
      planned_peak: the bytes at the peak of a step, by XLA's plan of its buffers.
    """

    def __init__(self, step: Step, state: Any, batch: dict[str, Any]) -> None:
        self._state = state
        self._batch = batch
        self.losses: list[Any] = []
        start = time.perf_counter()
        jitted = jax.jit(step, donate_argnums=0)
        self._compiled = jitted.lower(state, batch, jnp.int32(0)).compile()
        self.compile_seconds = time.perf_counter() - start
        self.planned_peak = _planned_peak(self._compiled)

    def run(self, count: int) -> float:
        """Takes so many steps, and returns the mean seconds of one."""
        start = time.perf_counter()
        for _ in range(count):
            index = np.int32(len(self.losses))
            self._state, loss = self._compiled(self._state, self._batch, index)
            self.losses.append(loss)
        jax.block_until_ready((self._state, self.losses[-1]))
        return (time.perf_counter() - start) / count

    def first_and_last_loss(self) -> list[float]:
        """Returns the losses of the first and the last step."""
        return [float(self.losses[0]), float(self.losses[-1])]


def _planned_peak(compiled: Any) -> int:
    """Returns the bytes of the device at the peak of a call, by XLA's plan of its buffers."""
    memory = compiled.memory_analysis()
    # XLA's peak of a CPU leaves temporary buffers out.
    if jax.default_backend() != "cpu" and hasattr(memory, "peak_memory_in_bytes"):
        return int(memory.peak_memory_in_bytes)
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes)


def module_step(case: Row, module: bytes) -> Step:
    """Returns the training step of a module. Its state is the list of all variables.

    Args:
      case: the description of the case.
      module: the module, StableHLO's portable bytecode.
    """
    call = _exported(case, module).call

    def step(state: Any, batch: dict[str, Any], index: Any) -> tuple[Any, Any]:
        variables = iter(state)
        inputs = []
        for port in case["inputs"]:
            if port["kind"] != "argument":
                inputs.append(next(variables))
            elif port["name"] == "step":
                inputs.append(index)
            else:
                inputs.append(batch[_feature(port)])
        outputs = call(*inputs)
        # A variable without an output has not changed.
        next_state = [
            variable if port["output"] is None else outputs[port["output"]]
            for variable, port in zip(state, _variables(case), strict=True)
        ]
        return next_state, outputs[0]

    return step


def _exported(case: Row, module: bytes) -> jax.export.Exported:
    """Returns a module as jax's description of an exported function.

    `jax.export` describes a function of the same signature, whose module is replaced.
    """
    written = [port for port in case["inputs"] if port["output"] is not None]
    outputs = [*case["results"], *sorted(written, key=lambda port: port["output"])]

    def template(*_inputs: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(port["sizes"], port["dtype"]) for port in outputs)

    inputs = [
        jax.ShapeDtypeStruct(port["sizes"], port["dtype"]) for port in case["inputs"]
    ]
    # By default jax leaves unused arguments out.
    exported = jax.export.export(jax.jit(template, keep_unused=True))(*inputs)
    return dataclasses.replace(exported, mlir_module_serialized=module)


def _variables(case: Row) -> list[Row]:
    """Returns the inputs that are variables: parameters, and the optimizer's state."""
    return [port for port in case["inputs"] if port["kind"] != "argument"]


def _feature(port: Row) -> str:
    """Returns the name of the feature of a batch that an argument is."""
    return str(port["name"]).removeprefix("batch_")


def initial_values(case: Row) -> list[Any]:
    """Returns the initial values of all variables, the same ones at each call: uniform numbers,
    those of scales around 1, and zeros for the state of the optimizer.

    To be jitted, so that the device computes them.
    """
    # XLA compiles generators of this kind in a moment.
    root = jax.random.key(0, impl="rbg")
    keys = jax.random.split(root, len(_variables(case)))
    limit = math.sqrt(3.0) * case["stddev"]
    values = []
    for key, port in zip(keys, _variables(case), strict=True):
        sizes, dtype = port["sizes"], port["dtype"]
        if port["kind"] != "parameter":
            values.append(jnp.zeros(sizes, dtype))
            continue
        noise = jax.random.uniform(key, sizes, dtype, -limit, limit)
        is_scale = port["name"].endswith("scale")
        values.append(noise + 1.0 if is_scale else noise)
    return values


def random_batch(case: Row) -> dict[str, jax.Array]:
    """Returns the batch of a case by feature: random integers, and weights of 1."""
    rng = np.random.default_rng(0)
    batch = {}
    for port in case["inputs"]:
        if port["kind"] != "argument" or port["name"] == "step":
            continue
        name = _feature(port)
        if port["dtype"].startswith("float"):
            batch[name] = jnp.ones(port["sizes"], port["dtype"])
        else:
            low, high = case["limits"][name]
            values = rng.integers(low, high, port["sizes"])
            batch[name] = jnp.asarray(values, port["dtype"])
    return batch


def peer_step(case: Row, values: Sequence[jax.Array]) -> TimedStep:
    """Returns the step of the same model in plain JAX, with the same weights.

    Args:
      case: the description of the case.
      values: the initial values of meshtf's variables.

    Raises:
      ValueError: the models do not have the same weights.
    """
    config = SimpleNamespace(**case["config"])
    parameters = {}
    for port, value in zip(_variables(case), values, strict=True):
        if port["kind"] == "parameter":
            parameters[jax_peer.short_name(port["name"])] = value
    sizes = {name: value.shape for name, value in parameters.items()}
    expected_sizes = jax_peer.shapes(config)
    if sizes != expected_sizes:
        differing = sorted(dict(sizes.items() ^ expected_sizes.items()))
        raise ValueError(f"the weights of plain JAX differ: {', '.join(differing)}")
    count = sum(math.prod(shape) for shape in expected_sizes.values())
    if count != case["parameters"]:
        raise ValueError(f"{count} parameters, and not {case['parameters']}")
    optimizer = SimpleNamespace(**case["optimizer"])
    optimizer.decayed = {jax_peer.short_name(name) for name in optimizer.decayed}
    state = {
        "weights": parameters,
        "m": jax.tree.map(jnp.zeros_like, parameters),
        "v": jax.tree.map(jnp.zeros_like, parameters),
    }
    step = functools.partial(jax_peer.train_step, config, optimizer)
    return TimedStep(step, state, random_batch(case))


def measure(
    case: Row, options: argparse.Namespace, save: Callable[[Row], None]
) -> None:
    """Times a case, and saves its row after each part.

    Args:
      case: the description of the case.
      options: the flags.
      save: is called with the row.
    """
    device = jax.devices()[0]
    row: Row = {
        **{name: case[name] for name in ("name", "batch", "parameters", "model_flops")},
        "device": device.device_kind,
        "jax": jax.__version__,
        "forecast_peak": case["forecast_peak"],
        "forecast_ms": _forecast_ms(case, device.device_kind),
    }
    module = (FOLDER / f"{case['name']}.mlirbc").read_bytes()
    make_values = jax.jit(functools.partial(initial_values, case))
    step = TimedStep(module_step(case, module), make_values(), random_batch(case))
    row["compile_seconds"] = step.compile_seconds
    row["planned_peak"] = step.planned_peak
    step.run(_WARM_UP)
    # One round, in case that plain JAX ends the process; and the peak before it takes memory.
    _set_time(row, [step.run(options.steps)])
    row["peak"] = (device.memory_stats() or {}).get("peak_bytes_in_use")
    row["losses"] = step.first_and_last_loss()
    row["peer_note"] = case["without_peer"]
    save(row)
    if not case["without_peer"]:
        try:
            _measure_peer(peer_step(case, make_values()), options, row, step)
        except Exception as error:  # whatever fails, meshtf's step is measured
            row["peer_note"] = f"{type(error).__name__}: {error}"
    if row["peer_note"]:
        _set_time(row, [step.run(options.steps) for _ in range(options.rounds)])
    row["losses"] = step.first_and_last_loss()
    save(row)


def _measure_peer(
    peer: TimedStep, options: argparse.Namespace, row: Row, step: TimedStep
) -> None:
    """Sets what a row has of plain JAX, and the time of meshtf's step beside it."""
    row["peer_compile_seconds"] = peer.compile_seconds
    row["peer_planned_peak"] = peer.planned_peak
    # As many steps as the other has taken, so that the last losses are of one step.
    peer.run(len(step.losses))
    times, peer_times = [], []
    for _ in range(options.rounds):
        times.append(step.run(options.steps))
        peer_times.append(peer.run(options.steps))
    _set_time(row, times)
    row["peer_ms"] = statistics.median(peer_times) * 1e3
    row["ratio"] = row["ms"] / row["peer_ms"]
    row["peer_losses"] = peer.first_and_last_loss()


def _set_time(row: Row, times: Sequence[float]) -> None:
    """Sets the time of a step in a row, and the FLOP/s.

    Args:
      row: the row.
      times: the seconds of a step in each round.
    """
    seconds = statistics.median(times)
    row["ms"] = seconds * 1e3
    row["tflops"] = row["model_flops"] / seconds / 1e12
    peaks = [peak for name, peak in PEAKS.items() if name in row["device"]]
    row["share"] = row["tflops"] * 1e12 / peaks[0] if peaks else None


def _forecast_ms(case: Row, kind: str) -> float | None:
    """Returns the forecast of a step on this kind of device, in milliseconds."""
    for name, forecast in case["forecast"].items():
        if name in kind.lower():
            return float(forecast["seconds"]) * 1e3
    return None


def main() -> int:
    """Parses the flags, times the case, and returns 1 if it has an error, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("case", help="its name")
    parser.add_argument("row", help="the file that is written")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    case = json.loads((FOLDER / f"{options.case}.json").read_text())
    path = Path(options.row)
    try:
        measure(case, options, lambda row: _save(path, row))
    except Exception as error:  # run.py prints it, and runs the other cases
        traceback.print_exc()
        print(f"\nerror: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _save(path: Path, row: Row) -> None:
    """Writes a row as JSON."""
    path.write_text(json.dumps(row))


if __name__ == "__main__":
    sys.exit(main())
