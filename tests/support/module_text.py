"""The text of an exported StableHLO module."""

from __future__ import annotations


def module_text(module: bytes) -> str:
    """Returns a module of `mtf.export` as text."""
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
