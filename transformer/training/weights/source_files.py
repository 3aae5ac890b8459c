"""What a folder of Hugging Face transformers has besides tensors, and a converted model keeps:
config.json, settings of generation, and the tokenizer's files.

    model.source_files = read_source_files("llama", config, dtype="bfloat16")
    write_source_files(model.source_files, "out")          # all but config.json
    source_config(model.source_files)["eos_token_id"]

A training run has them in the folder `hugging_face`; a run that begins with the checkpoint of
another one copies that folder. So they are there when a model is converted back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "hugging_face"  # in the folder of a run
CONFIG = "config.json"
# The files of tokenizers, and settings of generation.
_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
)


def read_source_files(
    folder: str | Path, config: Mapping[str, Any], dtype: str
) -> dict[str, bytes]:
    """Returns the contents of the files of a folder, by name.

    Args:
      folder: the folder.
      config: its config.json.
      dtype: the data type of its tensors, which is kept in config.json.
    """
    files = {CONFIG: json.dumps({**config, "dtype": dtype}).encode()}
    for name in _FILES:
        path = Path(folder, name)
        if path.is_file():
            files[name] = path.read_bytes()
    return files


def source_config(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns the settings of the config.json among files; {} without one."""
    return json.loads(files.get(CONFIG, b"{}"))


def write_source_files(files: Mapping[str, bytes], folder: str | Path) -> None:
    """Writes all files but config.json to an existing folder."""
    for name, contents in files.items():
        if name != CONFIG:
            Path(folder, name).write_bytes(contents)


def read_run_files(folder: str | Path) -> dict[str, bytes]:
    """Returns the contents of the files in the folder of a run, by name; {} without any."""
    paths = Path(folder, FOLDER).glob("*")
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def write_run_files(files: Mapping[str, bytes], folder: str | Path) -> None:
    """Writes files for `read_run_files`, to the folder of a run; nothing without files."""
    if files:
        Path(folder, FOLDER).mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        Path(folder, FOLDER, name).write_bytes(contents)
