"""The base class of what `tf.train.Checkpoint` and `tf.saved_model.save` walk through."""

from __future__ import annotations

from tensorflow.python.trackable.base import Trackable as Trackable
