"""What TensorFlow's native code writes to stderr at any log level, while it is imported.

Example:

    assert not without_native_notes(done.stderr)
"""

from __future__ import annotations

import re

_ALWAYS = re.compile(
    r"WARNING: All log messages before absl::InitializeLog.*\n"
    r"|I0000 .* (port|cudart_stub)\.cc:\d+\] .*\n"  # oneDNN is on; there is no GPU
)


def without_native_notes(text: str) -> str:
    """Returns what a program wrote itself, and what TensorFlow should not have."""
    return _ALWAYS.sub("", text)
