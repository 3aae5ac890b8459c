"""Known models: the same numbers, under other libraries' names in their files, and
under ours.

    model = convert.read_model("bert-base-uncased", mesh)       # of Hugging Face, on any mesh
    convert.write_model(model, "out")
    convert.write_run(model, "runs/bert")                       # our checkpoint and config.gin

    rules                names and axes of tensors, as tables
    families/            these tables, and what config.json says, for each kind of model
    safetensors_files    safetensors files and their index
    hugging_face         folders of Hugging Face transformers
    training_runs        folders of ours

`python -m transformer.convert` does it from the command line.
"""

from transformer.convert.hugging_face import read_model, write_model
from transformer.convert.training_runs import read_run, write_run

__all__ = ["read_model", "read_run", "write_model", "write_run"]
