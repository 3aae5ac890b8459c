"""Sizes of a model and of its batch, how it is trained, and what variables it has.

    config = Config("moe", layers=2)
    config.shapes()               # {"language_model/embedding/table": (4096, 256), ...}

The models are a decoder-only language model, the same with a mixture of experts in
every other block, and BERT with both tasks of its pretraining.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

MODELS = ("lm", "moe", "bert")
Shapes = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Config:
    """The sizes of a model and of its batch, and the settings of training.

    Attributes:
      model: one of `MODELS`.
      vocab: the size of the vocabulary.
      batch: the number of examples in a batch.
      length: the number of tokens of an example.
      d_model: the width of the model.
      d_ff: the width of feed-forward layers.
      heads: the number of attention heads.
      layers: the number of blocks.
      experts: the number of experts of a mixture; each token goes to two.
      capacity: the slots of all experts over the choices of all tokens.
      dropout: the dropout rate.
      z_loss: the weight of the square of logsumexp in the loss.
      learning_rate: Adam's learning rate.
      beta1: the decay of Adam's first moment.
      beta2: the decay of Adam's second moment.
      epsilon: what Adam adds to the root of the second moment.
    """

    model: str = "lm"
    vocab: int = 4096
    batch: int = 16
    length: int = 128
    d_model: int = 256
    d_ff: int = 1024
    heads: int = 8
    layers: int = 4
    experts: int = 8
    capacity: float = 1.25
    dropout: float = 0.0
    z_loss: float = 0.0
    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8

    @property
    def d_kv(self) -> int:
        """The size of the queries and keys of a head."""
        return self.d_model // self.heads

    @property
    def num_masked(self) -> int:
        """The number of masked tokens of an example for BERT: 15 %."""
        return max(1, self.length * 3 // 20)

    @property
    def expert_slots(self) -> int:
        """The number of slots of an expert, the tokens that it can take, for one example: at
        least four.
        """
        slots = int(2 * self.length * self.capacity / self.experts)
        return min(max(slots, 4), self.length)

    @property
    def root(self) -> str:
        """The first component of the paths of variables and of dropout ops."""
        return "bert" if self.model == "bert" else "language_model"

    def has_experts(self, block: int) -> bool:
        """Returns whether a block has a mixture of experts."""
        return self.model == "moe" and block % 2 == 1

    def shapes(self) -> Shapes:
        """Returns the shape of every variable, by its path in `transformer.models`."""
        return _bert(self) if self.model == "bert" else _language_model(self)

    def fan_in(self, name: str) -> int:
        """Returns the number of inputs that are summed into one output of a matrix."""
        shape = self.shapes()[name]
        if "/output/" in name:
            return int(np.prod(shape[:-1]))
        return shape[1] if "/experts/" in name else shape[0]


def _language_model(config: Config) -> Shapes:
    """Returns the shapes of a language model's variables."""
    d = config.d_model
    root = config.root
    shapes: Shapes = {f"{root}/embedding/table": (config.vocab, d)}
    for i in range(config.layers):
        path = f"{root}/decoder/block_{i}"
        shapes |= {
            f"{path}/{norm}/scale": (d,)
            for norm in ("attention_norm", "feed_forward_norm")
        }
        shapes |= _attention(config, f"{path}/attention")
        if config.has_experts(i):
            shapes |= {
                f"{path}/moe/router/kernel": (d, config.experts),
                f"{path}/moe/experts/wi/kernel": (config.experts, d, config.d_ff),
                f"{path}/moe/experts/wo/kernel": (config.experts, config.d_ff, d),
            }
        else:
            shapes |= {
                f"{path}/feed_forward/wi/kernel": (d, config.d_ff),
                f"{path}/feed_forward/wo/kernel": (config.d_ff, d),
            }
    return shapes | {
        f"{root}/decoder/norm/scale": (d,),
        f"{root}/logits/kernel": (d, config.vocab),
    }


def _attention(config: Config, path: str) -> Shapes:
    """Returns the shapes of an attention layer's kernels."""
    return {
        f"{path}/query/kernel": (config.d_model, config.heads, config.d_kv),
        f"{path}/key/kernel": (config.d_model, config.heads, config.d_kv),
        f"{path}/value/kernel": (config.d_model, config.heads, config.d_kv),
        f"{path}/output/kernel": (config.heads, config.d_kv, config.d_model),
    }


def _bert(config: Config) -> Shapes:
    """Returns the shapes of BERT's variables."""
    d = config.d_model
    f = config.d_ff
    root = config.root
    shapes: Shapes = {
        f"{root}/embedding/table": (config.vocab, d),
        f"{root}/position_embedding/table": (config.length, d),
        f"{root}/type_embedding/table": (2, d),
    }
    shapes |= _norm(f"{root}/embedding_norm", d)
    for i in range(config.layers):
        path = f"{root}/encoder/block_{i}"
        shapes |= _norm(f"{path}/attention_norm", d)
        shapes |= _norm(f"{path}/feed_forward_norm", d)
        shapes |= _attention(config, f"{path}/attention")
        shapes |= {
            f"{path}/attention/{projection}/bias": (config.heads, config.d_kv)
            for projection in ("query", "key", "value")
        }
        shapes |= {f"{path}/attention/output/bias": (d,)}
        shapes |= _dense(f"{path}/feed_forward/wi", d, f)
        shapes |= _dense(f"{path}/feed_forward/wo", f, d)
    head = "pretraining"
    return (
        shapes
        | _dense(f"{root}/pooler", d, d)
        | _dense(f"{head}/transform", d, d)
        | _norm(f"{head}/transform_norm", d)
        | {f"{head}/logits_bias": (config.vocab,)}
        | _dense(f"{head}/next_sentence", d, 2)
    )


def _norm(path: str, size: int) -> Shapes:
    """Returns the shapes of a layer norm's variables."""
    return {f"{path}/scale": (size,), f"{path}/bias": (size,)}


def _dense(path: str, inputs: int, outputs: int) -> Shapes:
    """Returns the shapes of a dense layer's variables."""
    return {f"{path}/kernel": (inputs, outputs), f"{path}/bias": (outputs,)}


class JsonCase:
    """Base class of cases: dataclasses with a field `config`, which are sent to processes as
    JSON.
    """

    def dump(self) -> str:
        """Returns the case as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def load(cls, text: str) -> Any:
        """Returns the case that `dump` has written."""
        fields = json.loads(text)
        fields["config"] = Config(**fields["config"])
        return cls(**fields)
