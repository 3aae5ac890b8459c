"""What native code writes while TensorFlow starts: chatter goes, all else stays, errors
too.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from meshtf.runtime.tf_internals.process_start import quiet_start

NOTE = b"I0000 00:00:1795225912.878441   24831 stub.cc:31] Could not find drivers.\n"


def test_chatter_goes_and_all_else_stays(capfd):
    with quiet_start():
        os.write(
            2,
            b"WARNING: All log messages before absl::InitializeLog() is called are written\n",
        )
        os.write(
            2, NOTE + b"E0000 00:00:1 2 x.cc:1] out of memory\n" + NOTE + b"half a line"
        )
    print("\nafter", file=sys.stderr)
    assert (
        capfd.readouterr().err
        == "E0000 00:00:1 2 x.cc:1] out of memory\nhalf a line\nafter\n"
    )


def test_an_error_comes_through(capfd):
    with pytest.raises(ImportError), quiet_start():
        os.write(2, NOTE + b"why\n")
        raise ImportError
    assert capfd.readouterr().err == "why\n"


@pytest.mark.slow
@pytest.mark.parametrize("level, quiet", [("3", True), ("0", False)])
def test_an_import_is_quiet_where_that_is_asked_for(level, quiet):
    code = "import os, meshtf; os.write(2, b'I0000 after the start\\n')"
    err = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": level},
        capture_output=True,
        check=True,
    ).stderr
    assert err.endswith(b"I0000 after the start\n")
    assert (err.count(b"I0000") == 1) == quiet
