"""A host of its own for an exported step: it trains, with neither meshtf nor
TensorFlow.

Usage:

    python -m meshtf export --stablehlo=step
    python -m examples.pjrt_host step 20          # twenty steps, on as many CPU devices as replicas
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from jaxlib import _jax, xla_client


def cut(whole, port, axes):
    """Returns the slices of all replicas in order: the last axis of the mesh runs
    fastest.
    """
    slices = [np.asarray(whole, port["dtype"])]
    names = [name for name, _ in port["shape"]]
    for parts, dim in zip(axes.values(), port["sharding"]):
        slices = [
            piece
            for x in slices
            for piece in (np.split(x, parts, names.index(dim)) if dim else [x] * parts)
        ]
    return [x.copy() for x in slices]  # each replica may overwrite its own


def batches(inputs, steps):
    """Yields the arguments of each step: windows of a text of the standard library."""
    text = np.frombuffer(Path(json.decoder.__file__).read_bytes(), np.uint8)
    batch, length = next(
        [n for _, n in x["shape"]] for x in inputs if x["name"] == "batch_tokens"
    )
    for step in range(steps):
        first = np.random.default_rng(step).integers(0, len(text) - length, (batch, 1))
        rows = text[first + np.arange(length + 1)]
        tokens = rows[:, :-1]
        targets = rows[:, 1:]
        yield {"batch_tokens": tokens, "batch_targets": targets, "step": step}


def main(folder, steps="10"):
    """Trains on the text of a module of the standard library, and prints losses."""
    manifest = json.loads(Path(folder, "manifest.json").read_text())
    options = xla_client.CompileOptions()
    inputs = manifest["inputs"]
    options.num_replicas = manifest["replicas"]
    devices = xla_client.make_cpu_client(num_devices=options.num_replicas).devices()
    place = xla_client.DeviceList(tuple(devices))
    module = Path(folder, "module.mlirbc").read_bytes()
    program = devices[0].client.compile_and_load(module, place, options)
    each = xla_client.GSPMDSharding(place, xla_client.HloSharding.manual())

    like = {}  # name -> shape and type of a slice

    def put(name, slices):  # one on each device: an input of the program
        if name not in like:
            like[name] = SimpleNamespace(
                shape=slices[0].shape, dtype=slices[0].dtype, weak_type=False
            )
        return _jax.batched_device_put(
            like[name], each, slices, devices, enable_x64=True
        )

    def put_all(values, *kinds):
        return {
            name: put(name, cut(values[name], port, manifest["axes"]))
            for port in inputs
            if port["kind"] in kinds
            for name in [port["name"]]
        }

    held = put_all(np.load(Path(folder, "values.npz")), "parameter", "state")
    for step, given in enumerate(batches(inputs, int(steps))):
        call = put_all(given, "argument")
        ran = program.execute_sharded([(held | call)[port["name"]] for port in inputs])
        out = ran.disassemble_into_single_device_arrays()  # [outputs][replicas]
        held.update(
            {
                x["name"]: put(x["name"], out[x["output"]])
                for x in inputs
                if "output" in x
            }
        )
        print(
            f"step {step + 1:3}  loss "
            f"{out[0][0]._single_device_array_to_np_array_did_copy()[0]:.4f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
