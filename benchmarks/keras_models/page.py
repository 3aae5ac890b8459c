"""The page of all models."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.keras_models.configurations import CONFIGURATIONS
from benchmarks.keras_models.measure import AXES, Result

_HEADER = ("model", "equal to Keras", "by batch", "by model", "replicated", "seconds")
_MOSTLY = 0.9


def page(results: Sequence[Result]) -> str:
    """Returns the page of results, in Markdown."""
    ran = [r for r in results if not r.error]
    by_batch = [r for r in ran if r.by_batch >= _MOSTLY]
    by_both = [r for r in by_batch if r.by_model >= _MOSTLY]
    return "\n".join(
        [
            "# Keras models on a mesh",
            "",
            "`make keras-models` writes this page: three steps of each model's own `fit`, "
            f'unmodified, on eight positions ("{AXES}"), beside Keras on one device. The '
            "models are small and have random weights; they run in float64 with SGD, "
            "momentum and a metric.",
            "",
            f"Of {len(CONFIGURATIONS)} models, {len(results)} are measured; {len(ran)} run. "
            f"{len(by_batch)} have 90 % of their FLOPs sharded by `batch:data`, "
            f"{len(by_both)} of these by a model axis as well.",
            "",
            "- **equal to Keras**: the largest difference of the loss and of all weights and "
            "metrics, relative; models that compute in float32 within reach 1e-5.",
            "- **by batch**, **by model**: the share of the FLOPs of the step, forward, "
            "backward and update, that `batch:data` and a second axis shard, and the "
            "names that the second axis shards: those found that share most FLOPs. Of a "
            "graph the edges are sharded by data as well (`batch_2:data`).",
            "- **replicated**: operations that each device runs on gathered operands.",
            "- **seconds**: of `fit` on the mesh and of Keras, tracing included.",
            "",
            table(results),
            "",
        ]
    )


def table(results: Sequence[Result]) -> str:
    """Returns a table in Markdown."""
    rows = [_HEADER, tuple("-" * len(text) for text in _HEADER)]
    for r in results:
        if r.error:
            rows.append((r.name, f"failed: {r.error}", "", "", "", ""))
            continue
        replicated = ", ".join(f"{n} {kind}" for kind, n in r.replicated.items())
        rows.append(
            (
                r.name,
                r.equal,
                f"{r.by_batch:.0%}",
                f"{r.by_model:.0%} {' '.join(r.names)}",
                replicated or "none",
                f"{r.seconds:.0f}, {r.keras_seconds:.0f}",
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
