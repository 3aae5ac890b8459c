"""A drawn training run: a small model learns for two steps in a drawn way, and ends with the
numbers of the plain way: one device, one batch, blocks with variables of their own.

    print(Training(settings={"heads": 2}, microbatches=2, weights="unequal").check())

What the two runs have in common is `Training.model`, `settings`, the batch and the optimizer;
all other fields say how it runs, and change no number.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import meshtf as mtf
from tests.fuzz.judging import Unfit
from tests.fuzz.models import batches
from tests.fuzz.program import Mesh
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.models.bert import Bert, Classifier, SpanExtractor, bert_architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.encoders.bert_variants import MaskedBert, Regressor
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

STEPS = 2
TOLERANCE = 2e-4  # of 1 + the largest number
SIZES = {"vocab": 16, "d_model": 8, "d_ff": 16, "heads": 2, "d_kv": 4, "blocks": 2}
MODELS: Mapping[str, Callable[..., Model]] = {
    "language_model": LanguageModel,
    "encoder_decoder": EncoderDecoder,
    "bert": Bert,
    "masked_bert": MaskedBert,
    "classifier": Classifier,
    "regressor": Regressor,
    "span_extractor": SpanExtractor,
}
# Noise in gradients that are zero but for rounding must not become a step.
OPTIMIZERS: Mapping[str, Callable[..., mtf.optimizers.Optimizer]] = {
    "sgd": functools.partial(mtf.optimizers.SGD, learning_rate=0.1),
    "adamw": functools.partial(
        mtf.optimizers.AdamW, learning_rate=0.01, epsilon=1e-3, weight_decay=0.1
    ),
    "lamb": functools.partial(
        mtf.optimizers.LAMB, learning_rate=0.01, epsilon=1e-3, weight_decay=0.1
    ),
    "adafactor": functools.partial(
        mtf.optimizers.Adafactor,
        learning_rate=0.01,
        epsilon_1=1e-6,
        min_dim_size_to_factor=4,
        weight_decay=0.1,
    ),
}


@dataclasses.dataclass(frozen=True)
class Training:
    """A training run, and how it runs.

    Attributes:
      model: a key of `MODELS`.
      settings: what differs from `SIZES` and the defaults of `Architecture`.
      experts: the count of experts of each block; 0: no mixtures of experts.
      optimizer: a key of `OPTIMIZERS`.
      weights: a key of `batches.WEIGHTS`: which targets count.
      segments: whether examples have several texts, and padding at their end.
      seed: draws the batch.
      mesh: where it runs.
      microbatches: the count of microbatches.
      scanned: whether variables of blocks are stacked.
      recompute: whether activations are computed again.
      padding: the count of tokens of weight 0 after each example.
      examples: the count of examples of weight 0 after the others.
      ignored: whether targets without weight have a negative label in place of a weight.
      copied: whether a deep copy learns, after its original has made a step.
    """

    model: str = "language_model"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    experts: int = 0
    optimizer: str = "sgd"
    weights: str = "none"
    segments: bool = False
    seed: int = 0
    mesh: Mesh = Mesh("")
    microbatches: int = 1
    scanned: bool = False
    recompute: bool = False
    padding: int = 0
    examples: int = 0
    ignored: bool = False
    copied: bool = False

    @property
    def mode(self) -> str:
        """How programs run, as a word of a finding."""
        return "live" if self.mesh.devices.startswith("spmd") else "function"

    @property
    def words(self) -> frozenset[str]:
        """What differs from the defaults."""
        return frozenset(
            f"{name}={value}" if name == "model" else name
            for name, value in self._changes()
        ) | {self.mode}

    def _changes(self) -> list[tuple[str, Any]]:
        """Returns name and value of each field that is not its default."""
        default = Training()
        changes = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != getattr(default, field.name) and field.name != "seed":
                changes.append((field.name, value))
        return changes

    def source(self) -> str:
        """Returns a script that prints what is wrong."""
        arguments = [f"{name}={value!r}" for name, value in self._changes()]
        arguments.append(f"seed={self.seed}")
        lines = ["from tests.fuzz.models.training import Mesh, Training", ""]
        return "\n".join([*lines, f"print(Training({', '.join(arguments)}).check())"])

    def plain(self) -> Training:
        """Returns the same run on one device, as one batch."""
        how = Training()
        return dataclasses.replace(
            self,
            mesh=how.mesh,
            microbatches=how.microbatches,
            scanned=how.scanned,
            recompute=how.recompute,
            padding=how.padding,
            examples=how.examples,
            ignored=how.ignored,
            copied=how.copied,
        )

    def simpler(self) -> Iterator[Training]:
        """Yields runs with one difference less."""
        default = Training()
        for name, _ in self._changes():
            if name == "settings":
                for key in self.settings:
                    rest = {k: v for k, v in self.settings.items() if k != key}
                    yield dataclasses.replace(self, settings=rest)
                continue
            yield dataclasses.replace(self, **{name: getattr(default, name)})
        if self.mesh.layout:
            yield dataclasses.replace(
                self, mesh=dataclasses.replace(self.mesh, variable_layout="", layout="")
            )

    def check(self) -> str:
        """Returns how the numbers differ from those of the plain way; "": they do not.

        Raises:
          Unfit: no tensor can be as the layout says.
        """
        values: dict[str, np.ndarray] = {}
        expected = self.plain().numbers(values)
        try:
            numbers = self.numbers(values)
        except mtf.LayoutError as error:  # two dimensions of one tensor have one axis
            raise Unfit from error
        for name, want in expected.items():
            have = numbers[name]
            scale = 1 + np.max(np.abs(want), initial=0.0)
            off = float(np.max(np.abs(want - have), initial=0.0) / scale)
            if not off <= TOLERANCE:
                return f"{name.split('/')[-1]} {name} is off by {off:.3g}"
        return ""

    def numbers(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns losses and variables after `STEPS` steps, by name.

        Args:
          values: initial values by path of separate variables; an empty dict is filled with
            those that the model draws.
        """
        model = self.make_model()
        if values:
            write_values(model, values)
        else:
            values.update(read_values(model))
        trainer = self._trainer(model)
        if self.copied:
            model = self._copied(model, trainer)
            trainer = self._trainer(model)
        numbers = {}
        for step in range(STEPS):
            loss, _ = trainer.step(batches.draw(self, step))
            numbers[f"loss {step}"] = loss.numpy()
        numbers.update(read_values(model))
        for name, x in model.measure(_tensors(model, batches.draw(self, 0))).items():
            numbers[f"metric {name}"] = x.numpy()
        return numbers

    def _copied(self, model: Model, trainer: Trainer) -> Model:
        """Returns a copy of the model from before its first step, which must not follow."""
        duplicate = copy.deepcopy(model)
        assert duplicate.mesh is model.mesh, "the copy has a mesh of its own"
        before = read_values(duplicate)
        trainer.step(batches.draw(self, STEPS))
        for path, value in read_values(duplicate).items():
            np.testing.assert_array_equal(value, before[path], err_msg=path)
        return duplicate

    def _trainer(self, model: Model) -> Trainer:
        optimizer = OPTIMIZERS[self.optimizer]
        return Trainer(model, optimizer, microbatches=self.microbatches)

    def make_model(self) -> Model:
        """Returns the model, on a mesh of its own."""
        with_bert = self.model not in ("language_model", "encoder_decoder")
        settings = {
            **SIZES,
            **({"dropout": 0.0} if with_bert else {}),
            **self.settings,
            "scanned": self.scanned,
            "recompute": self.recompute,
        }
        if self.experts:
            settings["moe_every"] = 1
            settings["mixture"] = functools.partial(
                MixtureOfExperts,
                experts=self.experts,
                gating=gating.top_k,
                balance_weight=0.0,
            )
        make_architecture = bert_architecture if with_bert else Architecture
        architecture = make_architecture(**settings)
        mesh = eval(str(self.mesh), {"mtf": mtf})
        return MODELS[self.model](mesh, architecture)


def _tensors(model: Model, batch: Mapping[str, np.ndarray]) -> dict[str, mtf.Tensor]:
    return {
        name: mtf.asarray(model.mesh, x, model.features[name])
        for name, x in batch.items()
    }


def read_values(model: Model) -> dict[str, np.ndarray]:
    """Returns the value of each variable by path; each block has an entry of its own."""
    values = {}
    for variable in model.variables:
        value = variable.numpy()
        path = str(variable.path)
        if "blocks/block/" not in path:
            values[path] = value
            continue
        for k, one in enumerate(value):
            values[path.replace("blocks/block/", f"block_{k}/")] = one
    return values


def write_values(model: Model, values: Mapping[str, np.ndarray]) -> None:
    """Writes values by path, as `read_values` returns them."""
    for variable in model.variables:
        path = str(variable.path)
        if "blocks/block/" in path:
            paths = [
                path.replace("blocks/block/", f"block_{k}/")
                for k in range(variable.shape.sizes[0])
            ]
            value = np.stack([values[path] for path in paths])
        else:
            value = values[path]
        variable.assign(mtf.asarray(variable.mesh, value, variable.shape))
