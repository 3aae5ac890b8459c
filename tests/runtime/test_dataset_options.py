"""Datasets end when they are closed: none that meshtf reads has TensorFlow's
autotuner.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf

import meshtf as mtf

COUNTED = """
import os, time
import tensorflow as tf, meshtf as mtf

def started(dataset):
  before = len(os.listdir("/proc/self/task"))
  iterator = iter(dataset)
  next(iterator)
  time.sleep(0.2)
  return len(os.listdir("/proc/self/task")) - before

numbers = tf.data.Dataset.range(1000)
next(iter(numbers.prefetch(1)))
print(started(mtf.cluster.without_autotuning(numbers)), started(numbers))
"""


class Recorded:
    """A dataset that keeps the options which somebody reads it with."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.options = None

    def with_options(self, options):
        self.options = options
        return self.dataset.with_options(options)


def test_an_untuned_dataset_is_the_same_whatever_is_made_of_it():
    tuned = tf.data.Options()
    tuned.autotune.enabled = True
    dataset = tf.data.Dataset.range(5).map(
        lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE
    )
    later = (
        mtf.cluster.without_autotuning(dataset.with_options(tuned))
        .prefetch(tf.data.AUTOTUNE)
        .take(3)
    )
    assert later.options().autotune.enabled is False
    assert [int(x) for x in later] == [1, 2, 3]


def test_hosts_read_untuned():
    sections = []

    def section(w, n):
        rows = tf.range(w * 4 // n, (w + 1) * 4 // n)
        sections.append(Recorded(tf.data.Dataset.from_tensors({"x": rows})))
        return sections[-1]

    reader = mtf.HostReader(
        mtf.Mesh("data:2", "batch:data"), {"x": "batch"}, 4, section
    )
    assert next(reader)["x"].numpy().tolist() == [0, 1, 2, 3]
    assert [each.options.autotune.enabled for each in sections] == [False]


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_no_thread_tunes_an_iterator():
    done = subprocess.run(
        [sys.executable, "-c", COUNTED], check=True, capture_output=True, text=True
    )
    untuned, tuned = map(int, done.stdout.split())
    assert untuned < tuned
