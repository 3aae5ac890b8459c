"""Tensors that XLA computes once and writes to memory, also on CPUs.

    words = stored(words)                # ops that read them do not compute them anew

XLA fuses cheap elementwise ops into each op that reads their result, and so compiles and
computes them once for each of these. On CPUs it drops optimization barriers before that. It
does not fuse across the call of a function that it must not inline, though: here the identity.
For GPUs such a call is a function without kernels, and XLA for TPUs drops it: barriers suffice.
"""

from __future__ import annotations

from typing import Any

from meshtf.runtime.spmd.module.stablehlo_collectives import tensor_type
from meshtf.runtime.tf_internals.xla_ops import call_stablehlo

# The attribute of a call that XLA does not inline, in the text of a module.
NOT_INLINED = 'mhlo.frontend_attributes = {inlineable = "false"}'


def stored(x: Any) -> Any:
    """Returns x, a tensor, which XLA on CPUs computes once."""
    x_type = tensor_type(x, x.shape)
    module = f"""module {{
  func.func @main(%x: {x_type}) -> {x_type} {{
    %y = call @stored(%x) {{{NOT_INLINED}}} : ({x_type}) -> {x_type}
    return %y : {x_type}
  }}
  func.func private @stored(%x: {x_type}) -> {x_type} {{
    return %x : {x_type}
  }}
}}"""
    return call_stablehlo(x, module, x.shape.as_list())
