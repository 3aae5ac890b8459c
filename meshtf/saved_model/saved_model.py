"""Models for TensorFlow without meshtf: any computation as a SavedModel, whatever mesh its
variables are on.

    mtf.export_saved_model(predict, x).save("served")

    tf.saved_model.load("served").signatures["serving_default"](x=array)     # meshtf is not needed

The function is recorded again, for a mesh of one position. The result has no meshes,
layouts, regions or stages: it is a graph of TensorFlow's ops on unsharded tensors.
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
from meshtf.runtime.spmd.module.unsupported import refuse_effects
from meshtf.runtime.storage.argument_storage import unique_names
from meshtf.runtime.storage.atomic_folder import atomic_folder
from meshtf.saved_model.single_device import SingleDevice, unsharded_value

_DIMS_FILE = "dims.json"
_TENSORFLOW_FILES = {"saved_model.pb", "fingerprint.pb", "variables", "assets"}


def export_saved_model(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> SavedModel:
    """Returns a call fn(*args, **kwargs) as a SavedModel, with the signature
    "serving_default".

    It runs on one device, in a process without meshtf, and computes the same values.
    Inputs have the names of arguments ("x"; "batch_tokens" for `tokens` in a dict
    `batch`), outputs those of the keys of the result, or "output_0", "output_1", ...
    Sizes are those of the arguments, which need not be divisible by the size of any mesh
    axis; `SavedModel.add` adds other sizes.

    Args:
      fn: a `mtf.function`, or a function of tensors; it may read variables of any mesh.
      *args: its arguments. Only shape and data type of an array are used, so it may be a
        `tf.TensorSpec`. Python values become constants of the model.
      **kwargs: keyword arguments, in the same way.

    Raises:
      PlanError: it writes a variable, prints, or writes a summary.
    """
    return SavedModel().add(
        "serving_default",
        fn,
        *args,
        **kwargs,
    )


class _Signature(NamedTuple):
    """A program, and its inputs and outputs by name."""

    program: Program
    inputs: dict[str, Store]
    outputs: dict[str, Spec]

    def stores(self) -> Iterable[Store]:
        """Returns the stores that it reads, without inputs and numbers."""
        read = dict.fromkeys(
            s.store for s, _ in walk(self.program) if isinstance(s, ReadStep)
        )
        return [s for s in read if s.kind != "number" and s not in self.inputs.values()]

    def function(self, values: dict[Store, Any]) -> Any:
        """Returns a concrete function of TensorFlow, with the inputs as keywords.

        Args:
          values: of the stores that it reads.
        """

        def run(**inputs: Any) -> dict[str, Any]:
            arguments = {store: inputs[name] for name, store in self.inputs.items()}
            results = SingleDevice(self.program, values | arguments).run()
            return dict(zip(self.outputs, results))

        specs = {
            name: tf.TensorSpec(s.spec.shape.sizes, tf.as_dtype(s.spec.dtype), name)
            for name, s in self.inputs.items()
        }
        return tf.function(run, autograph=False).get_concrete_function(**specs)

    def dims(self) -> dict[str, Any]:
        """Returns named shapes, as plain data."""
        return {
            "inputs": {
                name: _shape_data(store.spec) for name, store in self.inputs.items()
            },
            "outputs": {name: _shape_data(spec) for name, spec in self.outputs.items()},
        }


class _Root(tf.Module):
    """The object that `tf.saved_model.load` returns, with the variables as attributes, as
    those of TensorFlow's models.
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

    def __repr__(self) -> str:
        names = ", ".join(self._signatures) or "no signatures"
        return f"<mtf.SavedModel: {names}>"

    def add(
        self,
        signature: str,
        fn: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> SavedModel:
        """Adds a call fn(*args, **kwargs) with this name, and returns the model; arguments
        as of `export_saved_model`.
        """
        as_text("signature", signature)
        function, args = as_function(fn, args)
        mesh = Mesh("")
        recording = function.record_on(mesh, args, kwargs)
        recorded = recording.recorded
        results = recording.named_results
        _refuse_writes(recorded.nodes)
        names = _identifiers(name for name, _ in results)
        program = build(recorded.nodes, recorded.results, mesh)
        refuse_effects(program)
        inputs = _identifiers(store.name for store in recording.arguments)
        self._signatures[signature] = _Signature(
            program,
            dict(zip(inputs, recording.arguments)),
            {name: y.spec for name, (_, y) in zip(names, results)},
        )
        return self

    def save(self, folder: str) -> None:
        """Writes a folder with the current values of the variables, atomically.

        In addition to TensorFlow's files, `dims.json` has the names of dimensions.

        Raises:
          FileExistsError: the folder exists, and is not an earlier SavedModel of this
            kind.
          MeshError: the variables are on an abstract mesh, and have no values.
        """
        with atomic_folder(folder, _DIMS_FILE, _TENSORFLOW_FILES) as unfinished:
            values: dict[Store, Any] = {}
            for signature in self._signatures.values():
                for store in signature.stores():
                    if store not in values:
                        values[store] = unsharded_value(store)
            root = _Root()
            root.variables = [x for x in values.values() if isinstance(x, tf.Variable)]
            root.trainable_variables = [x for x in root.variables if x.trainable]
            functions = {
                name: signature.function(values)
                for name, signature in self._signatures.items()
            }
            tf.saved_model.save(root, unfinished, functions)
            variables = [s for s, x in values.items() if isinstance(x, tf.Variable)]
            with open(os.path.join(unfinished, _DIMS_FILE), "w") as file:
                json.dump(self._dims(variables), file, indent=1)

    def _dims(self, variables: Sequence[Store]) -> dict[str, Any]:
        """Returns the contents of `dims.json`."""
        names = unique_names(store.name for store in variables)
        return {
            "signatures": {name: s.dims() for name, s in self._signatures.items()},
            "variables": {
                name: _shape_data(store.spec) for name, store in zip(names, variables)
            },
        }


def _shape_data(spec: Spec) -> dict[str, Any]:
    """Returns data type and named shape, as plain data."""
    shape = [[d.name, d.size] for d in spec.shape]
    return {"dtype": spec.dtype, "shape": shape}


def _identifiers(names: Iterable[str]) -> list[str]:
    """Returns different names of letters, digits and underscores."""
    return unique_names(re.sub(r"\W", "_", name) for name in names)


def _refuse_writes(nodes: Sequence[Node]) -> None:
    """Raises PlanError if a program writes variables."""
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
