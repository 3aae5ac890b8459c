"""Makes what known models compute: small random ones of Hugging Face `transformers`, as
.npz files.

    pip install -e '.[hf]'
    python tests/data/known_models/make_references.py

Each file holds a model's config.json, its weights under the names of its safetensors
file, a batch, the logits and the loss of it, and the gradient of the loss for each
weight:

    made_with, config      strings
    weight/NAME            as `save_pretrained` writes them
    input/NAME             integers
    output/NAME, loss      float32
    gradient/NAME          of the loss, for each weight

Weights are large enough, biases and norms included, that every part of a model shows in
the numbers. Tests read the files alone; they need neither PyTorch nor transformers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
VOCAB = 40
IGNORED = -100  # the label that PyTorch's cross entropy leaves out

BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 14,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 24,
    "n_positions": 14,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}


def main() -> None:
    """Writes all files."""
    import transformers as hf  # here: whoever only collects tests has no PyTorch

    bert = hf.BertConfig(**BERT)
    write("bert", hf.BertForPreTraining(bert), {**sentences(), **masked_words()})
    three = hf.BertConfig(**BERT, num_labels=3)
    write(
        "bert_classifier",
        hf.BertForSequenceClassification(three),
        {**sentences(), "labels": np.array([2, 0, 1, 2])},
    )
    write(
        "bert_span",
        hf.BertForQuestionAnswering(bert),
        {
            **sentences(),
            "start_positions": np.array([1, 4, 0, 9]),
            "end_positions": np.array([5, 4, 2, 10]),
        },
    )
    write("gpt2", hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)), text())
    write("t5", hf.T5ForConditionalGeneration(hf.T5Config(**T5)), pairs())
    write("t5_1_1", t5_1_1(hf), pairs())
    write("llama", hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA)), text())


def t5_1_1(hf: Any) -> Any:
    """Returns a T5 1.1, whose logits have a kernel of their own.

    transformers 5 ties it in new models, and leaves it alone where a checkpoint has
    both.
    """
    from torch import nn

    config = hf.T5Config(
        **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    )
    model = hf.T5ForConditionalGeneration(config)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def sentences() -> dict[str, np.ndarray]:
    """Returns pairs of sentences of several lengths, with padding after them."""
    length = np.array([12, 9, 6, 11])[:, None]
    positions = np.arange(12)[None]
    rng = np.random.default_rng(1)
    is_token = positions < length
    return {
        "input_ids": np.where(is_token, rng.integers(1, VOCAB, (4, 12)), 0),
        "attention_mask": is_token.astype(np.int64),
        "token_type_ids": np.where(is_token, positions >= length // 2, 0).astype(
            np.int64
        ),
    }


def masked_words() -> dict[str, np.ndarray]:
    """Returns labels of a few words, not as many in each row, and whether sentences
    follow.
    """
    labels = np.full((4, 12), IGNORED)
    for row, position, label in [
        (0, 2, 7),
        (0, 5, 39),
        (0, 11, 1),
        (1, 0, 20),
        (1, 8, 8),
        (2, 3, 33),
        (3, 1, 12),
    ]:
        labels[row, position] = label
    return {"labels": labels, "next_sentence_label": np.array([1, 0, 1, 0])}


def text() -> dict[str, np.ndarray]:
    """Returns a batch for a language model; the end of the second row does
    not count.
    """
    tokens = np.random.default_rng(2).integers(0, VOCAB, (2, 12))
    labels = tokens.copy()
    labels[1, 8:] = IGNORED
    return {"input_ids": tokens, "labels": labels}


def pairs() -> dict[str, np.ndarray]:
    """Returns inputs and targets of several lengths, with padding after them."""
    rng = np.random.default_rng(3)
    is_token = np.arange(12)[None] < np.array([12, 7, 10, 4])[:, None]
    counted = np.arange(10)[None] < np.array([6, 10, 8, 3])[:, None]
    return {
        "input_ids": np.where(is_token, rng.integers(1, VOCAB, (4, 12)), 0),
        "attention_mask": is_token.astype(np.int64),
        "labels": np.where(counted, rng.integers(1, VOCAB, (4, 10)), IGNORED),
    }


def write(name: str, model: Any, batch: dict[str, np.ndarray]) -> None:
    """Writes one model's file."""
    import torch

    draw(model)
    model.set_attn_implementation("eager")
    model.train()  # dropout is 0
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None  # else the gradient of padding's row is left out
    out = model(**{key: torch.tensor(value) for key, value in batch.items()})
    out.loss.backward()
    weights, config = saved(model)
    gradients = {key: value.grad for key, value in model.named_parameters()}
    arrays = {f"weight/{key}": value for key, value in weights.items()}
    arrays |= {f"gradient/{key}": gradients[key].numpy() for key in weights}
    arrays |= {f"input/{key}": value.astype(np.int32) for key, value in batch.items()}
    arrays |= {
        f"output/{key}": value.detach().numpy()
        for key, value in out.items()
        if key.endswith("logits")
    }
    path = HERE / f"{name}.npz"
    np.savez_compressed(
        path,
        made_with=made_with(),
        config=json.dumps(config, sort_keys=True),
        loss=out.loss.detach().numpy(),
        **arrays,
    )
    print(
        f"{path.name:20} {path.stat().st_size:7,} bytes  loss {out.loss.item():.4f}  "
        f"{len(weights)} weights"
    )


def draw(model: Any) -> None:
    """Gives a model weights of which each one counts."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        with torch.no_grad():
            norm = weight.ndim == 1 and name.endswith("weight")
            weight.normal_(
                mean=float(norm),
                std=0.5 if "emb" in name or "shared" in name else 0.3,
                generator=generator,
            )


def saved(model: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the weights and the configuration that `save_pretrained` writes."""
    from safetensors.numpy import load_file

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        return load_file(Path(folder, "model.safetensors")), config


def made_with() -> str:
    """Returns the versions that the numbers come from."""
    import torch
    import transformers

    return f"torch {torch.__version__}, transformers {transformers.__version__}"


if __name__ == "__main__":
    main()
