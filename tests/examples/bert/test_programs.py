"""The programs from beginning to end, on very little; and what they refuse before they
write.
"""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

import meshtf as mtf
from examples.bert import run_classifier, run_pretraining, run_squad
from examples.bert.shared import fine_tuning, model_setup
from tests.examples.bert.conftest import PIECES, SIZES, with_flags
from tests.examples.bert.datasets.test_pretraining_records import TEXT, create
from transformer.models.bert import Classifier, SpanExtractor

ROWS = "label\ttext_a\ttext_b\n" + "".join(
    f"{kind}\t{text}\t{text}\n"
    for k in range(8)
    for kind, text in (("old", "the old tower"), ("new", f"new river {k % 2}"))
)


def common(folder, output="out", **extra):
    return {
        "bert_config_file": str(folder / "bert_config.json"),
        "max_seq_length": 16,
        "vocab_file": str(folder / "vocab.txt"),
        "output_dir": str(folder / output),
        "train_batch_size": 4,
        "eval_batch_size": 4,
        "learning_rate": 0.01,
        "report_every": 1,
        **extra,
    }


def pretrain(folder, output="out", **extra):
    if not (folder / "rows.tfrecord").exists():
        (folder / "text.txt").write_text(TEXT)
        create(folder, str(folder / "text.txt"))
    steps = extra.pop("num_train_steps", 3)
    with with_flags(
        input_file=str(folder / "rows.tfrecord"),
        max_predictions_per_seq=4,
        do_train=True,
        num_train_steps=steps,
        num_warmup_steps=1,
        **common(folder, output, **extra),
    ):
        run_pretraining.main(["run_pretraining"])


def classify(folder, output="out", **extra):
    if not (folder / "train.tsv").exists():
        for name in ("train", "dev", "test"):
            (folder / f"{name}.tsv").write_text(ROWS)
    with with_flags(
        **{
            "data_dir": str(folder),
            "task_name": "pairs",
            "do_train": True,
            "num_train_epochs": 1.0,
            **common(folder, output, **extra),
        }
    ):
        run_classifier.main(["run_classifier"])


def ask(folder, output="out", **extra):
    path = folder / "questions.json"
    if not path.exists():
        context = "the old tower stands in paris and the new river is wide in berlin"
        qas = [
            {
                "id": str(k),
                "question": "where ?",
                "is_impossible": not text,
                "answers": [{"text": text, "answer_start": context.index(text)}]
                if text
                else [],
            }
            for k, text in enumerate(["paris", "berlin", "", "old tower"])
        ]
        path.write_text(
            json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]})
        )
    with with_flags(
        train_file=str(path),
        predict_file=str(path),
        do_train=True,
        do_predict=True,
        do_eval=True,
        version_2_with_negative=True,
        doc_stride=3,
        max_query_length=4,
        n_best_size=5,
        num_train_epochs=2.0,
        **common(folder, output, **extra),
    ):
        run_squad.main(["run_squad"])


def losses(capsys):
    return [float(x) for x in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]


def saved(folder):
    return {path.name for path in folder.glob("*")}


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_pretraining_is_the_same_on_every_mesh_and_goes_on(folder, capsys, optimizer):
    pretrain(folder, optimizer=optimizer, do_eval=True)
    one = losses(capsys)
    pretrain(folder, "cut", optimizer=optimizer, mesh="data:2;model:2")
    np.testing.assert_allclose(losses(capsys), one, rtol=2e-4)
    pretrain(folder, "cut off", optimizer=optimizer, save_checkpoints_steps=2)
    shutil.rmtree(folder / "cut off" / "step_00000003")
    capsys.readouterr()
    pretrain(folder, "cut off", optimizer=optimizer)
    np.testing.assert_allclose(losses(capsys), one[2:], rtol=1e-5)
    text = (folder / "out" / "eval_results.txt").read_text()
    values = dict(line.split(" = ") for line in text.splitlines())
    assert set(values) == {
        "global_step",
        "masked_lm_loss",
        "masked_lm_accuracy",
        "next_sentence_accuracy",
    }


@pytest.mark.slow
def test_classes_begin_with_the_encoder_that_was_pretrained(folder, capsys):
    pretrain(folder, "pretrained", mesh="data:2;model:2")
    classify(
        folder,
        init_checkpoint=str(folder / "pretrained"),
        do_eval=True,
        do_predict=True,
    )
    output = capsys.readouterr().out
    assert re.search(r"read (\d+) of (\d+) variables", output)
    assert "50.0% with 'new' for all, 100.0% by naive Bayes" in output
    assert saved(folder / "out") >= {
        "eval_results.txt",
        "test_results.tsv",
        "test_predictions.tsv",
        "step_00000004",
    }
    results = np.loadtxt(folder / "out" / "test_results.tsv")
    assert results.shape == (16, 2)
    np.testing.assert_allclose(results.sum(1), 1.0, atol=1e-5)


@pytest.mark.slow
def test_every_line_of_both_files_of_mnli_is_predicted(folder, capsys):
    kinds = ("contradiction", "entailment", "neutral")
    header = "index\tsentence1\tsentence2"
    rows = [f"{k}\tthe tower {k}\tnew river\t{kinds[k % 3]}\n" for k in range(9)]
    labelled = header + "\tgold_label\n" + "".join(rows)
    for name in ("train", "dev_matched", "dev_mismatched"):
        (folder / f"{name}.tsv").write_text(labelled)
    (folder / "test_matched.tsv").write_text(f"{header}\n4\ta\tb\n\n6\tonly\n7\tc\td\n")
    (folder / "test_mismatched.tsv").write_text(f"{header}\n0\tin paris\tin rome\n")
    classify(folder, task_name="mnli", do_eval=True, do_predict=True)
    out, output = folder / "out", capsys.readouterr().out
    lines = (out / "test_matched_predictions.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    ids, predicted = zip(*(line.split("\t") for line in lines[1:]))
    assert ids == ("4", "1", "6", "7") and set(predicted) <= set(kinds)
    results = np.loadtxt(out / "test_matched_results.tsv")
    assert results.shape == (4, 3)
    assert [kinds[k] for k in results.argmax(1)] == list(predicted)
    assert "2 of these lines are blank or malformed" in output
    assert len((out / "test_mismatched_predictions.tsv").read_text().splitlines()) == 2
    text = (out / "eval_results.txt").read_text()
    values = dict(line.split(" = ") for line in text.splitlines())
    assert {"eval_matched_accuracy", "eval_mismatched_loss"} <= set(values)
    assert values["eval_matched_loss"] == values["eval_mismatched_loss"]
    assert "accuracy matched" in output and "accuracy mismatched" in output


@pytest.mark.slow
def test_numbers_are_predicted(folder, capsys):
    rows = [f"{k}\t{'old ' * k}tower\tnew\t{k / 2}\n" for k in range(8)]
    text = "index\tsentence1\tsentence2\tscore\n" + "".join(rows)
    for name in ("train", "dev", "test"):
        (folder / f"{name}.tsv").write_text(text)
    options = {"task_name": "sts-b", "do_eval": True, "do_predict": True}
    classify(folder, mesh="data:2;model:2", **options)
    one = losses(capsys)
    live = ["Mesh.devices = 'spmd:cpu:2'"]
    classify(folder, "live", mesh="data:2", gin_param=live, task_name="sts-b")
    np.testing.assert_allclose(losses(capsys), one, rtol=1e-3)
    values = dict(
        line.split(" = ")
        for line in (folder / "out" / "eval_results.txt").read_text().splitlines()
    )
    assert {"eval_pearson", "eval_spearman", "eval_mean_squared_error"} <= set(values)
    predictions = (folder / "out" / "test_predictions.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in predictions[1:]] == list("01234567")
    numbers = np.loadtxt(folder / "out" / "test_results.tsv")
    right = np.arange(8) / 2
    assert float(values["eval_mean_squared_error"]) == pytest.approx(
        ((numbers - right) ** 2).mean(), rel=1e-3
    )
    # The numbers are close together, and written with six digits.
    assert float(values["eval_pearson"]) == pytest.approx(
        np.corrcoef(numbers, right)[0, 1], abs=0.1
    )


@pytest.mark.slow
def test_questions_are_answered_and_scored(folder, capsys):
    ask(folder)
    out, output = folder / "out", capsys.readouterr().out
    predictions = json.loads((out / "predictions.json").read_text())
    best = json.loads((out / "nbest_predictions.json").read_text())
    odds = json.loads((out / "null_odds.json").read_text())
    assert set(predictions) == set(best) == set(odds) == set("0123")
    for id_, text in predictions.items():
        assert (text == "") == (odds[id_] > 0.0)
        assert best[id_][0]["text"] == text
    assert "exact in percent" in output and "(threshold" in output
    assert not [name for name in saved(out) if "partial" in name]


def test_the_encoder_is_read_and_the_rest_is_drawn(folder, vocabulary):
    with with_flags(**common(folder)):
        config = model_setup.config(vocabulary)
        source = model_setup.build(Classifier, config, labels=3)
        with with_flags(random_seed=5):
            target = fine_tuning.trainer(model_setup.build(SpanExtractor, config), 2, 1)
        drawn = {v.name: v.numpy() for v in target.model.variables}
        path = mtf.checkpoints.save(
            str(folder / "saved"), 7, {v.name: v for v in source.variables}
        )
        with with_flags(init_checkpoint=path):
            fine_tuning.start(target)
    of = {v.name: v.numpy() for v in source.variables}
    for v in target.model.variables:
        expected = of if v.name.startswith("bert/") else drawn
        np.testing.assert_array_equal(v.numpy(), expected[v.name])
    assert target.steps_done == 0
    table = of["bert/embedding/table"]
    assert 0.01 < table.std() < 0.03 and abs(table).max() < 0.06  # initializer_range


def test_a_checkpoint_of_other_sizes_is_refused(folder, vocabulary, capsys):
    with with_flags(**common(folder)):
        small = model_setup.build(Classifier, model_setup.config(vocabulary))
    path = mtf.checkpoints.save(
        str(folder / "saved"), 7, {v.name: v for v in small.variables}
    )
    (folder / "bert_config.json").write_text(
        json.dumps({**SIZES, "intermediate_size": 24, "num_hidden_layers": 2})
    )
    with pytest.raises(SystemExit):
        classify(folder, init_checkpoint=path)
    output = capsys.readouterr().err
    assert "bert/encoder/block_1/" in output
    assert "[d_model:8 d_ff:16] saved, [d_model:8 d_ff:24] now" in output
    assert not (folder / "out").exists()


def test_two_runs_do_not_train_in_one_folder(folder, vocabulary):
    with with_flags(output_dir=str(folder / "out"), do_train=True):
        with mtf.checkpoints.only_run(str(folder / "out")):
            with pytest.raises(mtf.CheckpointError, match="out"):
                fine_tuning.train(None, None, 1)


@pytest.mark.parametrize(
    "flags, says",
    [
        ({"max_seq_length": 64}, "32 positions"),
        ({"task_name": "cola"}, "no column '3'"),
        ({"init_checkpoint": "nowhere"}, "--init_checkpoint=nowhere: there is no such"),
        ({"do_train": False, "do_eval": True}, "the model would have random variables"),
        ({"mesh": "data:two"}, "data:two"),
    ],
)
def test_errors_come_before_anything_is_written(folder, capsys, flags, says):
    with pytest.raises(SystemExit):
        classify(folder, **flags)
    assert says in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_records_of_another_vocabulary_of_equal_size_are_refused(folder, capsys):
    (folder / "text.txt").write_text(TEXT)
    create(folder, str(folder / "text.txt"))
    other_pieces = [*PIECES[:5], *reversed(PIECES[5:])]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in other_pieces))
    with pytest.raises(SystemExit):
        pretrain(folder)
    err = capsys.readouterr().err
    assert "DataError: the records were made with another vocabulary" in err
    assert "vocab.txt" in err and "--vocab_file" in err and "Traceback" not in err
    assert not (folder / "out").exists()
