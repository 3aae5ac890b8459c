"""The graph: the op contract, tensors, `apply`, recording and gradients.

This package imports no TensorFlow, and knows no op by name.

    >>> from meshtf.graph import Role
    >>> Role.MAP.value
    'map'
"""

from meshtf.graph.apply import Executor, apply, apply_all, current_executor, executing
from meshtf.graph.autodiff.gradients import gradients
from meshtf.graph.context import Context, GradientRule, context, current
from meshtf.graph.control_flow.body import Body, record_body
from meshtf.graph.control_flow.branch import Branch
from meshtf.graph.control_flow.call import Call
from meshtf.graph.control_flow.loop import Loop
from meshtf.graph.op import (
    Cotangents,
    KernelCall,
    LocalContext,
    LocalTensors,
    MatmulKernels,
    Op,
    PaddingValue,
    RecordCheck,
    Role,
    Sample,
    Spec,
    Specs,
)
from meshtf.graph.op_kinds import (
    ConstantOp,
    ControlFlowOp,
    EffectOp,
    GradientBarrier,
    HostOp,
    OpWithStatistics,
    ReadOp,
    RenamingOp,
    ReshardOp,
    RowsWriteOp,
    Statistics,
    Store,
    Window,
    WindowedOp,
    WriteOp,
    contracted_factors,
    factor_of,
    is_variable,
    window_of,
)
from meshtf.graph.operators import OPERATORS, Operators, register_operator
from meshtf.graph.recorder import CustomGradientRule, Graph, RecomputeGroup
from meshtf.graph.tensor import Node, ShardedValue, Source, Tensor, next_serial

__all__ = [
    "Body",
    "Branch",
    "Call",
    "ConstantOp",
    "Context",
    "Cotangents",
    "ControlFlowOp",
    "EffectOp",
    "Executor",
    "GradientBarrier",
    "CustomGradientRule",
    "GradientRule",
    "Graph",
    "HostOp",
    "KernelCall",
    "LocalContext",
    "LocalTensors",
    "Loop",
    "MatmulKernels",
    "Node",
    "OPERATORS",
    "Op",
    "PaddingValue",
    "OpWithStatistics",
    "Operators",
    "ReadOp",
    "RecomputeGroup",
    "RecordCheck",
    "RenamingOp",
    "ReshardOp",
    "Role",
    "RowsWriteOp",
    "Sample",
    "ShardedValue",
    "Source",
    "Spec",
    "Specs",
    "Statistics",
    "Store",
    "Tensor",
    "Window",
    "WindowedOp",
    "WriteOp",
    "apply",
    "apply_all",
    "context",
    "contracted_factors",
    "current",
    "current_executor",
    "executing",
    "factor_of",
    "gradients",
    "is_variable",
    "next_serial",
    "record_body",
    "register_operator",
    "window_of",
]


def __dir__() -> list[str]:
    return sorted(__all__)
