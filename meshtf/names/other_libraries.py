"""Attributes of the tensors of NumPy, TensorFlow, PyTorch and JAX, and what to write here.

    >>> import meshtf as mtf
    >>> mtf.zeros(mtf.Mesh(""), "batch:2;d:4").permute(1, 0)
    Traceback (most recent call last):
      ...
    AttributeError: a tensor has no permute: operations find dimensions by name, in any...

Only messages are made here, so that `hasattr` stays fast for names that are not in the table.
"""

from __future__ import annotations

import sys

from meshtf.errors import explain_error
from meshtf.names.shape import Shape
from meshtf.names.source import Source

_ORDER = (
    "operations find dimensions by name, in any order",
    'For an array in another order write mtf.transpose(x, "{reversed}").',
)
_SIZES = (
    "dimensions have names",
    'Write all of the new ones with their sizes, as in mtf.reshape(x, "rows:{size}"); or '
    "mtf.flatten, mtf.unflatten, mtf.rename.",
)
_SIZE_1 = (
    "no dimension of size 1 is needed, since dimensions match by name",
    'Write x["{first}", 0] for an entry without its dimension, and mtf.reshape(x, ...) for a '
    "tensor that has one.",
)
_BROADCAST = (
    "dimensions match by name, so that tensors are broadcast where they meet",
    'Where that is not enough write mtf.broadcast(x, "copies:2; ...").',
)
_PRODUCT = (
    "a product says by names what is summed",
    'Name the dimensions of the result: mtf.einsum([x, y], "{first};d_ff").',
)
_GRADIENTS = (
    "gradients are a function of losses and variables",
    "Write mtf.gradients([loss], variables).",
)
_PLACE = (
    "the layout of the mesh says where its shards are",
    "x.placement shows it; mtf.shard, mtf.split and mtf.replicate change it.",
)
_CAST = ("a type is an argument", 'Write x.astype("float32"), or mtf.cast.')
_VALUE = (
    "its value is an array",
    "Write x.numpy(), or float(x) for a scalar; both wait for it.",
)
_UNCHANGED = ("a tensor never changes", "It needs no copy.")
_NEW_VALUES = (
    "a tensor never changes",
    "Write mtf.where(condition, a, b), or mtf.dynamic_update for a new tensor.",
)
_GATHER = (
    "entries are chosen by name",
    'Write x["{first}", 0], x["{first}", ids] or mtf.gather.',
)

# Attribute -> (why a tensor does not have it, what to write).
_TABLE = {
    "T mT transpose permute swapaxes moveaxis": _ORDER,
    "reshape view ravel resize": _SIZES,
    "squeeze unsqueeze expand_dims": _SIZE_1,
    "expand tile repeat broadcast_to expand_as": _BROADCAST,
    "dot mm bmm": _PRODUCT,
    "backward grad requires_grad requires_grad_": _GRADIENTS,
    "detach": (
        "no gradient is recorded on it",
        "Write mtf.stop_gradient(x).",
    ),
    "device cpu cuda to sharding devices": _PLACE,
    "float double half bfloat16 int long bool type": _CAST,
    "item tolist eval block_until_ready": _VALUE,
    "copy clone": _UNCHANGED,
    "at fill itemset masked_fill assign": _NEW_VALUES,
    "take index_select": _GATHER,
    "size nbytes": (
        "the shape has the sizes",
        'Write x.shape.size for all elements, x.shape["{first}"] for a dimension.',
    ),
    "dim rank": ("ndim is their number", "Write x.ndim."),
    "get_shape": ("shape is an attribute", "Write x.shape."),
    "var": ("reductions are functions", 'Write mtf.reduce_variance(x, "{first}").'),
    "topk": ("sorting is a function", 'Write mtf.top_k(x, "{first}", k).'),
    "clamp": ("it is a function", "Write mtf.clip(x, low, high)."),
}
_WAYS_OUT = {name: entry for names, entry in _TABLE.items() for name in names.split()}


def missing_attribute(
    name: str, shape: Shape, is_variable: bool
) -> AttributeError | None:
    """Returns the error for an attribute that tensors of other libraries have, or that is a
    function here; None for any other name.

    Args:
      name: the attribute, which a tensor or variable does not have.
      shape: the shape of the tensor.
      is_variable: whether it is a variable, which changes.
    """
    entry = _WAYS_OUT.get(name) or _function(name)
    if entry is None or (is_variable and entry in (_UNCHANGED, _NEW_VALUES)):
        return None
    reason, way_out = entry
    names = shape.names or ("d_model",)
    way_out = way_out.format(
        first=names[0], size=shape.size, reversed=";".join(reversed(names))
    )
    return AttributeError(
        explain_error(
            f"a {'variable' if is_variable else 'tensor'} has no {name}: {reason}.",
            tensor=repr(shape),
            source=Source.of_caller(),
            way_out=way_out,
        )
    )


def _function(name: str) -> tuple[str, str] | None:
    """Returns the entry of a function of meshtf, such as `exp`, `argmax` or `any`; None: there
    is none.
    """
    root = sys.modules[__name__.partition(".")[0]]
    for path, module in (("mtf", root), ("mtf.math", root.math)):
        for function in (name, f"reduce_{name}"):
            if function in module.__all__ and callable(getattr(module, function)):
                return "it is a function", f"Write {path}.{function}(x, ...)."
    return None
