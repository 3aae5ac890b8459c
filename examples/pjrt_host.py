"""Trains by an exported training step, with numpy and jax only: neither meshtf nor TensorFlow.

python -m meshtf export --stablehlo=step      # writes the folder `step`
python -m examples.pjrt_host step 20          # 20 steps; each replica is a CPU device
"""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
from jax.export import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def batches(inputs, steps):
    """Yields the arguments of each step: random windows of the text of a Python file."""
    text = np.frombuffer(Path(json.decoder.__file__).read_bytes(), np.uint8)
    shapes = {x["name"]: [size for _, size in x["shape"]] for x in inputs}
    batch_size, length = shapes["batch_tokens"]
    for step in range(steps):
        rng = np.random.default_rng(step)
        starts = rng.integers(0, len(text) - length, (batch_size, 1))
        windows = text[starts + np.arange(length + 1)]
        tokens, targets = windows[:, :-1], windows[:, 1:]
        yield {"batch_tokens": tokens, "batch_targets": targets, "step": step}


class Host:
    """Runs an exported step, which is a StableHLO module, with one device for each replica."""

    def __init__(self, folder):
        self.manifest = json.loads(Path(folder, "manifest.json").read_text())
        axes, replicas = self.manifest["axes"], self.manifest["replicas"]
        jax.config.update("jax_num_cpu_devices", replicas)  # before jax starts
        devices = np.array(jax.devices()[:replicas])
        self.mesh = Mesh(devices.reshape(tuple(axes.values())), tuple(axes))
        # Of each input: `shape`, pairs (dimension, size); `sharding`, the dimension that each
        # mesh axis shards; and `output`, the index of its new value, if the step updates it.
        self.inputs = self.manifest["inputs"]
        updated_inputs = [x for x in self.inputs if "output" in x]
        self.updated_inputs = sorted(updated_inputs, key=lambda x: x["output"])
        outputs = self.manifest["results"] + self.updated_inputs
        body = jax.shard_map(
            self.load(Path(folder, "module.mlirbc"), outputs).call,
            mesh=self.mesh,
            in_specs=tuple(self.sharding(x).spec for x in self.inputs),
            out_specs=tuple(self.sharding(y).spec for y in outputs),
            check_vma=False,
        )

        def program(variables, arguments):
            arrays = variables | arguments
            return body(*(arrays[x["name"]] for x in self.inputs))

        self.program = jax.jit(program, donate_argnums=0)

    def load(self, path, outputs):
        """Returns the StableHLO module of a file as jax's `Exported`, which has `call`."""
        # `Exported` also needs the shapes and dtypes of inputs and outputs. So this exports a
        # dummy function that has them, and replaces its StableHLO module.
        shards = [self.shard(x) for x in self.inputs]
        zeros = [np.zeros(y.shape, y.dtype) for y in map(self.shard, outputs)]
        exported = export(jax.jit(lambda *_: tuple(zeros), keep_unused=True))(*shards)
        return dataclasses.replace(exported, mlir_module_serialized=path.read_bytes())

    def sharding(self, tensor):
        """Returns the sharding of an input or a result."""
        axis_of = dict(zip(tensor["sharding"], self.manifest["axes"]))
        axes = (axis_of.get(name) for name, _ in tensor["shape"])
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def shard(self, tensor):
        """Returns the sizes and the dtype of one shard of an input or a result."""
        sizes = self.sharding(tensor).shard_shape(tuple(n for _, n in tensor["shape"]))
        return jax.ShapeDtypeStruct(sizes, tensor["dtype"])

    def put(self, values, kinds):
        """Returns inputs of `kinds` on the devices by name, given global arrays by name."""
        inputs = [x for x in self.inputs if x["kind"] in kinds]
        arrays = [np.asarray(values[x["name"]], x["dtype"]) for x in inputs]
        shardings = [self.sharding(x) for x in inputs]
        return dict(zip((x["name"] for x in inputs), jax.device_put(arrays, shardings)))


def main(folder, steps="10"):
    """Trains on the text of a Python file of the standard library, and prints losses."""
    host = Host(folder)
    variables = host.put(np.load(Path(folder, "values.npz")), ("parameter", "state"))
    for step, arguments in enumerate(batches(host.inputs, int(steps))):
        outputs = host.program(variables, host.put(arguments, ("argument",)))
        variables |= {x["name"]: outputs[x["output"]] for x in host.updated_inputs}
        # The first output is the loss.
        print(f"step {step + 1:3}  loss {outputs[0]:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
