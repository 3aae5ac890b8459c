"""The reference results of known models, and their batches as our models take them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

FOLDER = Path(__file__).resolve().parents[2] / "data" / "known_models"
NAMES = ("bert", "bert_classifier", "bert_span", "gpt2", "t5", "t5_1_1", "llama")
VOCAB, IGNORED = 40, -100


class Reference:
    """A file of reference numbers: `weights`, `gradients`, `inputs`, `outputs`, `loss`,
    `config`.
    """

    def __init__(self, name: str) -> None:
        arrays = np.load(FOLDER / f"{name}.npz")
        self.name, self.config, self.loss = (
            name,
            json.loads(str(arrays["config"])),
            arrays["loss"],
        )
        self.weights, self.gradients, self.inputs, self.outputs = (
            {
                key.removeprefix(f"{kind}/"): arrays[key]
                for key in arrays.files
                if key.startswith(f"{kind}/")
            }
            for kind in ("weight", "gradient", "input", "output")
        )

    def batch(self) -> dict[str, np.ndarray]:
        """Returns the inputs as a batch of our models."""
        kind = self.name.split("_")[0]
        return {"bert": self._bert, "t5": self._pairs}.get(kind, self._text)()

    def _text(self) -> dict[str, np.ndarray]:
        """Returns tokens, and the token after each; the last has none."""
        targets = np.pad(
            self.inputs["labels"][:, 1:], [(0, 0), (0, 1)], constant_values=IGNORED
        )
        return {"tokens": self.inputs["input_ids"], **_counted(targets)}

    def _pairs(self) -> dict[str, np.ndarray]:
        """Returns inputs, targets, and the decoder's tokens: the targets before, with 0
        in front.
        """
        results = _counted(self.inputs["labels"])
        tokens = np.pad(results["targets"][:, :-1], [(0, 0), (1, 0)])
        return {"inputs": self.inputs["input_ids"], "tokens": tokens, **results}

    def _bert(self) -> dict[str, np.ndarray]:
        """Returns tokens and types, and what the head asks for."""
        results = {
            "tokens": self.inputs["input_ids"],
            "token_types": self.inputs["token_type_ids"],
        }
        if self.name == "bert_classifier":
            return {**results, "labels": self.inputs["labels"]}
        if self.name == "bert_span":
            return {
                **results,
                "start": self.inputs["start_positions"],
                "end": self.inputs["end_positions"],
            }
        return {
            **results,
            **_masked(self.inputs["labels"]),
            "next_sentence_labels": self.inputs["next_sentence_label"],
        }


def write(reference: Reference, folder: Path) -> None:
    """Writes what `save_pretrained` would: config.json and model.safetensors."""
    (folder / "config.json").write_text(json.dumps(reference.config))
    save_file(reference.weights, folder / "model.safetensors", {"format": "pt"})


def _counted(labels: np.ndarray) -> dict[str, np.ndarray]:
    counts = labels != IGNORED
    return {
        "targets": np.where(counts, labels, 0),
        "weights": counts.astype(np.float32),
    }


def _masked(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Returns places, words and weights of what is masked, as many in each row."""
    positions = [np.flatnonzero(row != IGNORED) for row in labels]
    most = max(map(len, positions))
    results: dict[str, Any] = {
        "masked_positions": [np.pad(p, (0, most - len(p))) for p in positions],
        "masked_ids": [
            np.pad(row[p], (0, most - len(p))) for row, p in zip(labels, positions)
        ],
    }
    weights = [np.arange(most) < len(p) for p in positions]
    return {
        **{key: np.stack(value).astype(np.int32) for key, value in results.items()},
        "masked_weights": np.stack(weights).astype(np.float32),
    }
