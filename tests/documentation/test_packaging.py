"""The wheel: two names at its top, every gin file and profile inside, and little asked for."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel, built from a copy of what it is made of, without the network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("meshtf", "transformer", "configs", "tests", "examples", "benchmarks"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    (source / "configs" / "deep" / "er").mkdir(parents=True)
    (source / "configs" / "deep" / "er" / "one.gin").write_text(
        "# a gin file two folders down\n"
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(out),
            str(source),
        ],
        check=True,
    )
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_top_level_has_two_names(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "meshtf",
        "transformer",
    }


def test_every_file_of_the_packages_is_shipped(wheel):
    shipped = set(wheel.namelist())
    ours = [
        path.relative_to(ROOT).as_posix()
        for folder in ("meshtf", "transformer")
        for path in (ROOT / folder).rglob("*.py")
    ]
    configs = [
        "transformer/configs/" + path.relative_to(ROOT / "configs").as_posix()
        for ending in ("gin", "json")
        for path in (ROOT / "configs").rglob(f"*.{ending}")
    ]
    assert "transformer/configs/hardware/h100.json" in configs
    wanted = {*ours, *configs, "meshtf/py.typed", "transformer/configs/deep/er/one.gin"}
    assert not wanted - shipped


def test_configs_are_found_once_installed(wheel, tmp_path, monkeypatch):
    wheel.extractall(tmp_path)
    found = load(tmp_path / "transformer" / "cli" / "config_files.py")
    monkeypatch.chdir(tmp_path)
    assert found.config_folder() == str(tmp_path / "transformer" / "configs")
    assert Path(found.find_config("deep/er/one.gin")).is_file()


def test_configs_are_found_in_a_checkout(tmp_path, monkeypatch):
    found = load(ROOT / "transformer" / "cli" / "config_files.py")
    assert found.config_folder() == str(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gin").write_text("")
    assert found.find_config("mine.gin") == "mine.gin"
    with pytest.raises(FileNotFoundError, match="no gin file 'yours.gin'"):
        found.find_config("yours.gin")


def load(path):
    """Returns a module by itself, without the package around it."""
    spec = importlib.util.spec_from_file_location("found", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_asked_for(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    text = wheel.read(name).decode()
    wanted = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", text, re.MULTILINE)
    assert sorted(wanted) == ["absl-py", "gin-config", "numpy", "tensorflow"]
    assert re.search(
        r"^Requires-Dist: tensorflow ?[(]?(>=2.20,<2.22|<2.22,>=2.20)", text, re.M
    )
    extras = set(re.findall(r"^Provides-Extra: (\S+)", text, re.MULTILINE))
    assert extras == {
        "convert",
        "cuda",
        "docs",
        "examples",
        "hf",
        "spmd",
        "tensorboard",
        "test",
        "text",
        "tpu",
    }
    assert "Requires-Python: >=3.10" in text and "License: Apache-2.0" in text
    (license_file,) = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
    assert wheel.read(license_file) == (ROOT / "LICENSE").read_bytes()


def test_it_is_installed_as_the_readme_says(wheel, tmp_path):
    """The extras are there, and what pip installs is imported from elsewhere."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^pip install (\S+)", readme, re.MULTILINE) == [
        ".",
        '".[spmd]"',
    ]
    (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    extras = re.findall(r"^Provides-Extra: (\S+)", wheel.read(metadata).decode(), re.M)
    assert set(re.findall(r'"\.\[(\w+)\]"', readme)) <= set(extras)
    folder = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder), str(wheel.filename)], check=True)
    code = "import meshtf; print(meshtf.__file__, meshtf.Mesh('data:8').size)"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert printed == [str(folder / "meshtf" / "__init__.py"), "8"]
