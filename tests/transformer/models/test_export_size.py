"""A module is of one replica: its ops are the same for 8 and for 2,048, and so is its
size but for the tables that say which replicas exchange with which."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import tensorflow as tf

import meshtf as mtf
from benchmarks.spmd import export as benchmark
from tests.support.stablehlo_traffic import text_of
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer


@pytest.mark.parametrize("name", benchmark.CASES)
def test_only_the_tables_of_replicas_grow(name):
    few, many = benchmark.cost(name, 8), benchmark.cost(name, 2048)
    assert many.ops == few.ops > 100
    axes = benchmark.CASES[name].axes.count(":")
    tables = 2**axes - 1  # of groups along each axis, and along several
    assert many.module - few.module <= (2048 - 8) * 8 * tables + 8 * 1024


def ops(replicas: int) -> Counter[str]:
    """Returns how often each op stands in the module of a step."""
    mesh = mtf.Mesh(
        f"data:{replicas // 4}; model:4",
        "batch:data; heads:model; d_ff:model",
        optimizer_layout="vocab:model",
        devices="abstract",
    )
    model = LanguageModel(
        mesh, Architecture(vocab=16, d_model=8, d_ff=16, heads=4, d_kv=2, blocks=1)
    )
    text = tf.TensorSpec([replicas, 8], tf.int32)
    module = Trainer(model).export({"tokens": text, "targets": text}).module
    return Counter(re.findall(r"\b(?:stablehlo|mhlo)\.\w+", text_of(module)))


def test_the_ops_are_the_same():
    few, many = ops(8), ops(2048)
    assert many == few
    assert few["stablehlo.all_reduce"] > 10 and few["stablehlo.all_gather"] == 2
