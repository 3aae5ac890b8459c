"""A training step of the language model of `transformer` under eight layouts of eight
mesh positions.

Example:

    for name, case in LAYOUTS.items():
      step, args = case.build(SMALL, devices="separate:8")
      step(*args)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Size:
    """The sizes of the model and of its batch."""

    vocab: int
    d_model: int
    d_ff: int
    heads: int
    d_kv: int
    blocks: int
    batch: int
    length: int


SMALL = Size(
    vocab=64,
    d_model=16,
    d_ff=32,
    heads=8,
    d_kv=4,
    blocks=1,
    batch=8,
    length=8,
)
MEDIUM = Size(
    vocab=2048,
    d_model=256,
    d_ff=1024,
    heads=8,
    d_kv=32,
    blocks=3,
    batch=16,
    length=128,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A mesh and its layouts: the arguments of `mtf.Mesh`."""

    axes: str
    layout: str = ""
    variable_layout: str = ""
    optimizer_layout: str = ""

    def build(
        self,
        size: Size,
        devices: str | None = None,
        dropout: float = 0.1,
        microbatches: int = 1,
        **settings: Any,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Returns a training step, a mtf.function that has not been called, and its arguments.

        Args:
          size: the sizes of the model.
          devices: the devices of the mesh.
          dropout: the dropout rate.
          microbatches: the number of microbatches.
          **settings: further fields of `Architecture`, such as scanned=True.
        """
        mesh = mtf.Mesh(
            self.axes,
            layout=self.layout,
            variable_layout=self.variable_layout,
            optimizer_layout=self.optimizer_layout,
            devices=devices,
        )
        model = LanguageModel(
            mesh,
            Architecture(
                vocab=size.vocab,
                d_model=size.d_model,
                d_ff=size.d_ff,
                heads=size.heads,
                d_kv=size.d_kv,
                blocks=size.blocks,
                dropout=dropout,
                **settings,
            ),
        )
        ids = np.random.default_rng(0).integers(
            0, size.vocab, (size.batch, size.length + 1), np.int32
        )
        batch = {
            "tokens": np.ascontiguousarray(ids[:, :-1]),
            "targets": np.ascontiguousarray(ids[:, 1:]),
        }
        trainer = Trainer(model, microbatches=microbatches)
        # `_step` is the mtf.function that `trainer.step` calls with the index of the step.
        return trainer._step, (batch, np.int32(0))


# The rules of tensor parallelism.
_TENSOR_PARALLEL = "heads:model; d_ff:model; vocab:model"
ONE = Case(axes="")  # one mesh position
LAYOUTS = {
    "data": Case("data:8", "batch:data"),
    "tensor": Case("model:8", _TENSOR_PARALLEL),
    "data and tensor, 4x2": Case("data:4; model:2", "batch:data;" + _TENSOR_PARALLEL),
    "data and tensor, 2x4": Case("data:2; model:4", "batch:data;" + _TENSOR_PARALLEL),
    "length": Case("seq:8", "length:seq"),
    "ZeRO-1": Case("data:8", "batch:data", optimizer_layout="d_model:data"),
    "FSDP": Case("data:8", "batch:data", variable_layout="d_model:data"),
    "all of it, 2x2x2": Case(
        "data:2; seq:2; model:2",
        "batch:data; length:seq;" + _TENSOR_PARALLEL,
        variable_layout="d_model:data",
    ),
}
