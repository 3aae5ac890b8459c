"""All uses of TensorFlow's private interfaces, and the switch that turns them off.

    MESHTF_PUBLIC_TENSORFLOW=1 python train.py         # all off that have a public way
    MESHTF_PUBLIC_TENSORFLOW=onednn,packed_handles python train.py       # these two off

The variable is read at each private use; programs that were compiled before keep theirs.
"""

from __future__ import annotations

import os
from typing import NamedTuple

VARIABLE = "MESHTF_PUBLIC_TENSORFLOW"


class Private(NamedTuple):
    """One private use of TensorFlow.

    Attributes:
      files: the files of this folder that use it.
      uses: the private symbols.
      why: what they are needed for.
      gains: what is faster, or possible, by them.
      public: what is done instead when it is off; None: there is no public way.
    """

    files: tuple[str, ...]
    uses: str
    why: str
    gains: str
    public: str | None


PRIVATE = {
    "register_function": Private(
        ("register_function.py",),
        "context.add_function_def and remove_function",
        "a function is a protocol buffer that no graph of Python's stands behind",
        "8 us a function, and definitions that go when nobody needs them",
        "tf.compat.v1.wrap_function imports it; its definition stays until the "
        "process ends",
    ),
    "call_options": Private(
        ("call_options.py",),
        "eager.execute with a configuration of the call's own",
        "a program is called without the graph optimizer, and its results stay on "
        "their devices",
        "a fifth to a half of a first step",
        "the traced tf.function is called, with the graph optimizer off in the options "
        "of the process during the call",
    ),
    "function_attributes": Private(
        ("call_options.py",),
        "_noinline, _disable_acd and _disable_call_shape_inference by name; "
        "a Case of one branch as a call; fields of ConfigProto.experimental",
        "devices run segments as they are, and nothing looks for order where "
        "nothing is written",
        "first steps on many devices, up to several times",
        None,
    ),
    "bare_handles": Private(
        ("variable_handles.py",),
        "TFE_Py_Execute, its switch of eager ops as functions, "
        "context.anonymous_name, handle_data_util, ResourceVariable(handle=)",
        "a shard of a variable is a handle until somebody asks for its tf.Variable",
        "initial values on 64 devices",
        "a tf.Variable for each shard, read and written by ops of its own",
    ),
    "packed_handles": Private(
        ("variable_handles.py",),
        "Pack of handles by TFE_Py_Execute",
        "all variables of a device are one input of a program",
        "first steps on many devices, up to twice; needs bare_handles",
        "each handle is an input",
    ),
    "onednn": Private(
        ("onednn_names.py", "onednn_ops.py"),
        "ops _Mkl* by name, the kernel registry, IsMklEnabled",
        "TensorFlow puts these ops in place in functions that it optimizes, which "
        "segments are not",
        "matmuls of attention, up to several times",
        "tf.linalg.matmul and the other public ops",
    ),
    "tracking": Private(
        ("tracking.py",),
        "the class Trackable",
        "TensorFlow would save a checkpoint or a model without our weights",
        "an error that says what to call instead",
        None,
    ),
    "run_records": Private(
        ("run_records.py",),
        "enable_run_metadata, export_run_metadata and disable_run_metadata of the "
        "eager context; function_def_to_graph",
        "TensorFlow tells nowhere else which graphs ran on which device",
        "benchmarks and tests that count what crosses devices; the library never asks",
        None,
    ),
    "xla": Private(
        ("xla_ops.py",),
        "XLA's optimization barrier, replica id and StableHLO call, and which ops "
        "it can compile",
        "nothing public makes these ops",
        "the spmd runtime, and recomputation under XLA",
        None,
    ),
}


def private(name: str) -> bool:
    """Returns whether a private use is on, given its key in `PRIVATE`."""
    off = os.environ.get(VARIABLE, "")
    if PRIVATE[name].public is None or off in ("", "0"):
        return True
    return off != "1" and name not in off.split(",")
