"""`mtf.keras.Layer`: a function or module of meshtf as a Keras layer, on one device.

net = mtf.layers.FeedForward(mesh, "d_model:8", "d_ff:32")
y = mtf.keras.Layer(net, "batch; d_model")(x)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from meshtf.errors import ArgumentError, explain_error, near_misses
from meshtf.keras.named_layer.one_device import TracedCall
from meshtf.keras.named_layer.signature import signature_of
from meshtf.keras.named_layer.traced_calls import TracedCalls
from meshtf.module import Module
from meshtf.names.arguments import as_callable, refuse
from meshtf.runtime.variable import Variable


@keras.saving.register_keras_serializable("meshtf")
class Layer(keras.Layer):
    """A Keras layer that computes a function of named tensors, on one device.

    The layer's weights begin with the values of the variables, and are trained, counted and
    saved with the model. `write_back` assigns their values to the variables. A `.keras` file
    has the function's graph as well, so that loading it needs no Python of the function, but
    `mtf.keras`, and `safe_mode=False`.

    Attributes:
        calls: The calls that are traced so far, by signature.
        axis_names: By a weight's identity, the names of its dimensions.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        inputs: str | Mapping[str, str],
        variables: Any = None,
        seed: int | None = None,
        chunk_size: int = 32,
        **options: Any,
    ) -> None:
        """Makes a layer.

        Args:
            fn: A `mtf.Module`, a `mtf.function` or a function of tensors, which returns a
                tensor, or a list, tuple or dict of tensors. If it has a parameter `training`,
                it is told whether Keras trains.
            inputs: The dimensions of its argument: "batch; d_model"; of several, by parameter:
                {"x": "batch; d_model", "mask": "batch"}. The first dimension of the first one
                is the batch.
            variables: What it reads: a module or a variable, or a list of them, on any mesh;
                None: those of the module that `fn` is, or is a method of.
            seed: For a function that draws random numbers: each call draws new ones.
            chunk_size: Where Keras does not know the size of a batch, the function is
                computed for this many entries at once. The last ones are filled up.
            **options: `name`, `dtype` and `trainable` of a `keras.Layer`. Inputs of floats are
                cast to `dtype`, by default the type of the first variable.

        Raises:
            ArgumentError: An argument is of another type, or names a parameter that the
                function lacks.
            MeshError: The variables are on an abstract mesh: they have no values.
        """
        if isinstance(fn, TracedCalls):  # of a configuration
            calls = fn
        else:
            as_callable("fn", fn)
            owned = _owner(fn) if variables is None else variables
            names, is_seeded = _names(fn, inputs), seed is not None
            calls = TracedCalls(fn, names, _variables(owned), chunk_size, is_seeded)
        if calls.weights:
            options.setdefault("dtype", calls.weights[0].dtype)
        super().__init__(**options)
        self.calls = calls
        self._settings = {"seed": seed, "chunk_size": chunk_size}
        self._seeds = None if seed is None else keras.random.SeedGenerator(seed)
        values = [v.numpy() for v in calls.variables]
        if not values:  # a file has them
            values = [tf.zeros(w.sizes, w.dtype) for w in calls.weights]
        self._values = [
            self.add_weight(
                shape=weight.sizes,
                dtype=weight.dtype,
                initializer=functools.partial(_initial, value),
                trainable=weight.trainable,
                autocast=False,
                name=weight.path.replace("/", "."),
            )
            for weight, value in zip(calls.weights, values)
        ]
        both = zip(self._values, calls.weights)
        self.axis_names = {id(value): weight.names for value, weight in both}

    def call(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        """Returns the function's results, as TensorFlow tensors."""
        inputs = [tf.convert_to_tensor(x) for x in self._bind(args, kwargs)]
        weights = [tf.convert_to_tensor(w.value) for w in self._values]
        seeds: Sequence[Any] = ()
        if self._seeds is not None:
            seeds = tf.unstack(tf.cast(self._seeds.next(), "int32"))
        results, new_values = self._traced(inputs, training)(weights, inputs, seeds)
        for k, value in new_values.items():
            self._values[k].assign(value)
        return results

    def compute_output_spec(
        self, *args: Any, training: bool | None = None, **kwargs: Any
    ) -> Any:
        """Returns the shapes of the results, before anything runs."""
        outputs = self._traced(self._bind(args, kwargs), training).outputs
        return keras.tree.map_structure(
            lambda y: keras.KerasTensor(y.shape, y.dtype), outputs
        )

    def write_back(self, variables: Any = None) -> None:
        """Assigns the values of the weights to variables of meshtf, on any mesh.

        Args:
            variables: A module, a variable or a list of them, which have the paths of the
                layer's; None: those that the layer was made of.

        Raises:
            ArgumentError: One of the layer's is not among them; or the layer was loaded from a
                file, and there are none.
        """
        targets = self.calls.variables if variables is None else _variables(variables)
        by_path = {v.path: v for v in targets}
        paths = [weight.path for weight in self.calls.weights]
        for path in paths:
            if path not in by_path:
                raise ArgumentError(
                    explain_error(
                        f"the layer {self.name!r} has a weight {path!r}, and no variable of "
                        "this path is there to take its value.",
                        similar=near_misses(path, by_path) or "none",
                        way_out="Pass the module that has it: layer.write_back(module).",
                    )
                )
        for path, value in zip(paths, self._values):
            by_path[path].assign(value.numpy())

    def check_for_mesh(self) -> None:
        """Raises ArgumentError if a mesh cannot compute the layer: one of a file computes chunks
        of a batch, of which a mesh would shard nothing.
        """
        if self.calls.has_only_chunks:
            raise ArgumentError(
                explain_error(
                    f"the layer {self.name!r} was loaded from a file, whose graph is for one "
                    "device.",
                    way_out="Make the model in Python, with mtf.keras.Layer(fn, ...), and read "
                    "its weights from the file: model.load_weights(path).",
                )
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor; `fn` with its calls so far."""
        arguments = {"fn": self.calls, "inputs": dict(self.calls.names)}
        return {**super().get_config(), **arguments, **self._settings}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Layer:
        """Returns the layer of a configuration; a clone shares its function."""
        fn = config["fn"]
        if isinstance(fn, dict):
            fn = keras.saving.deserialize_keras_object(fn)
        layer: Layer = super().from_config({**config, "fn": fn})
        return layer

    def save_assets(self, dir_path: str) -> None:
        """Writes the function's graphs; Keras calls it for a `.keras` file."""
        self.calls.save(dir_path)

    def load_assets(self, dir_path: str) -> None:
        """Reads the function's graphs; Keras calls it for a `.keras` file."""
        self.calls.load(dir_path)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the inputs of a call in the order of names."""
        names = list(self.calls.names)
        inputs = dict(zip(names, args)) | dict(kwargs)
        if len(args) + len(kwargs) != len(names) or set(inputs) != set(names):
            raise ArgumentError(
                explain_error(
                    f"the layer {self.name!r} takes {', '.join(names)}.",
                    passed=f"{len(args)} by order; by name: {', '.join(kwargs) or 'none'}",
                    way_out="Pass each input once: layer(x), layer(x, mask=mask).",
                )
            )
        return [inputs[name] for name in names]

    def _traced(self, inputs: Sequence[Any], training: bool | None) -> TracedCall:
        is_training = bool(training) and self.calls.takes_training
        return self.calls[signature_of(self.calls.names, inputs, is_training)]


def _names(fn: Any, inputs: Any) -> dict[str, str]:
    """Returns the dimensions of a function's inputs, by parameter.

    Raises:
        ArgumentError: They are of another type, or the function lacks a parameter.
    """
    parameters = [
        name for name in inspect.signature(fn).parameters if name != "training"
    ]
    if isinstance(inputs, str) and parameters:
        inputs = {parameters[0]: inputs}
    texts = inputs.values() if isinstance(inputs, Mapping) else [None]
    if not inputs or not all(isinstance(text, str) for text in texts):
        refuse(
            "inputs",
            inputs,
            'names of dimensions, such as "batch; d_model", or a dict of them',
        )
    for name in inputs:
        if name not in parameters:
            raise ArgumentError(
                explain_error(
                    f"`inputs` names a parameter {name!r}, which the function lacks.",
                    parameters=", ".join(parameters) or "none",
                    similar=near_misses(name, parameters) or "none",
                )
            )
    return dict(inputs)


def _initial(value: Any, shape: Any, dtype: Any) -> Any:
    """Returns the value of a weight, as an initializer of Keras does."""
    return tf.convert_to_tensor(value, dtype)


def _owner(fn: Any) -> Any:
    """Returns the object that a method belongs to; another function as it is."""
    if isinstance(fn, functools.partial) and fn.args:  # a method that is a mtf.function
        return fn.args[0]
    return getattr(fn, "__self__", fn)


def _variables(source: Any) -> list[Variable]:
    """Returns the variables of a module, a variable or a list of them; of a function, none.

    Raises:
        ArgumentError: It is something else.
    """
    if isinstance(source, Variable):
        return [source]
    if isinstance(source, Module):
        return list(source.variables)
    members = list(source) if isinstance(source, Iterable) else [None]
    if all(isinstance(x, (Variable, Module)) for x in members):
        variables = [v for x in members for v in _variables(x)]
        return list({id(v): v for v in variables}.values())
    if not callable(source):
        takes = "a module or a variable of meshtf, or a list of them"
        refuse("variables", source, takes)
    return []
