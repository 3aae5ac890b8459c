"""The code of README.md, docs/ and examples/ is run, notebooks too, and names exist.

A block of Python of a page is run, and prints, or raises, what the block of text after
it says.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import runpy
import sys
from pathlib import Path

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

import meshtf as mtf
from meshtf.testing import check_op
from transformer import explain
from transformer.cli.command_line import configure
from transformer.cli.config_files import find_config
from transformer.training import training_run
from transformer.training.reporting import run_report

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]
}
# Pages whose programs are not run by this file, and why.
NOT_RUN = {
    "docs/explain/mesh_tensorflow.md": "tests/documentation/test_inventory.py runs it",
    "docs/explain/spmd.md": "a fragment, of a host that has no meshtf",
    "docs/reference/clusters.md": "needs workers; tests/cluster runs the like",
    "docs/reference/data.md": "tests/transformer/data/test_page.py runs it",
    "docs/reference/known_models.md": "needs the files of a known model",
}
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "docs" / "learn" / "notebooks").glob("*.ipynb"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = [name for name in PAGES if name not in NOT_RUN and "```python" in PAGES[name]]


def blocks(text: str, kind: str) -> list[str]:
    """Returns the fenced blocks of a kind."""
    return [body for name, body in FENCE.findall(text) if name == kind]


def printed(code: str, names: dict, capsys) -> str:
    """Runs a block and returns what it prints, or the error that it raises."""
    try:
        exec(compile(code, "mlp.py", "exec"), names)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n"
    return capsys.readouterr().out


@pytest.mark.parametrize("page", RUN)
def test_code_does_what_it_says(page, capsys, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(tmp_path)  # where what it writes may lie
    names = {}
    fences = [*FENCE.findall(PAGES[page]), ("end", "")]
    for (kind, code), (next_kind, text) in zip(fences, fences[1:]):
        if kind == "python":
            assert next_kind == "text"
            assert printed(code, names, capsys) == text


def test_pages_that_are_not_run_have_programs():
    assert all("```python" in PAGES[name] for name in NOT_RUN)


PLAN = re.compile(
    r"```sh\n\S+ -m meshtf (explain .*)\n```\n\n```text\n(.*?)\n\.\.\.\n```",
    re.DOTALL,
)


@pytest.mark.parametrize("page", [name for name in PAGES if PLAN.search(PAGES[name])])
def test_a_plan_is_what_explain_prints(page, capsys):
    for command, text in PLAN.findall(PAGES[page]):
        with flagsaver.flagsaver(), pytest.raises(SystemExit) as left:
            explain.main(flags.FLAGS(command.split()))
        gin.clear_config()
        assert left.value.code == (3 if "does not fit" in text else 0)
        assert capsys.readouterr().out.startswith(text)


def test_the_readme_is_short():
    assert len(README.split()) <= 1200


def test_the_readme_shows_a_plan():
    assert PLAN.search(README)


def test_a_run_costs_what_the_readme_says():
    configure(["lm_stdlib.gin"], ['Mesh.devices = "abstract"'])
    forecast = training_run.Run().explain()
    gin.clear_config()
    assert f"step     {run_report.cost(forecast)}\n" in README


def test_the_first_example_is_short():
    assert len(ast.unparse(ast.parse(blocks(README, "python")[0])).splitlines()) <= 25


def run_example(name: str, capsys) -> list[str]:
    """Runs an example as a program and returns the lines that it prints."""
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_every_layout_of_the_example_has_the_same_losses(capsys):
    lines = run_example("mlp_layouts", capsys)
    assert len(lines) == 5
    assert len({re.search(r"losses ([\d. ]+)", line).group(1) for line in lines}) == 1
    assert len({line.partition("shard of w1")[2] for line in lines}) == 5


def test_an_op_of_ones_own_holds_under_every_layout(capsys):
    lines = run_example("own_op", capsys)
    assert len(lines) == 5
    assert len({tuple(re.findall(r"\d+\.\d+", line)) for line in lines}) == 1
    check_op(runpy.run_path(str(ROOT / "examples" / "own_op.py"))["Distance"]).require()


def test_checkpoints_know_no_layout(capsys):
    lines = run_example("checkpoints", capsys)
    assert [line.count("equal: True") for line in lines] == [0, 1, 1]


def test_heat_flows_as_the_exact_solution_says(capsys):
    *pictures, result, m1, m2, m3, m4 = run_example("heat", capsys)
    assert len(pictures) == 32 and len(set(map(len, pictures))) == 1
    assert float(re.search(r"largest error (\S+)", result).group(1)) < 1e-3
    assert all("62 bytes by window" in line for line in (m1, m2, m3, m4))


def test_lines_that_are_found_are_likely_ones(capsys):
    lines = run_example("decode", capsys)
    found, drawn = lines[:-4], lines[-4:]
    scores = np.array([float(line.split()[0]) for line in found]).reshape(4, 4)
    assert (np.diff(scores) <= 0).all()
    assert len({line.split(maxsplit=1)[1] for line in found}) == len(found)
    assert any("for i in range" in line for line in found)
    for word, rows, other in zip(
        ("for", "def", "if", "raise"), np.reshape(found, (4, 4)), drawn
    ):
        assert all(row.split()[1] == word for row in (*rows, other))


@pytest.mark.slow
def test_a_foreign_host_trains_like_tensorflow(tmp_path, capsys, monkeypatch):
    configure(
        ["lm_stdlib.gin", "layouts/fsdp.gin"],
        [
            "Architecture.d_model = 16",
            "Architecture.d_ff = 32",
            "Architecture.blocks = 1",
            "Architecture.dropout = 0.1",
            "train.batch_size = 8",
            "ByteText.length = 8",
        ],
    )
    trainer = training_run.Run().trainer
    gin.clear_config()
    text = tf.TensorSpec([8, 8], tf.int32)
    trainer.export({"tokens": text, "targets": text}).save(str(tmp_path / "step"))
    monkeypatch.setattr(sys, "argv", ["pjrt_host", str(tmp_path / "step"), "3"])
    # Here jax may have started, with more devices.
    monkeypatch.setattr("jax.config.update", lambda name, value: None)
    lines = run_example("pjrt_host", capsys)
    found = [float(re.search(r"loss ([\d.]+)", line).group(1)) for line in lines]
    text = np.frombuffer(Path(json.decoder.__file__).read_bytes(), np.uint8).astype(
        np.int32
    )
    for step, loss in enumerate(found):
        rows = text[
            np.random.default_rng(step).integers(0, len(text) - 8, (8, 1))
            + np.arange(9)
        ]
        batch = {"tokens": rows[:, :-1], "targets": rows[:, 1:]}
        assert float(trainer.step(batch)[0]) == pytest.approx(loss, abs=2e-4)
    assert len(found) == 3


def test_digits_are_told_apart(capsys):
    lines = run_example("digits", capsys)
    assert (
        float(re.search(r"360 held-out digits: ([\d.]+)%", lines[-1]).group(1)) >= 97.0
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_short_and_say_how_they_are_run(name):
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert f"python -m examples.{name}" in text


def test_every_example_is_run_here():
    assert set(EXAMPLES) == {
        "mlp_layouts",
        "own_op",
        "checkpoints",
        "two_regions",
        "pjrt_host",
        "decode",
        "heat",
        "digits",
    }


def test_commands_name_targets_files_and_settings_that_are_there():
    targets = re.findall(
        r"^(\S+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(re.findall(r"\bmake (train-long|[a-z]+)\b", README)) <= set(targets)
    for name in re.findall(r"--gin_file=([\w./]+)", "".join(PAGES.values())):
        find_config(name)
    try:
        for setting in re.findall(r"--gin_param='([^']+)'", README):
            configure(["lm_stdlib.gin"], [setting])
            gin.clear_config()
    finally:
        gin.clear_config()
    for module in re.findall(r"python -m ([\w.]+)", "".join(PAGES.values())):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), (
            module
        )


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page):
    text = PAGES[page]
    for name in re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text):
        folder = (ROOT / page).parent
        places = [ROOT / name, ROOT / "meshtf" / name, ROOT / "tests" / name]
        places.append(folder.parent / name)
        assert any(place.exists() for place in places) or name.startswith("runs/"), name


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"CHANGELOG.md"}))
def test_names_of_the_library_exist(page):
    prose = FENCE.sub("", PAGES[page])
    for code in re.findall(r"`([^`\n]+)`", prose):
        for name in re.findall(r"\bmtf((?:\.\w+)+)", code):
            functools.reduce(getattr, name.split(".")[1:], mtf)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    prose = re.sub(r"`[^`]*`", "", FENCE.sub("", PAGES[page]))
    for name, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", prose):
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), name
        if heading:
            assert heading in anchors(target.read_text(encoding="utf-8")), heading


def anchors(text: str) -> set[str]:
    """Returns the names by which links reach the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.strip().replace(" ", "-") for title in words}


def test_the_index_leads_to_every_page():
    index = ROOT / "docs" / "README.md"
    links = re.findall(r"\]\(([^)#:]+)", PAGES["docs/README.md"])
    linked = {(index.parent / name).resolve() for name in links}
    pages = {ROOT / name for name in PAGES if name.startswith("docs/")}
    assert not pages - linked - {index}


def test_the_map_of_the_tree_is_true():
    tree = CONTRIBUTING.partition("## Where things are")[2]
    inside = re.findall(r"^      ((?:\S+[/.]\S* +)+)", tree, re.MULTILINE)
    for name in " ".join(inside).split():
        assert (ROOT / "meshtf" / name).exists(), name
    for name in re.findall(r"^    (\S+/)", tree, re.MULTILINE):
        assert (ROOT / name).is_dir(), name


def test_no_figure_is_left_out():
    assert not re.findall(r"\b(?:TRAIN_LONG|DEFAULT_RUN|BENCHMARK)_[A-Z]+\b", README)


def test_there_are_two_notebooks():
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_store_no_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_from_top_to_bottom(path, monkeypatch, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    search_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", search_path)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises where a cell does
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert len(outputs) >= 6
