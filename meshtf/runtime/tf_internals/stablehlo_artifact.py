"""StableHLO's own serializer, which TensorFlow ships without a public name."""

from __future__ import annotations


def serialize(text: str, version: str) -> bytes:
    """Returns a module as a portable artifact.

    Args:
      text: the module as MLIR text of StableHLO.
      version: the earliest version of StableHLO that can read it, such as "1.10.0".

    Raises:
      ValueError: the text is not valid, or has ops of other dialects than StableHLO.
    """
    # Imported here: its import registers a function with atexit.
    from tensorflow.compiler.mlir.stablehlo import stablehlo

    return bytes(stablehlo.serialize_portable_artifact_str(text, version))
