"""Trains by an exported step, with numpy and jax only: neither meshtf nor TensorFlow.

python -m meshtf export --stablehlo=step
python -m examples.pjrt_host step 20          # 20 steps; each replica is a CPU device
"""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
from jax.export import default_export_platform, export
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def batches(inputs, steps):
    """Yields the arguments of each step: random windows of the source of a module."""
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
    """Runs the module in the folder of an exported step, one device for each replica."""

    def __init__(self, folder):
        self.manifest = json.loads(Path(folder, "manifest.json").read_text())
        axes, replicas = self.manifest["axes"], self.manifest["replicas"]
        jax.config.update("jax_num_cpu_devices", replicas)  # before jax starts
        devices = np.array(jax.devices()[:replicas])
        self.mesh = Mesh(devices.reshape(tuple(axes.values())), tuple(axes))
        self.inputs = self.manifest["inputs"]
        written = [x for x in self.inputs if "output" in x]
        self.written = sorted(written, key=lambda x: x["output"])
        outputs = self.manifest["results"] + self.written
        module = Path(folder, "module.mlirbc").read_bytes()
        body = jax.shard_map(
            self.exported(module, outputs).call,
            mesh=self.mesh,
            in_specs=tuple(map(self.spec, self.inputs)),
            out_specs=tuple(map(self.spec, outputs)),
            check_vma=False,
        )

        def program(variables, arguments):
            arrays = {**variables, **arguments}
            return body(*(arrays[x["name"]] for x in self.inputs))

        self.program = jax.jit(program, donate_argnums=0)

    def exported(self, module, outputs):
        """Returns jax's description of the module, made from a function like it."""
        shapes = [jax.ShapeDtypeStruct(self.local(x), x["dtype"]) for x in self.inputs]
        zeros = [np.zeros(self.local(y), y["dtype"]) for y in outputs]
        template = jax.jit(lambda *_: tuple(zeros), keep_unused=True)
        exported = export(template, platforms=[default_export_platform()])(*shapes)
        return dataclasses.replace(exported, mlir_module_serialized=module)

    def spec(self, port):
        """Returns the axes along which each dimension of an input or result is sharded."""
        axis_of = dict(zip(port["sharding"], self.manifest["axes"]))
        return PartitionSpec(*(axis_of.get(name) for name, _ in port["shape"]))

    def local(self, port):
        """Returns the sizes of one shard."""
        sizes = tuple(size for _, size in port["shape"])
        return NamedSharding(self.mesh, self.spec(port)).shard_shape(sizes)

    def put(self, values, kinds):
        """Returns the inputs of some kinds on the devices by name, given global arrays."""
        arrays = {}
        for x in self.inputs:
            if x["kind"] in kinds:
                value = np.asarray(values[x["name"]], x["dtype"])
                sharding = NamedSharding(self.mesh, self.spec(x))
                arrays[x["name"]] = jax.device_put(value, sharding)
        return arrays


def main(folder, steps="10"):
    """Trains on the source of a module of the standard library, and prints losses."""
    host = Host(folder)
    variables = host.put(np.load(Path(folder, "values.npz")), ("parameter", "state"))
    for step, arguments in enumerate(batches(host.inputs, int(steps))):
        outputs = host.program(variables, host.put(arguments, ("argument",)))
        for port in host.written:
            variables[port["name"]] = outputs[port["output"]]
        print(f"step {step + 1:3}  loss {outputs[0]:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
