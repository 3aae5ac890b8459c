"""All uses of TensorFlow's private interfaces, and the switch that turns them off.

    MESHTF_PUBLIC_TENSORFLOW=1 python train.py     # turns off all that have a public way
    MESHTF_PUBLIC_TENSORFLOW=onednn,packed_handles python train.py    # turns off these two

The environment variable is read at each private use. A program that was compiled before
does not change.
"""

from __future__ import annotations

import os
from typing import NamedTuple

VARIABLE = "MESHTF_PUBLIC_TENSORFLOW"  # the environment variable


class Private(NamedTuple):
    """One private use of TensorFlow.

    Attributes:
      files: the files of this folder with the private symbols.
      uses: the private symbols.
      why: the reason why meshtf needs the symbols.
      gains: what becomes faster, or possible, with them.
      public: the public way that is taken when the use is turned off; None: there is no
        public way, and the use cannot be turned off.
    """

    files: tuple[str, ...]
    uses: str
    why: str
    gains: str
    public: str | None


PRIVATE = {
    "register_function": Private(
        files=("register_function.py",),
        uses="context.add_function_def and remove_function",
        why="a program is registered as a protocol buffer, without a Python graph",
        gains="8 us a function; unused definitions are removed from TensorFlow",
        public="tf.compat.v1.wrap_function imports the function; its definition stays "
        "until the process ends",
    ),
    "call_options": Private(
        files=("call_options.py",),
        uses="eager.execute with a configuration for a single call",
        why="a program is called without the graph optimizer, and its results stay on "
        "their devices",
        gains="a fifth to a half of the time of a first step",
        public="the traced tf.function is called, with the graph optimizer off in the "
        "options of the process during the call",
    ),
    "function_attributes": Private(
        files=("call_options.py",),
        uses="_noinline, _disable_acd and _disable_call_shape_inference by name; "
        "a Case of one branch as a call; fields of ConfigProto.experimental",
        why="TensorFlow runs segments unchanged, and adds no control dependencies to "
        "functions that write nothing",
        gains="first steps on many devices are up to several times faster",
        public=None,
    ),
    "bare_handles": Private(
        files=("variable_handles.py",),
        uses="TFE_Py_Execute, its switch of eager ops as functions, "
        "context.anonymous_name, handle_data_util, ResourceVariable(handle=)",
        why="a shard of a variable is a resource handle; its tf.Variable is created only "
        "when needed",
        gains="initial values on 64 devices are faster",
        public="a tf.Variable for each shard, read and written by separate ops",
    ),
    "packed_handles": Private(
        files=("variable_handles.py",),
        uses="Pack of handles by TFE_Py_Execute",
        why="all variables of a device are one input of a program",
        gains="first steps on many devices are up to twice as fast; needs bare_handles",
        public="each handle is an input",
    ),
    "onednn": Private(
        files=("onednn_names.py", "onednn_ops.py"),
        uses="ops _Mkl* by name, the kernel registry, IsMklEnabled",
        why="TensorFlow replaces ops by these in functions that it optimizes, but it "
        "does not optimize segments",
        gains="matmuls of attention are up to several times faster",
        public="tf.linalg.matmul and the other public ops",
    ),
    "captured_tensors": Private(
        files=("captured_tensors.py",),
        uses="FuncGraph.capture",
        why="functions that are called by name have no inputs for what a user's function "
        "captures",
        gains="eager tensors that functions of slicewise and ops read become constants, "
        "and a captured variable is an error with the user's line",
        public=None,
    ),
    "tracking": Private(
        files=("tracking.py",),
        uses="the class Trackable",
        why="TensorFlow would save a checkpoint or a model without our weights",
        gains="an error that says what to call instead",
        public=None,
    ),
    "run_records": Private(
        files=("run_records.py",),
        uses="enable_run_metadata, export_run_metadata and disable_run_metadata of the "
        "eager context; function_def_to_graph",
        why="no public interface returns the graphs that ran on each device",
        gains="benchmarks and tests count the bytes between devices; the library does "
        "not use it",
        public=None,
    ),
    "xla": Private(
        files=("xla_ops.py",),
        uses="XLA's optimization barrier, replica id and StableHLO call, and the ops "
        "that XLA can compile",
        why="no public interface creates these ops",
        gains="the spmd runtime, and recomputation under XLA",
        public=None,
    ),
    "stablehlo_artifact": Private(
        files=("stablehlo_artifact.py",),
        uses="StableHLO's own serializer, which TensorFlow ships",
        why="what TensorFlow's public call serializes is read by its own MLIR alone",
        gains="exported and live modules, which every newer reader takes",
        public=None,
    ),
}


def private(name: str) -> bool:
    """Returns whether a private use is on, given its key in `PRIVATE`."""
    turned_off = os.environ.get(VARIABLE, "")
    if PRIVATE[name].public is None or turned_off in ("", "0"):
        return True
    return turned_off != "1" and name not in turned_off.split(",")
