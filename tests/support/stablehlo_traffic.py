"""What a StableHLO module communicates: bytes received by one replica, loops by their
iterations.

Example:

    received(export.module)["all_gather"]
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

BYTES = {
    "i1": 1,
    "i8": 1,
    "ui8": 1,
    "bf16": 2,
    "f16": 2,
    "i32": 4,
    "ui32": 4,
    "f32": 4,
    "i64": 8,
    "ui64": 8,
    "f64": 8,
}


def text_of(module: bytes) -> str:
    """Returns a module as MLIR text, without the names of ops."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import stablehlo

    dialects = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(dialects)
    with ir.Context() as context:
        context.append_dialect_registry(dialects)
        stablehlo.register_dialect(context)
        context.load_all_available_dialects()
        # TensorFlow leaves some of XLA's own in it.
        context.allow_unregistered_dialects = True
        return str(stablehlo.deserialize_portable_artifact(context, module))


def received(module: bytes) -> Counter[str]:
    """Returns the bytes that a replica receives in one run, by kind of collective, as
    of a ring.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import stablehlo

    dialects = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(dialects)
    with ir.Context() as context:
        context.append_dialect_registry(dialects)
        stablehlo.register_dialect(context)
        context.load_all_available_dialects()
        context.allow_unregistered_dialects = (
            True  # TensorFlow leaves some of XLA's own in it
        )
        root = stablehlo.deserialize_portable_artifact(context, module)
        functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op
            for op in root.body.operations
        }
        return _Counting(ir, functions).of(functions["main"])


class _Counting:
    """Walks the functions of a module; each is counted once and multiplied by its
    calls.
    """

    def __init__(self, ir: Any, functions: dict[str, Any]) -> None:
        self.ir = ir
        self.functions = functions
        self.known: dict[str, Counter[str]] = {}

    def of(self, function: Any) -> Counter[str]:
        """Returns what one call of a function receives."""
        name = self.ir.StringAttr(function.attributes["sym_name"]).value
        if name not in self.known:
            self.known[name] = self._region(function.regions[0])
        return self.known[name]

    def _region(self, region: Any) -> Counter[str]:
        total: Counter[str] = Counter()
        for block in region.blocks:
            for op in block.operations:
                for kind, size in self._op(op.operation).items():
                    total[kind] += size
        return total

    def _op(self, op: Any) -> Counter[str]:
        name = op.name.rpartition(".")[2]
        if op.name == "func.call":
            return self.of(self._callee(op))
        if op.name == "stablehlo.while":
            times = self._iterations(op.regions[0])
            return Counter(
                {
                    kind: times * size
                    for kind, size in self._region(op.regions[1]).items()
                }
            )
        if op.name == "stablehlo.case":  # the branch that receives most
            return max(
                map(self._region, op.regions), key=lambda counter: counter.total()
            )
        if name in (
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "collective_permute",
        ):
            return Counter({name: sum(self._bytes(op, name, x) for x in op.operands)})
        return Counter()

    def _callee(self, op: Any) -> Any:
        return self.functions[self.ir.FlatSymbolRefAttr(op.attributes["callee"]).value]

    def _bytes(self, op: Any, kind: str, operand: Any) -> float:
        tensor = self.ir.RankedTensorType(operand.type)
        local_bytes = math.prod(tensor.shape) * BYTES[str(tensor.element_type)]
        if kind == "collective_permute":
            pairs = self.ir.DenseElementsAttr(op.attributes["source_target_pairs"])
            return (
                local_bytes
                * self.ir.ShapedType(pairs.type).get_dim_size(0)
                / self.replicas
            )
        groups = self.ir.ShapedType(
            self.ir.DenseElementsAttr(op.attributes["replica_groups"]).type
        )
        n = groups.get_dim_size(1)
        return (
            local_bytes
            * {
                "all_reduce": 2 * (n - 1) / n,
                "reduce_scatter": (n - 1) / n,
                "all_to_all": (n - 1) / n,
                "all_gather": n - 1,
            }[kind]
        )

    def _iterations(self, test: Any) -> int:
        """Returns to which constant a loop's number is compared."""
        results = []

        def visit(region: Any) -> None:
            for block in region.blocks:
                for op in block.operations:
                    if op.operation.name == "func.call":
                        visit(self._callee(op.operation).regions[0])
                    elif op.operation.name == "stablehlo.constant":
                        results.append(
                            self.ir.DenseIntElementsAttr(op.attributes["value"])[0]
                        )

        visit(test)
        (times,) = results
        return times
