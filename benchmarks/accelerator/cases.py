"""The training steps that are measured on an accelerator.

Batches fit 80 GB together with those of the plain JAX program, which has a state of its own.
All stacks are scanned, and all models but one are without dropout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

_NO_DROPOUT = "Architecture.dropout = 0.0"


@dataclasses.dataclass(frozen=True)
class Case:
    """A training step of a model on one device.

    Attributes:
      name: the name of the case, and of its files.
      model: the name of a file in `configs/models/`.
      batch: the number of examples of a batch.
      settings: further settings of gin.
      any_device: whether the module is for any devices, and so calls none of their kernels for
        attention, which it computes for one block of queries at a time.
      without_peer: why there is no plain JAX program beside it; "": there is.
      stddev: the standard deviation of the initial values.
    """

    name: str
    model: str
    batch: int
    settings: tuple[str, ...] = (_NO_DROPOUT,)
    any_device: bool = False
    without_peer: str = ""
    stddev: float = 0.02

    @property
    def architecture(self) -> str:
        """The gin name of the settings of the architecture."""
        return "bert_architecture" if self.model.startswith("bert") else "Architecture"


_LLAMA_1B = (
    "LanguageModelFeatures.length = 2048",
    "Architecture.d_model = 2048",
    "Architecture.d_ff = 8192",
    "Architecture.heads = 32",
    "Architecture.kv_heads = 8",
    "Architecture.d_kv = 64",
    "Architecture.blocks = 16",
    "Architecture.recompute = False",
)
_EXPERTS = (
    _NO_DROPOUT,
    "import transformer.experts.gating",
    "Architecture.moe_every = 1",
    "MixtureOfExperts.experts = 8",
    "MixtureOfExperts.gating = @switch",
    "MixtureOfExperts.balance_weight = 0.01",
    "MixtureOfExperts.z_weight = 0.001",
    "Capacity.train = 1.25",
)

# The first ones say most, if the time is not enough for all.
CASES = [
    Case("gpt2", "gpt2", batch=32),
    Case("gpt2_medium", "gpt2_medium", batch=16),
    Case("llama_1b", "llama2", batch=4, settings=_LLAMA_1B),
    Case(
        "bert_large",
        "bert_large",
        batch=32,
        settings=("bert_architecture.dropout = 0.0",),
    ),
    Case("gpt2_xl", "gpt2_xl", batch=8),
    Case("gpt2_large", "gpt2_large", batch=8),
    Case("gpt2_medium_any_device", "gpt2_medium", batch=16, any_device=True),
    Case(
        "gpt2_medium_recompute",
        "gpt2_medium",
        batch=16,
        settings=(_NO_DROPOUT, 'Architecture.recompute = "attention"'),
    ),
    Case("gpt2_experts", "gpt2", batch=16, settings=_EXPERTS),
    Case(
        "gpt2_dropout",
        "gpt2",
        batch=16,
        settings=("Architecture.dropout = 0.1",),
        without_peer="jax.nn.dot_product_attention has no dropout",
    ),
]


def selected(names: Sequence[str]) -> list[Case]:
    """Returns the cases of these names; without any, all.

    Raises:
      ValueError: there is no such case.
    """
    known = {case.name: case for case in CASES}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no case {name!r}, but {', '.join(known)}.")
    return [known[name] for name in names or known]


def tiny(case: Case, dtype: str = "float32", length: int = 16) -> Case:
    """Returns a case of the same kind that a CPU runs in milliseconds.

    Args:
      case: the case.
      dtype: the data type of activations.
      length: the tokens of an example.
    """
    sizes = {
        "d_model": 32,
        "d_ff": 64,
        "heads": 4,
        "d_kv": 8,
        "blocks": 2,
        "vocab": 100,
    }
    settings = [f"{case.architecture}.{name} = {size}" for name, size in sizes.items()]
    if case.model == "llama2":
        settings.append("Architecture.kv_heads = 2")
    features = (
        "BertFeatures" if case.model.startswith("bert") else "LanguageModelFeatures"
    )
    settings.append(f"{features}.length = {length}")
    if case.model.startswith("bert"):
        settings.append("BertFeatures.predictions = 3")
    settings.append(f'Architecture.dtype = "{dtype}"')
    return dataclasses.replace(
        case,
        batch=2,
        settings=(*case.settings, *settings),
        # Larger ones than usual, so that every weight has an influence on the loss.
        stddev=0.3,
    )
