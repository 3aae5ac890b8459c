"""The base class of objects that `tf.train.Checkpoint` and `tf.saved_model.save` visit."""

from __future__ import annotations

from tensorflow.python.trackable.base import Trackable as Trackable
