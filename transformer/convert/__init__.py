"""Converts models between Hugging Face transformers and meshtf, with identical values.

    model = convert.read_model("bert-base-uncased", mesh)       # Hugging Face, on any mesh
    convert.write_model(model, "out")
    convert.write_run(model, "runs/bert")                       # a checkpoint and config.gin

In this package, a *tensor* belongs to Hugging Face's model, and a *variable* to ours.

    rules                tables of rules: tensor, variable, and axes of the tensor
    families/            the rules and the settings of config.json of each kind of model
    canonical_names      names of tensors in files of older versions
    config_settings      the settings of a config.json
    safetensors_files    safetensors files and their index
    hugging_face         folders of Hugging Face transformers
    training_runs        folders of training runs
    vocabulary_files     vocabularies in folders of Hugging Face transformers

`python -m transformer.convert` is the command.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer.convert.hugging_face import read_model, write_model
    from transformer.convert.training_runs import read_run, write_run

__all__ = ["read_model", "read_run", "write_model", "write_run"]
# Public function -> the module of this package that defines it.
_MODULES = {
    "read_model": "hugging_face",
    "write_model": "hugging_face",
    "read_run": "training_runs",
    "write_run": "training_runs",
}


def __getattr__(name: str) -> Any:
    """Imports a public function at its first use.

    So `python -m transformer.convert --help` does not import TensorFlow.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return getattr(module, name)
