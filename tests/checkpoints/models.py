"""Variables with an optimizer's state, on meshes that shard them in all ways."""

from __future__ import annotations

import numpy as np

import meshtf as mtf

MESHES = {
    "one device": {"axes": ""},
    "8 devices": {"axes": "data:8", "layout": "batch:data", "devices": "logical:8"},
    "fsdp of 8": {
        "axes": "data:8",
        "variable_layout": "d_model:data",
        "devices": "logical:8",
    },
    "tensor parallel": {"axes": "data:2; model:4", "layout": "d_ff:model; vocab:model"},
    "fsdp and tensor parallel": {
        "axes": "data:2; model:4",
        "layout": "d_ff:model; vocab:model",
        "variable_layout": "d_model:data",
        "devices": "logical:8",
    },
    "zero 1": {"axes": "data:4", "optimizer_layout": "d_model:data"},
    "two axes": {
        "axes": "data:2; fsdp:4",
        "variable_layout": "d_model:fsdp+data; vocab:",
        "optimizer_layout": "d_model:fsdp; vocab:data",
        "devices": "logical:8",
    },
    "stages": {
        "axes": "stage:2; data:2; model:2",
        "layout": "d_ff:model",
        "variable_layout": "d_model:data",
        "devices": "logical:8",
    },
}
SHAPES = {  # and data types, and stages
    "table": ("vocab:16; d_model:8", "float32", 0),
    "first/wi": ("d_model:8; d_ff:12", "float32", 0),
    "second/wi": ("d_model:8; d_ff:12", "bfloat16", 1),
    "second/wo": ("d_ff:12; d_model:8", "float32", 1),
    "half": ("d_model:8; three:3", "float16", 0),
    "steps": ("", "int32", 0),
}


def variables(key: str, seed: int | None) -> dict[str, mtf.Variable]:
    """Returns variables and slots on one of the meshes: random values, or zeros."""
    return variables_on(mtf.Mesh(**MESHES[key]), seed)


def variables_on(mesh: mtf.Mesh, seed: int | None) -> dict[str, mtf.Variable]:
    """Returns variables and slots on a mesh: random values, or zeros."""
    weights = []
    for name, (shape, dtype, stage) in SHAPES.items():
        with mtf.stage(stage):
            weights.append(mtf.Variable(mesh, shape, zeros_of(dtype), name, dtype))
    learned = [v for v in weights if v.dtype == "float32"]
    everything = {
        v.name: v for v in (*weights, *mtf.optimizers.Adam(learned).variables)
    }
    if seed is not None:
        fill(everything, seed)
    return everything


def zeros_of(dtype: str):
    """Returns an initializer."""
    return lambda mesh, shape, name: mtf.zeros(mesh, shape, dtype)


def fill(model_state: dict[str, mtf.Variable], seed: int) -> None:
    """Gives variables random numbers, the same on every mesh."""
    rng = np.random.default_rng(seed)
    for name in sorted(model_state):
        v = model_state[name]
        v.assign(
            mtf.cast(
                mtf.asarray(
                    v.mesh,
                    (rng.normal(size=v.shape.sizes) * 100).astype("float32"),
                    v.shape,
                ),
                v.dtype,
            )
        )


def bits(model_state: dict[str, mtf.Variable]) -> dict[str, bytes]:
    """Returns the bytes of whole values by name."""
    return {name: v.numpy().tobytes() for name, v in model_state.items()}
