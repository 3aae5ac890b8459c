"""Models for TensorFlow alone: any computation as a SavedModel, whatever mesh it was
trained on.

    mtf.export_saved_model(predict, x).save("served")

    tf.saved_model.load("served").signatures["serving_default"](x=array)     # meshtf is not needed

The function is recorded anew, as if all lay on a mesh of one position. So nothing of
meshes, layouts, regions and stages is left: a graph of TensorFlow's own ops on whole
tensors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.function.function import as_function
from meshtf.graph import (
    Node,
    Spec,
    Store,
    WriteOp,
)
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_text
from meshtf.partition import Program, ReadStep, build, walk
from meshtf.runtime.spmd.unsupported import refuse_effects
from meshtf.runtime.storage.argument_storage import told_apart
from meshtf.runtime.storage.atomic_folder import written_whole
from meshtf.saved_model.single_device import Alone, whole_of

_DIMS, _OTHERS = (
    "dims.json",
    {"saved_model.pb", "fingerprint.pb", "variables", "assets"},
)


def export_saved_model(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> SavedModel:
    """Returns a call fn(*args, **kwargs) as a SavedModel, with the signature
    "serving_default".

    It runs on one device, in a process without meshtf, and gives the same numbers.
    Inputs have the names of arguments ("x"; "batch_tokens" for `tokens` in a dict
    `batch`), outputs those of the keys of what is returned, or "output_0", "output_1",
    ... Sizes are those of the arguments here, which need not divide by any mesh;
      `SavedModel.add` adds other sizes.

    Args:
      fn: a `mtf.function`, or a function of tensors, which reads variables of any mesh.
      *args: its arguments; of an array only shape and data type are asked, so a
        `tf.TensorSpec` will do. Python values become part of the model.
      **kwargs: likewise.

    Raises:
      PlanError: it writes a variable, prints, or writes a summary.
    """
    return SavedModel().add("serving_default", fn, *args, **kwargs)


class _Signature(NamedTuple):
    program: Program
    inputs: dict[str, Store]
    outputs: dict[str, Spec]

    def stores(self) -> Iterable[Store]:
        """Returns what it reads, but for inputs and numbers."""
        read = dict.fromkeys(
            s.store for s, _ in walk(self.program) if isinstance(s, ReadStep)
        )
        return [s for s in read if s.kind != "number" and s not in self.inputs.values()]

    def function(self, given: dict[Store, Any]) -> Any:
        """Returns it as a function of TensorFlow, with the inputs as keywords."""

        def run(**inputs: Any) -> dict[str, Any]:
            arguments = {store: inputs[name] for name, store in self.inputs.items()}
            return dict(zip(self.outputs, Alone(self.program, given | arguments).run()))

        specs = {
            name: tf.TensorSpec(s.spec.shape.sizes, tf.as_dtype(s.spec.dtype), name)
            for name, s in self.inputs.items()
        }
        return tf.function(run, autograph=False).get_concrete_function(**specs)

    def dims(self) -> dict[str, Any]:
        """Returns named shapes, as plain data."""
        return {
            "inputs": {name: _plain(store.spec) for name, store in self.inputs.items()},
            "outputs": {name: _plain(spec) for name, spec in self.outputs.items()},
        }


class _Root(tf.Module):
    """What a process that loads the model gets: its variables, as TensorFlow's own
    models have.
    """

    variables: Any = None
    trainable_variables: Any = None


class SavedModel:
    """Signatures, each a computation for arguments of fixed sizes, and the variables
    that they read.

    Example:

        model = mtf.export_saved_model(predict, one)
        model.add("batch_8", predict, eight)
        model.save("served")
    """

    def __init__(self) -> None:
        self._signatures: dict[str, _Signature] = {}

    def add(
        self, signature: str, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> SavedModel:
        """Adds a call fn(*args, **kwargs) under a name, and returns the model; see
        above.
        """
        as_text("signature", signature)
        function, args = as_function(fn, args)
        mesh = Mesh("")
        recording = function.record_on(mesh, args, kwargs)
        recorded, results = recording.recorded, recording.named_results
        _refuse_writes(recorded.nodes)
        names = _plain_names(name for name, _ in results)
        program = build(recorded.nodes, recorded.results, mesh)
        refuse_effects(program)
        inputs = _plain_names(store.name for store in recording.arguments)
        self._signatures[signature] = _Signature(
            program,
            dict(zip(inputs, recording.arguments)),
            {name: y.spec for name, (_, y) in zip(names, results)},
        )
        return self

    def save(self, folder: str) -> None:
        """Writes a folder with the present values of the variables; it is there as a
        whole or not.

        Beside TensorFlow's files, `dims.json` tells the names of dimensions.

        Raises:
          FileExistsError: the folder is there, and is no earlier SavedModel of this
            kind.
          MeshError: the variables lie on an abstract mesh, and have no values.
        """
        with written_whole(folder, _DIMS, _OTHERS) as unfinished:
            stores = dict.fromkeys(
                x for s in self._signatures.values() for x in s.stores()
            )
            given = {store: whole_of(store) for store in stores}
            root = _Root()
            root.variables = [x for x in given.values() if isinstance(x, tf.Variable)]
            root.trainable_variables = [x for x in root.variables if x.trainable]
            tf.saved_model.save(
                root,
                unfinished,
                {
                    name: signature.function(given)
                    for name, signature in self._signatures.items()
                },
            )
            variables = [s for s, x in given.items() if isinstance(x, tf.Variable)]
            with open(os.path.join(unfinished, _DIMS), "w") as file:
                json.dump(self._dims(variables), file, indent=1)

    def _dims(self, variables: Sequence[Store]) -> dict[str, Any]:
        names = told_apart(store.name for store in variables)
        return {
            "signatures": {name: s.dims() for name, s in self._signatures.items()},
            "variables": {
                name: _plain(store.spec) for name, store in zip(names, variables)
            },
        }


def _plain(spec: Spec) -> dict[str, Any]:
    return {"dtype": spec.dtype, "shape": [[d.name, d.size] for d in spec.shape]}


def _plain_names(names: Iterable[str]) -> list[str]:
    return told_apart(re.sub(r"\W", "_", name) for name in names)


def _refuse_writes(nodes: Sequence[Node]) -> None:
    """Refuses a program that changes variables. Raises PlanError."""
    for node in nodes:
        if isinstance(node.op, WriteOp):
            raise PlanError(
                explain_error(
                    f"the function writes variable {node.op.variables[0].name!r}, and a "
                    "SavedModel only reads variables.",
                    **{"from": node.source},
                    way_out="Give a function that only computes, such as the forward "
                    "pass with training=False; for a training step see mtf.export.",
                )
            )
