"""Recognizes files that other libraries wrote: folders of Hugging Face transformers, Google's
BERT, and other checkpoints of TensorFlow.

    foreign_format("uncased_L-12_H-768_A-12")    # "... has Google's BERT. To convert it: ..."
    foreign_format("runs/lm")                    # ""
"""

from __future__ import annotations

import glob
import os

from meshtf.errors import CheckpointError
from meshtf.names.arguments import as_path

_CONVERT = (
    "python -m transformer.convert --from={kind} --model_dir={folder} --output=FOLDER"
)
_TENSORFLOW_INDEX = ".index"
_BERT_CONFIG = "bert_config.json"
# Weights in a folder of Hugging Face transformers that are not read.
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def foreign_format(path: str) -> str:
    """Returns which other library has written a folder or file, and how to convert it, as text;
    "" if that is not known.

    Args:
      path: a folder, a file in it, or the common start of the paths of a TensorFlow
        checkpoint, such as "uncased_L-12_H-768_A-12/bert_model.ckpt".
    """
    path = as_path("path", path)
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    if folder != path and not glob.glob(f"{glob.escape(path)}*"):
        return ""  # neither the path nor files that begin with it
    parent, name = os.path.split(os.path.abspath(folder))
    if name == "variables" and os.path.isfile(os.path.join(parent, "saved_model.pb")):
        return (
            f"{folder} has the variables of a SavedModel: tf.saved_model.load reads it."
        )
    indices = glob.glob(os.path.join(glob.escape(folder), f"*{_TENSORFLOW_INDEX}"))
    # Our own checkpoints have one with this name.
    indices = [name for name in indices if os.path.basename(name) != "variables.index"]
    if indices and os.path.isfile(os.path.join(folder, _BERT_CONFIG)):
        command = _CONVERT.format(kind="google_bert", folder=folder)
        return (
            f"{folder} has a checkpoint of Google's BERT. To convert it:\n  {command}"
        )
    if indices:
        prefix = indices[0].removesuffix(_TENSORFLOW_INDEX)
        return (
            f"{prefix} is a checkpoint of TensorFlow. tf.train.load_checkpoint reads its "
            "tensors, and Variable.assign takes them; Google's BERT, with bert_config.json "
            "beside it, is converted by python -m transformer.convert --from=google_bert."
        )
    if not os.path.isfile(os.path.join(folder, "config.json")):
        return ""
    if glob.glob(os.path.join(glob.escape(folder), "*.safetensors*")):
        command = _CONVERT.format(kind="hf", folder=folder)
        return (
            f"{folder} is a folder of Hugging Face transformers. To convert it:\n"
            f"  {command}"
        )
    if any(os.path.isfile(os.path.join(folder, name)) for name in _PICKLED):
        return (
            f"{folder} is a folder of Hugging Face transformers with pickled weights, which "
            "are not read: save it with safe_serialization=True, then python -m "
            "transformer.convert --from=hf."
        )
    return ""


def refuse_foreign(path: str) -> None:
    """Raises CheckpointError if another library has written a folder or file."""
    foreign = foreign_format(path)
    if foreign:
        raise CheckpointError(
            f"there is no checkpoint of meshtf in {path}.\n  {foreign}"
        )
