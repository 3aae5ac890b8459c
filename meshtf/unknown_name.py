"""The error for a name that a package does not have, with the name to use instead.

    >>> import meshtf as mtf
    >>> mtf.import_tf_tensor
    Traceback (most recent call last):
      ...
    AttributeError: Mesh-TensorFlow's import_tf_tensor is here: `mtf.asarray(mesh, a...
    >>> mtf.erf
    Traceback (most recent call last):
      ...
    AttributeError: 'meshtf' has no 'erf': it is `meshtf.math.erf`.
    >>> mtf.reduce_men
    Traceback (most recent call last):
      ...
    AttributeError: 'meshtf' has no 'reduce_men'. Did you mean reduce_mean, ...

Names of Mesh-TensorFlow are looked up in `mesh_tensorflow_names.txt`, a copy of the tables
of docs/explain/mesh_tensorflow.md.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from meshtf.errors import near_misses

_MESH_TENSORFLOW_NAMES = Path(__file__).with_name("mesh_tensorflow_names.txt")
# The packages that are searched for the name, within `meshtf`.
_PACKAGES = (
    "math",
    "graph",
    "layers",
    "optimizers",
    "decoding",
    "checkpoints",
    "testing",
)

# Name in NumPy, PyTorch or JAX -> what to write; `docs/reference/api.md` has more of them.
_ASARRAY = 'mtf.asarray(mesh, array, "batch; d_model")'
_GATHER = 'mtf.gather(table, ids, "vocab")'
_MIXED_PRECISION = 'mtf.cast(x, "bfloat16") of the input of a model'
_SIZE_1 = "nothing: dimensions match by name, and missing ones are broadcast"
_OTHER_LIBRARIES = {
    "array": _ASARRAY,
    "convert_to_tensor": _ASARRAY,
    "from_numpy": _ASARRAY,
    "tensor": _ASARRAY,
    "cat": 'mtf.concat(xs, "length")',
    "concatenate": 'mtf.concat(xs, "length")',
    "dot": 'mtf.einsum([x, w], "batch; d_ff")',
    "permute": 'mtf.transpose(x, "d_model; batch")',
    "grad": "mtf.gradients([loss], variables)",
    "GradientTape": "mtf.gradients([loss], variables)",
    "jit": "mtf.function",
    "mean": 'mtf.reduce_mean(x, "d_model"), or x.mean("d_model")',
    "sum": 'mtf.reduce_sum(x, "d_model"), or x.sum("d_model")',
    "layers.Linear": 'mtf.layers.Dense(mesh, "d_model:8", "d_ff:32")',
    "expand_dims": _SIZE_1,
    "unsqueeze": _SIZE_1,
    "squeeze": 'x["d", 0] for the entry of a dimension of size 1',
    "view": 'mtf.reshape(x, "rows:8")',
    "clamp": "mtf.clip(x, low, high)",
    "take": _GATHER,
    "embedding_lookup": _GATHER,
    "save_checkpoint": "mtf.checkpoints.save(folder, step, variables)",
    "restore_checkpoint": "mtf.checkpoints.restore(path, variables)",
    "latest_checkpoint": "mtf.checkpoints.latest(folder)",
    "checkpoints.latest_checkpoint": "mtf.checkpoints.latest(folder)",
    "accuracy": 'mtf.reduce_mean(mtf.equal(mtf.argmax(logits, "classes"), labels))',
    "autocast": _MIXED_PRECISION,
    "mixed_precision": _MIXED_PRECISION,
    "Sequential": "a mtf.Module that calls its layers in __call__",
}
# Module of Mesh-TensorFlow -> module of meshtf.
_MODULES = {"optimize": "mtf.optimizers", "beam_search": "mtf.decoding"}
# Package of meshtf -> the module of Mesh-TensorFlow with the same purpose.
_THEIR_MODULES = {"optimizers": "optimize", "decoding": "beam_search"}


@functools.cache
def mesh_tensorflow_names() -> dict[str, str]:
    """Returns for each name of Mesh-TensorFlow what to write instead, such as
    {"layers.dense": "`mtf.layers.Dense`"}.
    """
    lines = _MESH_TENSORFLOW_NAMES.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines if not line.startswith("#"))


def unknown_name(package: str, name: str, names: Sequence[str]) -> AttributeError:
    """Returns the error for a name that a package does not have.

    Args:
      package: the package, such as "meshtf.layers".
      name: the unknown name.
      names: the public names of the package.
    """
    # The name without "meshtf.", such as "layers.dense".
    _meshtf, _dot, path = f"{package}.{name}".partition(".")
    inner_package, dot, _name = path.rpartition(".")
    their_module = _THEIR_MODULES.get(inner_package, inner_package)
    their_path = f"{their_module}{dot}{name}"
    replacement = (mesh_tensorflow_names() | _MODULES).get(their_path)
    if replacement:
        return AttributeError(f"Mesh-TensorFlow's {their_path} is here: {replacement}")
    equivalent = _OTHER_LIBRARIES.get(path)
    if equivalent:
        return AttributeError(f"{package!r} has no {name!r}: write {equivalent}.")
    for other_package in _PACKAGES:
        module = sys.modules.get(f"meshtf.{other_package}")
        if module and name in module.__all__:
            return AttributeError(
                f"{package!r} has no {name!r}: it is `{module.__name__}.{name}`."
            )
    similar = near_misses(name, names)
    hint = f". Did you mean {similar}?" if similar else ""
    return AttributeError(f"{package!r} has no {name!r}{hint}")
