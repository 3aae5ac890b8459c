"""Checkpoints of Google's BERT (Devlin et al., 2018): files of TensorFlow 1, with
bert_config.json and vocab.txt beside them.

    config = read_config("uncased_L-12_H-768_A-12")
    tensors = GoogleTensors("uncased_L-12_H-768_A-12")
    model = hugging_face.model_of_tensors(config, tensors, mesh)

They have the tensors of Hugging Face's BERT, under other names: bert_config.json has its
settings, and a kernel is [in, out] where Hugging Face has [out, in].
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import meshtf as mtf
from transformer.convert.hugging_face import model_of_tensors
from transformer.models.base import Model
from transformer.training.weights.source_files import read_source_files

_CONFIG = "bert_config.json"
_INDEX = ".index"
# (regular expression, replacement) from the names of Google's tensors to those of Hugging Face's,
# applied in order.
_RENAMES = [
    (r"^cls/squad/output_weights$", "qa_outputs/weight"),
    (r"^cls/squad/output_bias$", "qa_outputs/bias"),
    (r"^output_weights$", "classifier/weight"),  # of run_classifier.py
    (r"^output_bias$", "classifier/bias"),
    (r"^cls/seq_relationship/output_weights$", "cls/seq_relationship/weight"),
    (r"^cls/seq_relationship/output_bias$", "cls/seq_relationship/bias"),
    (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"/kernel$", "/weight"),
    (r"/gamma$", "/weight"),
    (r"/beta$", "/bias"),
]
# What optimizers keep, and counters: no weights.
_NO_WEIGHTS = re.compile(
    r"/(adam_[mv]|lamb_[mv])(_\d+)?$|^(global_step|.*loss_scale.*)$"
)


class GoogleTensors:
    """The tensors of a checkpoint of Google's BERT, by the names and with the axes that they
    have in Hugging Face's files.

    Args:
      path: the folder, or the common start of the paths of the files, such as
        "uncased_L-12_H-768_A-12/bert_model.ckpt".

    Raises:
      CheckpointError: there is no checkpoint, or it cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        prefix = _prefix(Path(path))
        try:
            self._reader = tf.train.load_checkpoint(prefix)
        except (tf.errors.OpError, ValueError) as error:
            raise mtf.CheckpointError(
                f"the checkpoint {prefix} cannot be read: {error}"
            ) from None
        self._shapes = self._reader.get_variable_to_shape_map()
        self._names = {  # name in Hugging Face's files -> name in Google's
            _hugging_face_name(name): name
            for name in self._shapes
            if not _NO_WEIGHTS.search(name)
        }

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns a tensor as float32."""
        tensor = self._reader.get_tensor(self._names[name])
        if self._is_kernel(name):
            tensor = tensor.T
        return np.asarray(tensor, np.float32)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor, without reading it."""
        shape = tuple(self._shapes[self._names[name]])
        return shape[::-1] if self._is_kernel(name) else shape

    def _is_kernel(self, name: str) -> bool:
        """Returns whether a tensor is the kernel of a dense layer, whose axes are exchanged."""
        return self._names[name].endswith("/kernel")


def read_google_bert(folder: str | Path, mesh: mtf.Mesh, **changes: Any) -> Model:
    """Returns the model of a checkpoint of Google's BERT, on a mesh.

    Args:
      folder: the folder, or the common start of the paths of the files.
      mesh: the mesh of the variables.
      **changes: settings of `Architecture` to replace: see `hugging_face.read_model`.

    Raises:
      CheckpointError: there is no checkpoint, or names or shapes of its tensors do not match
        bert_config.json.
    """
    config = read_config(folder)
    tensors = GoogleTensors(folder)
    if "classifier.weight" in tensors:
        # bert_config.json does not say how many classes there are.
        labels, _ = tensors.shape("classifier.weight")
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
    model = model_of_tensors(config, tensors, mesh, **changes)
    files = read_source_files(_folder(Path(folder)), config, dtype="float32")
    model.source_files = files
    return model


def read_config(path: str | Path) -> dict[str, Any]:
    """Returns the settings of the bert_config.json of a checkpoint.

    Raises:
      CheckpointError: the file cannot be read, or is not JSON.
    """
    config_path = _folder(Path(path)) / _CONFIG
    try:
        config = json.loads(config_path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        foreign = mtf.checkpoints.foreign_format(str(path))
        raise mtf.CheckpointError(
            f"{config_path} cannot be read: {error}.\n  {foreign}".rstrip()
        ) from None
    return {**config, "model_type": "bert"}


def _folder(path: Path) -> Path:
    """Returns the folder of a checkpoint."""
    return path if path.is_dir() else path.parent


def _prefix(path: Path) -> str:
    """Returns the common start of the paths of a checkpoint's files.

    Raises:
      CheckpointError: a folder has no checkpoint, or several.
    """
    if not path.is_dir():
        return str(path).removesuffix(_INDEX)
    indices = sorted(path.glob(f"*{_INDEX}"))
    if len(indices) != 1:
        names = ", ".join(index.name for index in indices) or "none"
        raise mtf.CheckpointError(
            f"{path} must have one checkpoint, bert_model.ckpt.index, but has {names}.\n"
            f"  Of several, name one: --model_dir={path}/bert_model.ckpt."
        )
    return str(indices[0]).removesuffix(_INDEX)


def _hugging_face_name(name: str) -> str:
    """Returns the name of one of Google's tensors in Hugging Face's files."""
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    return name.replace("/", ".")
