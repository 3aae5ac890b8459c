"""Trains a language model, or goes on training it.

    python -m transformer.train                                      # configs/lm_stdlib.gin
    python -m transformer.train --gin_file=tensor_parallel.gin
    python -m transformer.train --gin_param='Mesh.axes = "data:8"' --model_dir=runs/data_8

The same command again goes on from the last checkpoint in `model_dir`. No configurable lives here:
gin would see a module that is run with -m twice.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import gin
from absl import app, flags, logging

from transformer.quiet import quiet_start

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")     # before TensorFlow is imported
with quiet_start():
  import meshtf as mtf
  from transformer import config_files, data, training

_GIN_FILE = flags.DEFINE_multi_string(
    "gin_file", ["lm_stdlib.gin"], "Configuration: a path, or the name of a file in configs/; the "
    "settings of later ones win.")
_GIN_PARAM = flags.DEFINE_multi_string(
    "gin_param", [], 'One more setting, such as \'Mesh.axes = "data:8"\'.')
_MODEL_DIR = flags.DEFINE_string(
    "model_dir", None, "Where checkpoints and metrics are; default: runs/ and the name of the last "
    "gin_file.")


class ConfigError(ValueError):
  """A configuration that gin cannot read."""


def main(argv: Sequence[str]) -> None:
  """Reads flags and configuration, and trains."""
  if len(argv) > 1:
    _leave(f"{argv[1]!r} is not a flag: all settings are flags, such as --gin_file=lm_stdlib.gin.")
  model_dir = _MODEL_DIR.value or str(Path("runs", Path(_GIN_FILE.value[-1]).stem))
  try:
    configure(_GIN_FILE.value, _GIN_PARAM.value)
    training.train(model_dir)
  except (mtf.MeshtfError, data.CorpusError, ConfigError) as error:
    text = re.sub(r"\n  In call to configurable .*", "", str(error))     # gin's, of no use here
    _leave(f"{type(error).__name__}: {text}")
  except KeyboardInterrupt:
    found = mtf.latest_checkpoint(model_dir)
    _leave("\nInterrupted. The same command " + (
        f"goes on from step {found[0]}, saved in {model_dir}." if found else
        f"begins anew: {model_dir} has no checkpoint yet."))


def configure(files: Sequence[str], params: Sequence[str]) -> None:
  """Gives gin the settings of files and of single lines. Raises ConfigError, saying where it is."""
  gin.add_config_file_search_path(config_files.config_folder())
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.FATAL)     # gin logs an error where it looks for an include first
  try:
    gin.parse_config_files_and_bindings([config_files.find_config(f) for f in files], list(params))
  except (ValueError, TypeError, SyntaxError, ImportError, OSError) as error:
    raise ConfigError(str(error).replace("bindings string", "--gin_param")) from None
  finally:
    logging.set_verbosity(verbosity)


def _leave(message: str) -> None:
  print(message, file=sys.stderr)
  sys.exit(1)


if __name__ == "__main__":
  app.run(main)
