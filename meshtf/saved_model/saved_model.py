"""Exports a computation as a SavedModel, which TensorFlow runs without meshtf, whatever mesh
the variables are on.

    mtf.export_saved_model(predict, x).save("served")

    # In a process without meshtf:
    tf.saved_model.load("served").signatures["serving_default"](x=array)

The function is called again, to record its program for a mesh of one position (one virtual
device). The SavedModel has no meshes, layouts or pipeline stages: it is a graph of
TensorFlow's ops on unsharded tensors.

A store is anything that a program reads: a variable, an argument of the function, a tensor that
the function captures, or a Python number.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import PlanError, explain_error
from meshtf.function.without_running import as_function
from meshtf.graph import (
    Node,
    Spec,
    Store,
    WriteOp,
)
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_text
from meshtf.partition import Program, build
from meshtf.runtime.spmd.module.unsupported import refuse_effects
from meshtf.runtime.storage.argument_storage import unique_names
from meshtf.runtime.storage.atomic_folder import atomic_folder
from meshtf.saved_model.batch_axes import batch_axes
from meshtf.saved_model.single_device import SingleDevice, unsharded_value
from meshtf.saved_model.sizes import BatchAxes, check_sizes, in_chunks

_DIMS_FILE = "dims.json"  # the names and sizes of dimensions
_TENSORFLOW_FILES = {"saved_model.pb", "fingerprint.pb", "variables", "assets"}


def export_saved_model(
    fn: Callable[..., Any], *args: Any, any_size: str | None = None, **kwargs: Any
) -> SavedModel:
    """Returns a SavedModel of the call fn(*args, **kwargs), with the signature
    "serving_default".

    The signature runs on one device, in a process without meshtf, and computes the same
    values as the call. Its inputs have the names of the arguments ("x"; "batch_tokens" for
    `tokens` in a dict `batch`). Its outputs have the names of the keys of the result, or
    "output_0", "output_1", ... Sizes are those of the arguments, which need not be
    divisible by the size of any mesh axis; `SavedModel.add` adds a signature for other
    sizes. Inputs of other sizes are an error.

    Args:
      fn: a `mtf.function`, or a function of tensors; it may read variables of any mesh.
      *args: the arguments of the call. Only the shape and data type of an array are used,
        so it may be a `tf.TensorSpec`. Python values become constants of the model.
      any_size: a dimension, such as "batch", along which the signature takes any number of
        entries, if each entry of the results depends on one entry of the arguments: it
        computes chunks of the size in the call, the last one filled up with copies of an
        entry. So servers can batch requests. None: all sizes are those of the call.
      **kwargs: the keyword arguments of the call, in the same way.

    Raises:
      PlanError: the function writes a variable, prints, or writes a summary; or an op does
        not map along `any_size`.
      ShapeError: no argument has the dimension `any_size`, or it has no entries.
    """
    return SavedModel().add("serving_default", fn, *args, any_size=any_size, **kwargs)


class _Signature(NamedTuple):
    """A program as a function of named inputs.

    Attributes:
      program: the program, for a mesh of one position.
      inputs: the store that the program reads each input from, by the name of the input.
      outputs: the shape and data type of each output, by the name of the output.
      batch: the axes of a batch of any size; None: all sizes are fixed.
    """

    program: Program
    inputs: dict[str, Store]
    outputs: dict[str, Spec]
    batch: BatchAxes | None = None

    def stores(self) -> Iterable[Store]:
        """Returns the stores that the program reads, such as variables, without the inputs
        and the stores of Python numbers.
        """
        input_stores = set(self.inputs.values())
        return [
            store
            for store in self.program.read_stores
            if store.kind != "number" and store not in input_stores
        ]

    def function(self, values: dict[Store, Any]) -> Any:
        """Returns a concrete function of TensorFlow that takes the inputs as keyword
        arguments.

        Args:
          values: the value of each store in `stores`: a tf.Variable or an array.
        """

        def run_program(inputs: dict[str, Any], _index: Any = 0) -> dict[str, Any]:
            """Runs the program, and returns its outputs by name; all chunks are computed in
            one way.
            """
            all_values = dict(values)
            for name, store in self.inputs.items():
                all_values[store] = inputs[name]
            results = SingleDevice(self.program, all_values).run()
            return dict(zip(self.outputs, results))

        def run(**inputs: Any) -> dict[str, Any]:
            """Checks the inputs, and returns the outputs by name."""
            checked = {
                name: check_sizes(name, x, self._sizes(name))
                for name, x in inputs.items()
            }
            if self.batch is None:
                return run_program(checked)
            return in_chunks(run_program, checked, self.outputs, self.batch)

        input_specs = {}
        for name, store in self.inputs.items():
            dtype = tf.as_dtype(store.spec.dtype)
            input_specs[name] = tf.TensorSpec(self._sizes(name), dtype, name)
        return tf.function(run, autograph=False).get_concrete_function(**input_specs)

    def _sizes(self, name: str) -> list[int | None]:
        """Returns the sizes of an input; None: any size."""
        sizes: list[int | None] = list(self.inputs[name].spec.shape.sizes)
        if self.batch is not None and name in self.batch.inputs:
            sizes[self.batch.inputs[name]] = None
        return sizes

    def dims(self) -> dict[str, Any]:
        """Returns the named shapes of inputs and outputs, as data for JSON."""
        inputs = {name: _shape_data(store.spec) for name, store in self.inputs.items()}
        outputs = {name: _shape_data(spec) for name, spec in self.outputs.items()}
        if self.batch is not None:
            for data, axes in (
                (inputs, self.batch.inputs),
                (outputs, self.batch.outputs),
            ):
                for name, axis in axes.items():
                    data[name]["shape"][axis][1] = None  # any size
        return {"inputs": inputs, "outputs": outputs}


def _root(variables: Sequence[tf.Variable]) -> tf.Module:
    """Returns the object that `tf.saved_model.load` returns. It has the attributes for
    variables that TensorFlow's models have.
    """

    class Root(tf.Module):
        """A module whose variables are attributes, and not searched."""

        variables: Any = None
        trainable_variables: Any = None

    root = Root()
    root.variables = list(variables)
    root.trainable_variables = [x for x in variables if x.trainable]
    return root


class SavedModel:
    """A SavedModel: signatures, each a computation for arguments of fixed sizes, and the
    variables that they read.

        model = mtf.export_saved_model(predict, batch_of_1)
        model.add("batch_8", predict, batch_of_8)
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
        any_size: str | None = None,
        **kwargs: Any,
    ) -> SavedModel:
        """Adds the call fn(*args, **kwargs) as a signature, and returns the model.

        Args:
          signature: the name of the signature.
          fn: the function, as in `export_saved_model`.
          *args: the arguments of the call, as in `export_saved_model`.
          any_size: a dimension that may have any size, as in `export_saved_model`.
          **kwargs: the keyword arguments of the call.

        Raises:
          PlanError, ShapeError: as in `export_saved_model`.
        """
        signature = as_text("signature", signature)
        function, args = as_function(fn, args)
        mesh = Mesh("")  # without axes: one position
        recording = function.record_on(mesh, args, kwargs)
        recorded_graph = recording.recorded
        _refuse_writes(recorded_graph.nodes)
        program = build(recorded_graph.nodes, recorded_graph.results, mesh)
        refuse_effects(program)
        input_names = _identifiers(store.name for store in recording.arguments)
        output_names = _identifiers(name for name, _ in recording.named_results)
        output_specs = [y.spec for _, y in recording.named_results]
        batch = None
        if any_size is not None:
            batch = batch_axes(
                as_text("any_size", any_size), recording, input_names, output_names
            )
        self._signatures[signature] = _Signature(
            program=program,
            inputs=dict(zip(input_names, recording.arguments)),
            outputs=dict(zip(output_names, output_specs)),
            batch=batch,
        )
        return self

    def save(self, folder: str) -> None:
        """Writes the SavedModel, with the current values of the variables, into a folder.
        The folder appears only once it is complete.

        In addition to TensorFlow's files, `dims.json` has the names of dimensions.

        Args:
          folder: the path of the folder.

        Raises:
          FileExistsError: the folder exists, and is not an earlier SavedModel of meshtf.
          MeshError: the variables are on an abstract mesh, and have no values.
        """
        # An existing folder is replaced only if it is empty, or has `dims.json` and
        # otherwise only files of TensorFlow.
        with atomic_folder(
            folder, marker=_DIMS_FILE, other_files=_TENSORFLOW_FILES
        ) as unfinished_folder:
            values: dict[Store, Any] = {}  # signatures may share stores
            for signature in self._signatures.values():
                for store in signature.stores():
                    if store not in values:
                        values[store] = unsharded_value(store)
            root = _root([x for x in values.values() if isinstance(x, tf.Variable)])
            functions = {
                name: signature.function(values)
                for name, signature in self._signatures.items()
            }
            tf.saved_model.save(root, unfinished_folder, signatures=functions)
            variables = [s for s, x in values.items() if isinstance(x, tf.Variable)]
            with open(os.path.join(unfinished_folder, _DIMS_FILE), "w") as file:
                json.dump(self._dims(variables), file, indent=1)

    def _dims(self, variables: Sequence[Store]) -> dict[str, Any]:
        """Returns the contents of `dims.json`: the named shapes of inputs, outputs and
        variables.

        Args:
          variables: the variables that the signatures read.
        """
        names = unique_names(store.name for store in variables)
        specs = [store.spec for store in variables]
        return {
            "signatures": {name: s.dims() for name, s in self._signatures.items()},
            "variables": dict(zip(names, map(_shape_data, specs))),
        }


def _shape_data(spec: Spec) -> dict[str, Any]:
    """Returns a data type and a named shape, as data for JSON."""
    shape = [[dim.name, dim.size] for dim in spec.shape]
    return {"dtype": spec.dtype, "shape": shape}


def _identifiers(names: Iterable[str]) -> list[str]:
    """Returns the names as unique identifiers of letters, digits and underscores."""
    return unique_names(re.sub(r"\W", "_", name) for name in names)


def _refuse_writes(nodes: Sequence[Node]) -> None:
    """Checks that a program writes no variable.

    Raises:
      PlanError: it writes a variable.
    """
    for node in nodes:
        if isinstance(node.op, WriteOp):
            raise PlanError(
                explain_error(
                    f"the function writes variable {node.op.variables[0].name!r}, and a "
                    "SavedModel only reads variables.",
                    source=node.source,
                    way_out="Give a function that only computes, such as the forward "
                    "pass with training=False; for a training step see mtf.export.",
                )
            )
