"""Gin in the programs that train: settings have an effect, and none is taken without a
word.
"""

from __future__ import annotations

import numpy as np
import pytest
from absl import flags

import meshtf as mtf
from examples.bert import run_classifier, run_pretraining, run_squad
from examples.bert.shared import fine_tuning
from tests.examples.bert.test_programs import ask, classify, pretrain
from transformer.training.loop import Loop
from transformer.training.reporting import metrics

PROGRAMS = {
    "pretrain": (pretrain, run_pretraining),
    "classify": (classify, run_classifier),
    "ask": (ask, run_squad),
}


def losses(folder, output="out"):
    return [line["loss"] for line in metrics.read(folder / output) if "loss" in line]


@pytest.fixture
def recorded_runs(monkeypatch):
    """Collects the models and optimizers that programs make."""
    results = []
    real = fine_tuning.Trainer
    monkeypatch.setattr(
        fine_tuning,
        "Trainer",
        lambda model, optimizer, **settings: (
            results.append((one := real(model, optimizer, **settings), settings)),
            one,
        )[1],
    )
    return results


@pytest.fixture
def no_steps(monkeypatch):
    """Lets programs take no steps."""
    monkeypatch.setattr(Loop, "run", lambda *_: None)


def classify_by(folder, params=(), files=(), **settings):
    """Runs the classifier with settings of gin; of the flags, those that are None are
    not given.
    """
    named = {"gin_file": list(files)} if files else {}
    classify(folder, gin_param=list(params), **named, **settings)


@pytest.fixture(autouse=True)
def left_out(monkeypatch):
    """Lets None in `common` mean that a flag is not given."""
    import tests.examples.bert.test_programs as programs

    real = programs.with_flags
    monkeypatch.setattr(
        programs,
        "with_flags",
        lambda **values: real(
            **{name: value for name, value in values.items() if value is not None}
        ),
    )


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    "flags, says",
    [
        (
            {"gin_param": ["nonsense = 3"]},
            "nonsense is a name that no setting refers to",
        ),
        ({"gin_param": ["Mesh.axees = 'data:2'"]}, "Did you mean axes"),
        ({"gin_param": ["Mesh.axes = 3"]}, "Mesh.axes is 3, where a string"),
        ({"gin_param": ["train.model = @Bert"]}, "train.model has no effect here"),
        (
            {"gin_param": ["Evaluation.num_examples = 3"]},
            "Evaluation.num_examples has no effect here",
        ),
        ({"gin_param": ["LAMB.beta_1 = 0.3"]}, "LAMB.beta_1 has no effect here"),
        (
            {"gin_param": ["Architecture.dropout = 0.3"]},
            "BERT's sizes are set by bert_architecture.dropout",
        ),
        ({"gin_param": ["bert_architecture.headz = 4"]}, "takes no 'headz'"),
        ({"gin_file": ["nowhere.gin"]}, "there is no gin file 'nowhere.gin'"),
        (
            {"cluster": "host:1"},
            "--cluster=host:1: this program runs on the devices of one host",
        ),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(
    folder, capsys, program, flags, says
):
    with pytest.raises(SystemExit):
        PROGRAMS[program][0](folder, **flags)
    err = capsys.readouterr().err
    assert says in err and "Traceback" not in err, err
    assert "gin_param" not in flags or flags["gin_param"][0] in err
    assert not (folder / "out").exists()


def test_a_mesh_and_a_layout_of_gin(folder, capsys, recorded_runs, no_steps):
    (folder / "mine.gin").write_text(
        "Mesh.axes = 'data:2;model:2'\n"
        "Mesh.variable_layout = 'd_model:data'\n"
        "Mesh.layout = 'batch:data; heads:model'\nMesh.strict = True\n"
    )
    classify_by(folder, files=[str(folder / "mine.gin")])
    ((one, _),) = recorded_runs
    mesh = one.model.mesh
    assert (
        str(mesh) == "data:2;model:2" and repr(mesh.layout) == "batch:data; heads:model"
    )
    assert mesh.strict and mesh.variable_layout.axes("d_model") == ("data",)
    assert (
        "mesh     data:2;model:2, layout batch:data; heads:model"
        in capsys.readouterr().out
    )


def test_the_layout_that_goes_with_gins_axes(folder, recorded_runs, no_steps):
    classify_by(folder, ["Mesh.axes = 'model:2'"])
    ((one, _),) = recorded_runs
    mesh = one.model.mesh
    assert repr(mesh.layout) == "batch:data; heads:model; d_ff:model; vocab:model"
    assert mesh.optional_axes == ("data", "model")


def test_a_flag_that_is_given_wins_and_says_so(folder, capsys, recorded_runs, no_steps):
    classify_by(
        folder,
        [
            "Mesh.axes = 'data:4'",
            "train.batch_size = 8",
            "AdamW.learning_rate = 0.5",
            "Mesh.seed = 3",
        ],
        mesh="data:2",
    )
    ((one, _),) = recorded_runs
    out = capsys.readouterr().out
    assert str(one.model.mesh) == "data:2"
    assert "gin      --mesh=data:2 wins over Mesh.axes = 'data:4'" in out
    assert "gin      --train_batch_size=4 wins over train.batch_size = 8" in out
    assert "gin      --learning_rate=0.01 wins over AdamW.learning_rate = 0.5" in out
    assert (
        callable(one.optimizer.learning_rate) and one.model.mesh.seed == 3 == one.seed
    )


def test_two_settings_of_one_flag_that_differ(folder, capsys):
    with pytest.raises(SystemExit):
        classify_by(folder, ["Mesh.seed = 3", "train.seed = 4"])
    assert (
        "Mesh.seed is 3: in this program both are --random_seed"
        in capsys.readouterr().err
    )


def test_sizes_of_gin_win_over_those_of_the_file(
    folder, capsys, recorded_runs, no_steps
):
    classify_by(
        folder,
        [
            "bert_architecture.blocks = 2",
            "bert_architecture.heads = 4",
            "bert_architecture.d_ff = 16",
            "Architecture.recompute = True",
            "Architecture.attention = 'blockwise'",
            "Architecture.block_length = 8",
        ],
    )
    a = recorded_runs[0][0].model.architecture
    assert (a.blocks, a.heads, a.d_kv, a.d_model, a.d_ff) == (2, 4, 2, 8, 16)
    assert a.recompute and (a.attention, a.block_length) == ("blockwise", 8)
    out = capsys.readouterr().out
    assert (
        f"bert_architecture.blocks = 2 wins over 1 of {folder / 'bert_config.json'}"
        in out
    )
    assert "bert_architecture.d_ff" not in out  # they agree


def test_sizes_only_of_gin(folder, capsys, recorded_runs, no_steps):
    sizes = [
        "vocab = 40",
        "d_model = 8",
        "d_ff = 16",
        "heads = 2",
        "d_kv = 4",
        "blocks = 1",
        "max_length = 32",
    ]
    classify_by(
        folder, [f"bert_architecture.{line}" for line in sizes], bert_config_file=None
    )
    assert repr(recorded_runs[0][0].model.architecture).startswith(
        "Architecture(vocab=40, d_model=8, d_ff=16"
    )
    flags.FLAGS["bert_config_file"].unparse()
    with pytest.raises(SystemExit):
        classify_by(folder, bert_config_file=None)
    assert "--bert_config_file, or bind bert_architecture" in capsys.readouterr().err


def test_an_optimizer_of_gin(folder, capsys, recorded_runs, no_steps):
    classify_by(
        folder,
        [
            "train.optimizer = @Adafactor",
            "Adafactor.beta_1 = 0.3",
            "Adafactor.learning_rate = @warmup_cosine()",
            "warmup_cosine.peak = 0.5",
            "warmup_cosine.warmup_steps = 1",
            "warmup_cosine.total_steps = 4",
            "train.clip_norm = None",
            "train.microbatches = 2",
        ],
        learning_rate=None,
    )
    ((one, settings),) = recorded_runs
    assert (
        isinstance(one.optimizer, mtf.optimizers.Adafactor)
        and one.optimizer.beta_1 == 0.3
    )
    assert settings["clip_norm"] is None and one.microbatches == 2
    mesh = one.model.mesh
    rate = one.optimizer.rate_at(mtf.asarray(mesh, np.int32(1), ""))
    assert float(rate.numpy()) == pytest.approx(0.5)


def test_settings_of_the_flags_optimizer(folder, recorded_runs, no_steps):
    classify_by(
        folder,
        ["AdamW.beta_2 = 0.9", "AdamW.weight_decay = 0.5", "AdamW.epsilon = 1e-3"],
    )
    optimizer = recorded_runs[0][0].optimizer
    assert (optimizer.beta_2, optimizer.weight_decay, optimizer.epsilon) == (
        0.9,
        0.5,
        1e-3,
    )


def test_a_flag_that_the_optimizer_does_not_take(folder, capsys):
    with pytest.raises(SystemExit):
        classify_by(folder, ["train.optimizer = @SGD"], weight_decay=0.1)
    assert "--weight_decay=0.1: SGD has no weight_decay" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        classify_by(folder, ["train.optimizer = @SGD", "SGD.momentun = 0.9"])
    assert "Did you mean momentum" in capsys.readouterr().err


def test_unused_settings_of_a_file_are_printed(folder, capsys, recorded_runs, no_steps):
    classify_by(
        folder,
        [
            "bert_architecture.vocab = 40",
            "bert_architecture.max_length = 32",
            "bert_architecture.d_model = 16",
            "bert_architecture.d_ff = 32",
        ],
        files=["models/bert_large_lamb.gin"],
        learning_rate=None,
        train_batch_size=None,
        bert_config_file=None,
    )
    ((one, _),) = recorded_runs
    assert (
        isinstance(one.optimizer, mtf.optimizers.LAMB)
        and one.model.architecture.scanned
    )
    assert flags.FLAGS.train_batch_size != 32768
    out = capsys.readouterr().out
    (unused_line,) = (
        line
        for line in out.splitlines()
        if line.startswith("gin      without effect here")
    )
    for name in (
        "train.data",
        "train.model",
        "ShapesOnly.features",
        "BertFeatures.length",
        "AdamW.weight_decay",
    ):
        assert name in unused_line
    assert "Mesh.axes" not in unused_line and "LAMB" not in unused_line


@pytest.mark.slow
def test_what_is_learned_is_what_flags_would_make_it(folder):
    classify_by(folder, mesh="data:2;model:2", optimizer="lamb", train_batch_size=8)
    classify_by(
        folder,
        [
            "Mesh.axes = 'data:2;model:2'",
            "train.optimizer = @LAMB",
            "train.batch_size = 8",
        ],
        output="gin",
        train_batch_size=None,
    )
    assert losses(folder, "gin") == losses(folder) and losses(folder)


@pytest.mark.slow
def test_pretraining_and_questions_heed_gin(folder, capsys):
    pretrain(
        folder,
        gin_param=["Mesh.axes = 'data:2'", "AdamW.beta_2 = 0.9", "train.keep = 1"],
    )
    assert "mesh     data:2, layout batch:data" in capsys.readouterr().out
    assert len(list((folder / "out").glob("step_*"))) == 1
    ask(
        folder,
        "answers",
        gin_param=["Mesh.axes = 'model:2'", "bert_architecture.blocks = 2"],
    )
    assert "mesh     model:2, layout batch:data; heads:model" in capsys.readouterr().out


def words(folder):
    """Writes other words into the vocabulary, as many as there were. The records of
    pretraining are made again when they are needed.
    """
    (folder / "rows.tfrecord").unlink(missing_ok=True)
    path = folder / "vocab.txt"
    lines = path.read_text().split()
    path.write_text("".join(f"{word}\n" for word in [*lines[:5], *reversed(lines[5:])]))


@pytest.mark.slow
def test_a_finished_run_says_so_and_what_is_different(folder, capsys):
    pretrain(folder)
    capsys.readouterr()
    pretrain(folder)
    out = capsys.readouterr().out
    assert "All 3 steps are done. No steps are left" in out and "going on" not in out
    pretrain(folder, gin_param=["AdamW.beta_2 = 0.5"])
    out = capsys.readouterr().out
    assert "changed  AdamW.beta_2: 0.999 before, 0.5 now" in out
    assert "All 3 steps are done." in out and "output_dir" in out
    assert "The changed settings have no effect: no steps are left." in out
    pretrain(folder, num_train_steps=4)
    assert "continuing from step 3" in capsys.readouterr().out
    words(folder)
    with pytest.raises(SystemExit):
        pretrain(folder, num_train_steps=5)
    assert "was trained with another vocabulary" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_of_another_vocabulary_is_no_beginning(folder, capsys):
    pretrain(folder, "pretrained")
    words(folder)
    with pytest.raises(SystemExit):
        classify(folder, init_checkpoint=str(folder / "pretrained"))
    err = capsys.readouterr().err
    assert "--init_checkpoint=" in err and "was trained with another vocabulary" in err
    assert not (folder / "out").exists()


def test_an_occupied_folder_is_refused(folder, capsys):
    (folder / "out").mkdir()
    (folder / "out" / "letter.txt").write_text("x")
    with pytest.raises(SystemExit):
        classify(folder)
    assert "--output_dir=" in (err := capsys.readouterr().err) and "letter.txt" in err
