"""The profiles in `configs/hardware/`, and what is refused as one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import meshtf as mtf
from meshtf.hardware import (
    Hardware,
    Link,
    MeasuredLocalStep,
    MeasuredMatmul,
    as_hardware,
)
from meshtf.hardware.profile import hardware_folder

pytestmark = pytest.mark.every_case

PROFILES = sorted(path.stem for path in hardware_folder().glob("*.json"))


def stated(name: str) -> dict[str, object]:
    """Returns what the file of a profile states."""
    path = hardware_folder() / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_profiles_are_those_of_the_page():
    page = Path(__file__).resolve().parents[2] / "docs" / "explain" / "hardware.md"
    text = page.read_text(encoding="utf-8")
    assert {"a100", "cpu", "h100", "h200", "tpu_v4", "tpu_v5e", "tpu_v5p"} <= {
        *PROFILES
    }
    assert [name for name in PROFILES if f"`{name}`" not in text] == []
    attributes = {field.name for field in dataclasses.fields(Hardware)}
    assert [name for name in sorted(attributes) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", PROFILES)
def test_every_stated_value_has_a_source(name):
    hardware = as_hardware(name)
    assert hardware.name == name
    values = set(stated(name)) - {"name", "sources"}
    assert set(hardware.sources) == values
    for source in hardware.sources.values():
        # The name of a publication with its year, or an estimate and what it is from.
        assert "20" in source or source.startswith("estimate"), source
        assert len(source) > 20


@pytest.mark.parametrize("name", PROFILES)
def test_values_are_plausible(name):
    hardware = as_hardware(name)
    assert hardware.memory is not None
    assert 8 * 2**30 <= hardware.memory <= 288 * 2**30
    peak = max(hardware.matmul_flops.values())
    assert 1e11 < peak < 5e15
    assert hardware.vector_flops < peak
    # FLOPs per byte of memory at which a matmul is bound by both.
    assert 5 < peak / hardware.memory_bandwidth < 400
    assert 0.5 <= hardware.matmul_efficiency <= 1
    assert 0.5 <= hardware.memory_efficiency <= 1
    assert 0 < hardware.op_seconds < 1e-4


@pytest.mark.parametrize("name", PROFILES)
def test_links_go_from_the_fastest_to_the_one_that_joins_all(name):
    *inner, last = as_hardware(name).links
    assert last.devices is None
    assert all(link.devices is not None for link in inner)
    for near, far in zip(inner, [*inner[1:], last]):
        assert near.bandwidth > far.bandwidth
        assert near.latency < far.latency


def test_links_are_for_one_direction():
    # 900 and 600 GB/s in both; no link gives more than the data sheet.
    assert as_hardware("h100").links[0].bandwidth <= 450e9
    assert as_hardware("h200").links[0].bandwidth <= 450e9
    assert as_hardware("a100").links[0].bandwidth <= 300e9


def test_a_saved_profile_reads_as_it_was(tmp_path):
    matmul = MeasuredMatmul(1, 64, 32, 16, "float32", seconds=1e-5)
    local_step = MeasuredLocalStep({"batch": 4, "d_ff": 64}, factor=1.25)
    hardware = dataclasses.replace(
        as_hardware("a100"), matmuls=(matmul,), local_steps=(local_step,)
    )
    hardware.save(tmp_path / "deep" / "mine.json")
    assert as_hardware(tmp_path / "deep" / "mine.json") == hardware
    assert as_hardware(hardware) is hardware


def test_an_unknown_profile_is_refused_by_name():
    with pytest.raises(mtf.ArgumentError, match="no profile of hardware 'h1000'") as e:
        as_hardware("h1000")
    assert "h100" in str(e.value) and "tpu_v5e" in str(e.value)
    with pytest.raises(mtf.ArgumentError, match="hardware"):
        as_hardware(100)


BROKEN = {
    "no JSON": "{",
    "a list": "[1, 2]",
    "an unknown attribute": '{"name": "a", "speed": 3}',
    "no links": '{"name": "a", "matmul_flops": {"float32": 1e9}, "memory_bandwidth": 1e9}',
    "a link without bandwidth": '{"name": "a", "links": [{"name": "b"}]}',
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_refused_by_name(kind, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text(BROKEN[kind], encoding="utf-8")
    with pytest.raises(mtf.ParseError, match=r"broken\.json is no profile"):
        as_hardware(path)


def test_a_dtype_that_is_not_listed_has_the_rate_of_the_slowest():
    link = Link("all", None, 1e9, 0.0)
    hardware = Hardware("a", {"float32": 1e12, "bfloat16": 4e12}, 1e11, (link,))
    assert hardware.peak_flops("bfloat16") == 4e12
    assert hardware.peak_flops("float64") == 1e12
