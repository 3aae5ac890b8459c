"""A TensorFlow function as a concrete one whose arguments have known shapes."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import ArgumentError, explain_error, near_misses
from meshtf.names import nested
from meshtf.names.arguments import refuse
from meshtf.tensorflow_import.argument_names import Argument, arguments_of
from meshtf.tensorflow_import.graph.custom_gradients import has_rule


@dataclasses.dataclass(frozen=True)
class TracedFunction:
    """A concrete function.

    Attributes:
        name: The name of the function.
        concrete: It: takes a list of tensors, those of `arguments` in order.
        parameters: Its parameters. Those without tensors have what it was traced with as
            their default.
        structure: By parameter, a nesting of specs of tensors and Python values.
        arguments: The tensors among the arguments.
        source: What must live as long as its variables.
    """

    name: str
    concrete: Any
    parameters: inspect.Signature
    structure: Mapping[str, Any]
    arguments: Sequence[Argument]
    source: Any


def trace(
    fn: Any,
    specs: Sequence[Any],
    signature: str,
    inputs: Mapping[str, Any],
) -> TracedFunction:
    """Traces a function, with the sizes that `inputs` gives where its specs tell none.

    Args:
        fn: A function, a `tf.function`, a concrete function, a loaded SavedModel or the path
            of one.
        specs: Positional arguments: specs or examples of tensors, and Python values.
        signature: The name of a SavedModel's signature.
        inputs: By parameter, names of dimensions.

    Raises:
        ArgumentError: Specs are missing, or names are those of no argument.
        ShapeError: Names do not fit an argument, or a size is unknown.
    """
    if isinstance(fn, (str, os.PathLike)):
        path = os.fspath(fn)
        if not tf.saved_model.contains_saved_model(path):
            refuse("fn", path, f"{_TAKES}; there is no SavedModel at this path")
        fn = tf.saved_model.load(path)
    source = fn
    if isinstance(getattr(fn, "signatures", None), Mapping):
        fn = _signature_of(fn, signature)
    concrete = _concrete(fn, specs)
    parameters, structure = _parameters(concrete)
    arguments = arguments_of(structure, inputs)
    # A rule of tf.custom_gradient is known in the function's own graph alone.
    has_rules = any(map(has_rule, concrete.graph.get_operations()))
    called = getattr(fn, "python_function", fn) if has_rules else concrete

    def run(tensors: list[tf.Tensor]) -> Any:
        remaining = iter(tensors)
        bound = parameters.bind_partial()
        bound.arguments |= nested.map_structure(
            lambda x: next(remaining) if is_spec(x) else x, structure
        )
        return called(*bound.args, **bound.kwargs)

    full_specs = [tf.TensorSpec(x.sizes, x.spec.dtype) for x in arguments]
    outer = tf.function(run, autograph=called is not concrete)
    return TracedFunction(
        name=_name_of(fn, signature),
        concrete=outer.get_concrete_function(full_specs),
        parameters=parameters,
        structure=structure,
        arguments=arguments,
        source=(source, concrete),
    )


_TAKES = (
    "a TensorFlow function: one of tensors, a tf.function, a concrete function, or the path "
    "of a SavedModel"
)


def is_spec(x: Any) -> bool:
    """Whether a leaf of a structure stands for a tensor."""
    return isinstance(x, tf.TensorSpec)


def _concrete(fn: Any, specs: Sequence[Any]) -> Any:
    """Returns a concrete function of a function of TensorFlow or Python."""
    if isinstance(fn, tf.types.experimental.ConcreteFunction):
        return fn
    if not callable(fn):
        refuse("fn", fn, _TAKES)
    loaded = getattr(fn, "concrete_functions", None)
    if loaded and not specs:
        return loaded[0]
    if not isinstance(fn, tf.types.experimental.PolymorphicFunction) and not loaded:
        fn = tf.function(fn)
    if not specs and not loaded and fn.input_signature is None and _takes_arguments(fn):
        raise ArgumentError(
            explain_error(
                f"the shapes of the arguments of {_name_of(fn, '')} are unknown.",
                way_out="Give a spec of each positional argument after the mesh: "
                "from_tensorflow(fn, mesh, tf.TensorSpec([8, 16])); or an input_signature "
                "to tf.function.",
            )
        )
    return fn.get_concrete_function(*map(_as_specs, specs))


def _as_specs(x: Any) -> Any:
    """Returns an argument with a spec in place of each array."""

    def leaf(x: Any) -> Any:
        if isinstance(x, tf.TypeSpec) or not hasattr(x, "shape"):
            return x
        return tf.TensorSpec(x.shape, x.dtype)

    return nested.map_structure(leaf, x)


def _takes_arguments(fn: Any) -> bool:
    parameters = inspect.signature(fn.python_function).parameters.values()
    return any(p.default is inspect.Parameter.empty for p in parameters)


def _signature_of(loaded: Any, signature: str) -> Any:
    """Returns a signature of a loaded SavedModel.

    Raises:
        ArgumentError: It has none of this name.
    """
    if signature not in loaded.signatures:
        raise ArgumentError(
            explain_error(
                f"the SavedModel has no signature {signature!r}.",
                signatures=", ".join(loaded.signatures) or "none",
                similar=near_misses(signature, loaded.signatures) or "none",
                way_out="Write one of them: from_tensorflow(..., signature=...).",
            )
        )
    return loaded.signatures[signature]


def _parameters(concrete: Any) -> tuple[inspect.Signature, dict[str, Any]]:
    """Returns the parameters of a concrete function, and a nesting for each.

    Raises:
        ArgumentError: An argument is ragged or sparse.
    """
    parameters = [
        inspect.Parameter(p.name, p.kind)
        for p in concrete.function_type.parameters.values()
    ]
    args, kwargs = concrete.structured_input_signature
    structure = inspect.Signature(parameters).bind(*args, **kwargs).arguments
    for name, nesting in structure.items():
        for leaf in nested.flatten(nesting):
            if isinstance(leaf, tf.TypeSpec) and not is_spec(leaf):
                raise ArgumentError(
                    f'the argument "{name}" is a {type(leaf).__name__}: a mesh runs dense '
                    "tensors; use `to_tensor` or `tf.sparse.to_dense` before the call"
                )
    with_defaults = [
        p
        if any(map(is_spec, nested.flatten(structure[p.name])))
        else p.replace(default=structure[p.name])
        for p in parameters
    ]
    return inspect.Signature(with_defaults), dict(structure)


def _name_of(fn: Any, signature: str) -> str:
    name = getattr(fn, "__name__", None)
    if name is None:
        name = getattr(getattr(fn, "python_function", None), "__name__", None)
    return name or signature or type(fn).__name__
