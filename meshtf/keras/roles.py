"""What the axes of a Keras model's variables are, by the classes of its layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from meshtf.keras.layer_settings.patterns import inner_layers
from meshtf.keras.named_layer.layer import Layer
from meshtf.tensorflow_import.dimensions.hints import (
    GIVEN,
    LAST,
    LAYER,
    ROLE,
    TABLE,
    WEAK,
    Hint,
    Hints,
    stem_of,
)

# Names of each axis; "" is none, and "/" stands for the layer's name.
_Names = Sequence[str]
_KERNELS = {1: ("k_length",), 2: ("k_height", "k_width")}
_KERNELS[3] = ("k_depth", *_KERNELS[2])
_CELLS = (keras.layers.LSTMCell, keras.layers.GRUCell, keras.layers.SimpleRNNCell)
# Words in the names of layers of attention, and the axes of a kernel of rank 2.
_HEADS = "heads*d_head"
_OUTPUTS = ("out", "proj")
_AROUND_ATTENTION = ("Block", "Decoder", "Encoder", "Layer", "Transformer")
_INPUTS = ("query", "key", "value", "qkv", "q_", "k_", "v_")


def hints_of_step(model: Any, batch: Any) -> Hints:
    """Returns what is known of the arguments and variables of a model's step for a batch."""
    x = keras.utils.unpack_x_y_sample_weight(batch)[0]
    paths = _paths(x, "")
    if len(paths) == len(getattr(model, "inputs", None) or ()):
        paths = [p or t.name for p, t in zip(paths, model.inputs)]
    return Hints(hints_of_variables(model), paths, labels_from=len(paths))


def _paths(x: Any, path: str) -> list[str]:
    """Returns the keys that lead to each tensor of a structure, in TensorFlow's order."""
    if isinstance(x, dict):
        return [p for key in sorted(x) for p in _paths(x[key], f"{path}{key}")]
    if isinstance(x, (list, tuple)):
        return [p for item in x for p in _paths(item, path)]
    return [] if x is None else [path]


def hints_of_variables(model: Any) -> dict[int, list[list[Hint]]]:
    """Returns, by a variable's identity, names for each axis, with their trust. Variables of
    optimizers, metrics and seed generators are not among them.
    """
    hints: dict[int, list[list[Hint]]] = {}
    classes = _last_layer(model)
    for layer, above in _layers(model, (), set()):
        for variable in layer.weights:
            leaf = variable.path.rpartition("/")[2]
            if id(variable) in hints or "seed_generator" in leaf:
                continue
            axes = _of_variable(layer, above, variable)
            if layer is classes and leaf in ("kernel", "bias"):
                axes[-1] = [(ROLE, _classes_of(model, variable.shape[-1]))]
            hints[id(variable)] = axes
    return hints


def _layers(layer: Any, above: tuple[Any, ...], seen: set[int]) -> Iterator[Any]:
    """Yields the layers of a model, the inner ones first, each with its outer ones."""
    seen.add(id(layer))
    for inner in inner_layers(vars(layer).values()):
        if id(inner) not in seen:
            yield from _layers(inner, (*above, layer), seen)
    yield layer, above


def _of_variable(layer: Any, above: Sequence[Any], variable: Any) -> list[list[Hint]]:
    """Returns the hints of each axis of a layer's variable."""
    if isinstance(layer, Layer):
        return _named(layer.axis_names.get(id(variable), ()), GIVEN)
    leaf, shape = variable.path.rpartition("/")[2], tuple(variable.shape)
    name, rank = stem_of(layer.name), len(shape)
    attention = any(_is_attention(x) for x in (*above, layer))
    if rank == 2 and "embedding" in leaf + _kinds(layer):
        return _of_table(layer, above, leaf, attention)
    if isinstance(layer, _CELLS):
        return _named(_of_cell(layer, leaf, rank), ROLE)
    if "conv" in _kinds(layer) and ("kernel" in leaf or leaf == "bias") and rank <= 5:
        return _of_convolution(layer, leaf, rank)
    if attention and rank == 2 and "relative" in leaf:
        return _named(["buckets", "heads"], ROLE)
    if attention and (leaf == "kernel" or leaf == "bias"):
        axes = _of_attention(layer, name, leaf, shape)
        if axes:
            return _named(axes, ROLE)
    sibling_weights = above[-1].weights if above and "moe" in _kinds(above[-1]) else ()
    words = " ".join([_kinds(layer), name, leaf, *(_kinds(x) for x in above[-1:])])
    if rank >= 3 and ("expert" in words or "moe" in words):
        return [[(ROLE, "experts")], *([] for _ in shape[1:])]
    if leaf == "kernel" and any(_is_of_experts(v, shape[-1]) for v in sibling_weights):
        return [*([] for _ in shape[1:]), [(ROLE, "experts")]]
    if leaf == "kernel":
        new_axes = _made_axes(layer, rank)
        return [
            [(LAYER, name)] if k in new_axes else [(LAST, f"{name}_input")]
            for k in range(rank)
        ]
    if rank == 1 and leaf == "bias":
        return [[(LAYER, name)]]
    return [[(LAST, name)] for _ in shape]


def _named(axes: _Names, trust: int) -> list[list[Hint]]:
    return [[(trust, name)] if name else [] for name in axes]


def _kinds(layer: Any) -> str:
    """Returns the names of a layer's classes, in small letters."""
    return " ".join(cls.__name__ for cls in type(layer).__mro__).lower()


def _of_table(
    layer: Any, above: Sequence[Any], leaf: str, attention: bool
) -> list[list[Hint]]:
    """Returns the hints of a table of embeddings."""
    words = " ".join([leaf, layer.name, *(x.name for x in above[-1:])]).lower()
    role, trust = "vocab", ROLE
    if (
        attention
    ):  # of biases for each head, or of vectors that queries are multiplied by
        return _named(["buckets", "heads" if _is_attention(layer) else "d_head"], ROLE)
    if words.startswith("rel") or "relative" in words:
        role = "buckets"
    elif "segment" in words:
        role = "segment"
    elif "position" in f"{leaf} {layer.name} {_kinds(layer)}".replace(
        "tokenandposition", ""
    ):
        role, trust = "position", WEAK
    axes: list[list[Hint]] = [[(trust, role)], [(TABLE, "d_model")]]
    return axes[::-1] if leaf.startswith("reverse") else axes


def _of_cell(layer: Any, leaf: str, rank: int) -> _Names:
    """Returns the axes of a variable of a cell of a recurrent layer."""
    units = "units" if isinstance(layer, keras.layers.SimpleRNNCell) else "gates*units"
    if leaf == "bias":
        return ["sides", units][-rank:]
    return ["state" if leaf == "recurrent_kernel" else "", units]


def _of_convolution(layer: Any, leaf: str, rank: int) -> list[list[Hint]]:
    """Returns the axes of a convolution's kernel."""
    kinds = _kinds(layer)
    channels = ["channels", "channels"]
    if "depthwise" in leaf or ("depthwise" in kinds and "pointwise" not in leaf):
        channels[1] = "multiplier"
    elif "convlstm" in kinds:
        channels[1] = "gates*channels"
    windows = _KERNELS.get(rank - 2, ())
    return [*_named(windows, ROLE), *_named(channels[-rank:], LAYER)]


def _is_attention(layer: Any) -> bool:
    name = type(layer).__name__
    if name.endswith("Attention"):
        return True
    return "Attention" in name and not any(word in name for word in _AROUND_ATTENTION)


def _is_of_experts(variable: Any, count: int) -> bool:
    return len(variable.shape) == 3 and variable.shape[0] == count


def _of_attention(layer: Any, name: str, leaf: str, shape: tuple[int, ...]) -> _Names:
    """Returns the axes of a projection of attention; none, if it is something else."""
    name, rank = name.lower(), len(shape)
    merged = rank == 2 and shape[1] == 3 * shape[0]
    inwards = merged or any(word in name for word in _INPUTS)
    outwards = not inwards and any(word in name for word in _OUTPUTS)
    if not inwards and not outwards:
        return []
    if leaf == "bias":
        if outwards:
            return ["d_model"] if rank == 1 else []
        return ["heads", "d_head"] if rank == 2 else []
    if rank == 2:
        return (
            ["d_model", f"qkv*{_HEADS}" if merged else _HEADS]
            if inwards
            else [_HEADS, "d_model"]
        )
    new_axes = _made_axes(layer, rank)
    if rank == 3 and len(new_axes) == (2 if inwards else 1):
        axes = iter(["heads", "d_head"])
        return [
            "d_model" if (k in new_axes) != inwards else next(axes) for k in range(3)
        ]
    return []


def _made_axes(layer: Any, rank: int) -> set[int]:
    """Returns the axes of a kernel that the layer's output has (of Dense, the last one)."""
    equation = getattr(layer, "equation", None)
    if not isinstance(equation, str):
        return {rank - 1}
    inputs, output = equation.split("->")
    x, kernel = inputs.split(",")
    return {
        k for k, letter in enumerate(kernel) if letter in output and letter not in x
    }


def _last_layer(model: Any) -> Any:
    """Returns the layer whose variables make a model's classes; None if there are none."""
    loss = getattr(model, "loss", None)
    text = f"{loss if isinstance(loss, str) else type(loss).__name__}".lower()
    classifies = "crossentropy" in text or "ctc" in text
    for layer in reversed(getattr(model, "layers", None) or []):
        activation = getattr(getattr(layer, "activation", None), "__name__", "")
        classifies |= "softmax" in f"{activation} {_kinds(layer)}"
        if layer.weights:
            return layer if classifies else None
    return None


def _classes_of(model: Any, size: int) -> str:
    """Returns the name of classes: those of a language model are its vocabulary."""
    for layer, _ in _layers(model, (), set()):
        if isinstance(layer, keras.layers.Embedding) and layer.input_dim == size:
            return "vocab"
    return "classes"
