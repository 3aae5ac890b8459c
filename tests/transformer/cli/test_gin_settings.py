"""Errors of gin settings: unused names and wrong types, with file, line and similar
names.
"""

from __future__ import annotations

import re
from pathlib import Path

import gin
import pytest

import transformer.models.bert
from tests.transformer.small_runs import run_train, small
from transformer.cli.command_line import ConfigError, configure
from transformer.training import training_run

ROOT = Path(__file__).resolve().parents[3]
HERE = "In --gin_param line 1"
__all__ = ["training_run", "transformer"]  # imported so that gin knows what is in them


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def refusal(*params, files=("lm_stdlib.gin",)):
    with pytest.raises(ConfigError) as error:
        configure(list(files), list(params))
    return str(error.value)


@pytest.mark.parametrize(
    "line, says",
    [
        ("step = 4", "step is a name that no setting refers to, as %step"),
        ("step = 4", "Did you mean steps?"),
        ("nonsense = 4", "nonsense is a name"),
        (
            "decodr/Architecture.blocks = 2",
            "decodr/ is a scope that no setting refers to",
        ),
        ("Mesh.axees = 'data:4'", "Did you mean axes"),
        ("Mesh.axees = 'data:4'", "Mesh takes axes, layout, variable_layout"),
        ("train.step = 4", "Did you mean steps"),
        ("LanguagModel.z_loss = 1", "Did you mean LanguageModel"),
        ("train.optimizer = @AdmW", "Did you mean AdamW"),
        ("bert_architecture.headz = 3", "bert_architecture takes no 'headz'"),
        ("bert_architecture.headz = 3", "Did you mean heads"),
        (
            "bert_architecture.heads = 'x'",
            "bert_architecture.heads is 'x', where an integer",
        ),
    ],
)
def test_a_name_that_is_misspelt(line, says):
    message = refusal(line)
    assert says in message and HERE in message and line in message, message


@pytest.mark.parametrize(
    "line", ["nonsense", "Mesh.axes =", "Mesh.axes = 'data:4", "train.steps = = 3"]
)
def test_text_that_is_no_setting(tmp_path, line):
    message = refusal("steps = 2", line)
    assert f"In --gin_param line 2\n    {line}\n" in message, message
    assert "written as NAME = VALUE" in message
    path = tmp_path / "mine.gin"
    path.write_text(f"steps = 2\n{line}\n", encoding="utf-8")
    message = refusal(files=("lm_stdlib.gin", str(path)))
    assert f'In file "{path}", line 2\n    {line}\n' in message, message


@pytest.mark.parametrize(
    "line, wants",
    [
        (
            "Architecture.heads = 'four'",
            "Architecture.heads is 'four', where an integer is expected",
        ),
        ("Architecture.dropout = '0.1'", "a number"),
        ("train.steps = 1e3", "an integer"),
        ("train.steps = True", "an integer"),
        ("train.jit = 'yes'", "True or False"),
        ("train.clip_norm = 'none'", "a number or None"),
        ("Mesh.axes = 8", "a string"),
        ("train.profile = (1, 2, 3)", "(an integer, an integer) or None"),
        ("train.optimizer = 3", "a function or class, as in @name without brackets"),
        ("train.optimizer = @AdamW()", "without brackets"),
        ("train.model = @LanguageModel()", "without brackets"),
        ("train.data = @ByteText", "a Data, as in @name() with brackets"),
        ("train.mesh = @Mesh", "a Mesh, as in @name() with brackets"),
        ("train.steps = @warmup_cosine()", "an integer"),
        ("train.batch_size = @AdamW", "an integer"),
        ("Mesh.within_host = (1, 2)", "Sequence[str]"),
    ],
)
def test_a_value_of_another_type(line, wants):
    message = refusal(line)
    assert wants in message and HERE in message and line in message, message


def test_the_error_of_a_macro_has_both_locations():
    message = refusal("steps = 'four'")
    assert message.startswith("train.steps is 'four', where an integer is expected")
    assert "--gin_param line 1\n    steps = 'four'" in message
    assert re.search(r"lm_stdlib.gin\", line 16\n    train.steps = %steps", message)


@pytest.mark.parametrize(
    "line",
    [
        "Architecture.dropout = 0",
        "train.clip_norm = None",
        "train.jit = 1",
        "train.profile = (3, 4)",
        "Mesh.devices = ['cpu:0', 'cpu:1']",
        "Evaluation.num_examples = None",
        "Mesh.within_host = 'data'",
        "Mesh.layout = {'batch': 'data'}",
        "AdamW.learning_rate = 0.1",
        "train.model = @EncoderDecoder",
        "ByteText.corpus = @data.python_library",
        "Decoder.eos_id = (1, 2)",
        "AdamW.decay_mask = None",
    ],
)
def test_values_that_fit(line):
    configure(["lm_stdlib.gin"], [line])


def test_files_may_hold_names_that_one_run_does_not_use(tmp_path):
    shared = tmp_path / "shared.gin"
    shared.write_text(
        "include 'lm_stdlib.gin'\nwidth_of_all = 32\nother/Architecture.blocks = 2\n"
    )
    configure([str(shared)], ["train.steps = 3", "warmup_cosine.total_steps = 3"])
    gin.clear_config()
    shared.write_text("include 'lm_stdlib.gin'\n\nstps = 32\n")
    message = refusal(files=[str(shared)])
    assert (
        'shared.gin", line 3\n    stps = 32' in message
        and "Did you mean steps?" in message
    )


def test_the_config_of_a_run_can_be_read(tmp_path):
    configure(["lm_stdlib.gin"], ["train.steps = 3", "warmup_cosine.total_steps = 3"])
    (tmp_path / "config.gin").write_text("step = 7\n" + gin.config_str())
    gin.clear_config()
    configure([str(tmp_path / "config.gin")], [])


@pytest.mark.every_case
@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").rglob("*.gin")), ids=lambda p: p.stem
)
def test_all_that_is_shipped_passes(path):
    configure(["lm_stdlib.gin", str(path)], [])


@pytest.mark.parametrize(
    "line, says",
    [
        ("Architecture.norm = 'rmss'", "Architecture.norm is 'rmss'"),
        ("Architecture.heads = 0", "Architecture.heads is 0"),
        ("Architecture.dropout = 1.5", "Architecture.dropout is 1.5"),
        ("Architecture.moe_every = 5", "Architecture.moe_every is 5"),
        ("Architecture.blocks = 'two'", "Architecture.blocks is 'two'"),
        ("train.batch_size = 0", "train.batch_size is 0"),
        ("train.steps = -1", "train.steps is -1"),
        ("train.save_every = 0", "train.save_every is 0"),
        ("train.microbatches = 3", "train.microbatches"),
        ("train.profile = (3, 2)", "train.profile is (3, 2)"),
        ("sample.max_new_tokens = 0", "sample.max_new_tokens is 0"),
        ("sample.temperature = -1.0", "sample.temperature is -1.0"),
        ("sample.prompt = ''", "sample.prompt is empty"),
        ("step = 3", "Did you mean steps?"),
    ],
)
def test_the_command_refuses_it_before_anything_runs(tmp_path, capsys, line, says):
    params = [
        line,
        *(x for x in small(tmp_path) if x.split(" = ")[0] != line.split(" = ")[0]),
    ]
    code, out, err = run_train(capsys, tmp_path / "run", params)
    assert code == 1 and not out, out
    assert says in err and HERE in err and line in err and "Traceback" not in err, err
    assert not (tmp_path / "run").exists()
