"""Trains by an exported step, with numpy and jaxlib only: neither meshtf nor TensorFlow.

python -m meshtf export --stablehlo=step
python -m examples.pjrt_host step 20          # 20 steps; each replica is a CPU device
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from jaxlib import _jax, xla_client


def shard(array, port, axes):
    """Returns the shards of a global array, one per replica, the last mesh axis fastest.
    `port["sharding"]` has, for each axis, the dimension that is sharded along it, or None.
    """
    shards = [np.asarray(array, port["dtype"])]
    names = [name for name, _ in port["shape"]]
    for size, dim in zip(axes.values(), port["sharding"]):
        if dim is None:
            shards = [x for x in shards for _ in range(size)]  # replicated
        else:
            shards = [s for x in shards for s in np.split(x, size, names.index(dim))]
    return [x.copy() for x in shards]  # a replica may overwrite its shard


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
    """Runs the module in the folder of an exported step on CPU devices."""

    def __init__(self, folder):
        self.manifest = json.loads(Path(folder, "manifest.json").read_text())
        options = xla_client.CompileOptions()
        options.num_replicas = self.manifest["replicas"]
        client = xla_client.make_cpu_client(num_devices=options.num_replicas)
        self.devices = client.devices()
        device_list = xla_client.DeviceList(tuple(self.devices))
        module = Path(folder, "module.mlirbc").read_bytes()
        self.program = client.compile_and_load(module, device_list, options)
        manual = xla_client.HloSharding.manual()  # arrays of devices may differ
        self.sharding = xla_client.GSPMDSharding(device_list, manual)
        self.avals = {}  # abstract values of inputs: the shape and dtype of a shard

    def put(self, name, shards):
        """Returns shards, one on each device, as an input of the program."""
        arguments = self.avals[name], self.sharding, shards, self.devices
        return _jax.batched_device_put(*arguments, enable_x64=True)

    def put_inputs(self, values, kinds):
        """Returns the inputs of some kinds on the devices by name, given global arrays."""
        inputs = {}
        for port in self.manifest["inputs"]:
            if port["kind"] in kinds:
                name = port["name"]
                shards = shard(values[name], port, self.manifest["axes"])
                x = shards[0]
                aval = SimpleNamespace(shape=x.shape, dtype=x.dtype, weak_type=False)
                self.avals[name] = aval
                inputs[name] = self.put(name, shards)
        return inputs

    def run(self, inputs):
        """Runs the program and returns its outputs: [outputs][replicas]."""
        arrays = [inputs[port["name"]] for port in self.manifest["inputs"]]
        outputs = self.program.execute_sharded(arrays)
        return outputs.disassemble_into_single_device_arrays()


def main(folder, steps="10"):
    """Trains on the source of a module of the standard library, and prints losses."""
    host = Host(folder)
    ports = host.manifest["inputs"]
    written = {port["name"]: port["output"] for port in ports if "output" in port}
    initial_values = np.load(Path(folder, "values.npz"))
    variables = host.put_inputs(initial_values, ("parameter", "state"))
    for step, arguments in enumerate(batches(ports, int(steps))):
        outputs = host.run(variables | host.put_inputs(arguments, ("argument",)))
        for name, index in written.items():
            variables[name] = host.put(name, outputs[index])
        loss, is_copy = outputs[0][0]._single_device_array_to_np_array_did_copy()
        print(f"step {step + 1:3}  loss {loss:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
