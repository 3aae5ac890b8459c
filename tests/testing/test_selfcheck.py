"""The self-check passes what is right, finds what is broken, and says on
which device.
"""

from __future__ import annotations

import io
import re

import pytest

from meshtf.graph import Op
from meshtf.ops.control.stop_gradient import StopGradient
from meshtf.ops.linear.einsum import Einsum
from meshtf.ops.nn.softmax import Softmax
from meshtf.testing import hardware, selfcheck, small_training
from meshtf.testing.conformance.layouts import mesh_on
from meshtf.testing.progress import Progress, duration_text

# An op that ignores what the other shards exchange.
Deaf = type(
    "Softmax",
    (Softmax,),
    {
        "local_sharded": lambda self, context, gathered, residuals, x: self.local(
            context, x
        )
    },
)
# A gradient of the wrong size, which no op of the model checks for itself.
Steep = type(
    "Einsum",
    (Einsum,),
    {
        "gradient": lambda self, *args: [
            dx * 1.01 for dx in Einsum.gradient(self, *args)
        ]
    },
)


@pytest.fixture
def one_layout(monkeypatch):
    """Less of what takes long."""
    monkeypatch.setattr(small_training, "QUICK_LAYOUTS", small_training.LAYOUTS[:1])


def test_right_ops_pass(capsys, one_layout):
    assert selfcheck.selfcheck([Softmax], quick=True) == 0
    out = capsys.readouterr().out
    assert re.search(r"CPU  8 \(.*logical devices, in one memory", out)
    assert re.search(r"^softmax.Softmax +82 +16 +0 +0 +0$", out, re.MULTILINE)
    assert re.search(r"^placement +8 ", out, re.MULTILINE)
    assert re.search(r"^training +0 +0 +1 +0 +0$", out, re.MULTILINE)
    assert re.search(
        r"^Passed on CPU.*: [\d,]+ cases, 16 illegal layouts refused, 0 failures, "
        r".* s. Not tried: ",
        out,
        re.MULTILINE,
    )


def test_live_meshes_have_a_report_of_their_own(capsys, monkeypatch):
    monkeypatch.setattr(small_training, "LAYOUTS", small_training.LAYOUTS[:1])
    assert selfcheck.selfcheck([StopGradient], live="spmd:cpu") == 0
    out = capsys.readouterr().out
    for line in (
        r"spmd:cpu  16 \(cpu; jax [\d.]+\)",
        " +recorded +left out +failures",
        r"stop_gradient.StopGradient +\d+ +\d+ +0",
        "training +1 +0 +0",
        r"Passed on spmd:cpu: \d+ cases, 0 illegal .*",
    ):
        assert re.search(f"^{line}$", out, re.MULTILINE), out


@pytest.mark.parametrize(
    "broken, pattern",
    [
        (Deaf, r"CPU, [\w.]+Softmax: Softmax\(.* on x:2, layout \w+:x.*(\n.*)*"),
        (
            Steep,
            r"CPU, [\w.]+Einsum: Einsum\(.* on one device: gradient rule against the tape(.*\n)*"
            r"CPU, [\w.]+Einsum: and \d+ more",
        ),
    ],
)
def test_a_broken_op_fails_with_its_layout(broken, pattern, capsys, one_layout):
    assert selfcheck.selfcheck([broken], quick=True) == 1
    out = capsys.readouterr().out
    assert re.search(f"^{pattern}$", out, re.MULTILINE), out
    assert re.search(
        r"^FAILED on CPU: \d+ cases, \d+ illegal .*, \d+ failures", out, re.MULTILINE
    )


def test_an_op_that_raises_and_one_without_samples_fail(
    capsys, one_layout, monkeypatch
):
    def no_kernel(*args, **kwargs):
        raise RuntimeError("no kernel for this device")

    silent = type("Silent", (Softmax,), {"conformance_samples": ()})
    rows = selfcheck.check_kind("CPU", ["/device:CPU:0"], [silent], True, 0)
    assert rows[1].failures[0].startswith("test_selfcheck.Silent has no samples")
    monkeypatch.setattr(selfcheck, "check_op", no_kernel)
    assert selfcheck.selfcheck([Softmax], quick=True) == 1
    assert (
        "softmax.Softmax: RuntimeError: no kernel for this device"
        in capsys.readouterr().out
    )


def test_both_ways_of_running_are_checked(capsys, one_layout, monkeypatch):
    monkeypatch.setattr(selfcheck, "EAGER_MESHES", ("x:2",))
    monkeypatch.setattr(selfcheck, "RECORDED_MESHES", ("x:2",))
    monkeypatch.setattr(small_training, "LAYOUTS", small_training.LAYOUTS[:1])
    rows = selfcheck.check_kind("CPU", ["/device:CPU:1"], [Deaf], False, 0)
    assert rows[1].eager.failures and rows[1].recorded.failures
    assert "mtf.function on x:2, layout" in rows[1].recorded.failures[0]


def test_work_on_other_devices_is_detected(monkeypatch):
    assert not hardware.check_placement(["/device:CPU:0", "/device:CPU:3"]).failures
    monkeypatch.setattr(
        hardware,
        "mesh_on",
        lambda axes, devices: mesh_on(axes, devices=["/device:CPU:0"]),
    )
    (failure,) = hardware.check_placement(["/device:CPU:0", "/device:CPU:3"]).failures
    assert re.match(r"work for /device:CPU:3 was done on .*CPU:0", failure)


def test_training_that_differs_is_detected(monkeypatch):
    real = small_training._train

    def drifting(mesh, seed):
        arrays = real(mesh, seed)
        if mesh.size > 1:
            arrays["block/inner/kernel"] = arrays["block/inner/kernel"] + 1e-3
        return arrays

    monkeypatch.setattr(small_training, "_train", drifting)
    (failure,) = small_training.check_training(
        layouts=small_training.LAYOUTS[:1]
    ).failures
    assert failure.startswith(
        "training on data:2, layout batch:data: block/inner/kernel is off by"
    )


def test_training_learns():
    losses = small_training._train(mesh_on(""), 0)["losses"]
    assert losses[0] > losses[1] > losses[2]


def test_a_layout_that_cannot_be_trained_is_a_failure():
    (failure,) = small_training.check_training(
        layouts=[("data:2", "batch:data; heads:data")]
    ).failures
    assert "LayoutError" in failure


def test_ops_are_chosen_by_module_class_or_both():
    def names(*arguments):
        return [op.__name__ for op in selfcheck.choose(arguments)]

    assert names("einsum") == ["Einsum"]
    assert names("softmax.Softmax", "LOGSUMEXP") == ["LogSumExp", "Softmax"]
    assert names("softmax") == ["Softmax", "SoftmaxGrad"]
    assert len(names()) > 30 and all(issubclass(op, Op) for op in selfcheck.choose([]))
    with pytest.raises(ValueError, match="no op 'einsom'. Did you mean einsum"):
        names("einsom")


def test_progress_on_a_terminal_is_one_line():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    progress = Progress(total=4, out=out)
    progress.begin("first")
    progress.done(1)
    progress.begin("second")
    progress.clear()
    assert re.fullmatch(
        r"\r  0%  first\r 25%  second, \d+ s left\r +\r", out.getvalue()
    )


def test_progress_into_a_file_is_seldom(monkeypatch):
    out = io.StringIO()
    progress = Progress(total=2, out=out)
    progress.begin("first")
    assert out.getvalue() == ""
    monkeypatch.setattr("meshtf.testing.progress.EVERY", 0.0)
    progress.done(1)
    progress.begin("second")
    assert re.fullmatch(r" 50%  second, \d+ s left\n", out.getvalue())


def test_seconds_are_spelled():
    assert (duration_text(8.6), duration_text(125)) == ("9 s", "2 min 05 s")
