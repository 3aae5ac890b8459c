"""The calls of a function of named tensors that a Keras layer makes, each traced once.

A model's file has them as TensorFlow's graphs: whoever loads it needs no Python of the function.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.keras.named_layer.one_device import TracedCall, trace
from meshtf.keras.named_layer.signature import Signature, any_batch
from meshtf.runtime.variable import Variable
from meshtf.saved_model.sizes import BatchAxes

_FOLDER = "named_function"


class Weight(NamedTuple):
    """A variable of meshtf as a Keras weight.

    Attributes:
        path: Its path.
        names: Its dimensions.
        sizes: Their sizes.
        dtype: Its type.
        trainable: Whether it is trained.
    """

    path: str
    names: Sequence[str]
    sizes: Sequence[int]
    dtype: str
    trainable: bool


@keras.saving.register_keras_serializable("meshtf")
class TracedCalls:
    """The traced calls of a function, by signature.

    Attributes:
        names: The dimensions of each input, by parameter.
        weights: What each variable is.
        variables: The variables of meshtf; a loaded function has none.
        takes_training: Whether the function is told that it is in training.
        is_seeded: Whether each call has seeds.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        names: Mapping[str, str],
        variables: Sequence[Variable],
        chunk: int,
        is_seeded: bool,
    ) -> None:
        self.names = dict(names)
        self.variables = list(variables)
        self.weights = [
            Weight(v.path, v.spec.shape.names, v.spec.shape.sizes, v.dtype, v.trainable)
            for v in variables
        ]
        self.takes_training = "training" in inspect.signature(fn).parameters
        self.is_seeded = is_seeded
        self._fn: Callable[..., Any] | None = fn
        self._chunk = chunk
        self._calls: dict[Signature, TracedCall] = {}

    def __getitem__(self, signature: Signature) -> TracedCall:
        """Returns the call of a signature.

        Raises:
            ArgumentError, PlanError: As in `trace`.
            ShapeError: The function was loaded, and its file has no such call.
        """
        call = self._calls.get(signature)
        if call is not None:
            return call
        if self._fn is None:
            return self._loaded(signature)
        self._calls[signature] = trace(
            self._fn,
            self.names,
            signature,
            self.variables,
            self._chunk,
            self.is_seeded,
        )
        return self._calls[signature]

    @property
    def has_only_chunks(self) -> bool:
        """Whether the function was loaded, and computes chunks of a batch."""
        calls = self._calls.values()
        return self._fn is None and any(call.batch is not None for call in calls)

    def get_config(self) -> dict[str, Any]:
        """Returns what a file has of the calls beside their graphs."""
        calls = [
            {
                "inputs": signature.inputs,
                "training": signature.training,
                "outputs": call.outputs,
                "written": call.written,
                "batch": None if call.batch is None else call.batch._asdict(),
            }
            for signature, call in self._saved().items()
        ]
        return {
            "calls": calls,
            "names": self.names,
            "weights": [weight._asdict() for weight in self.weights],
            "takes_training": self.takes_training,
            "is_seeded": self.is_seeded,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TracedCalls:
        """Returns the calls of a file, whose graphs `load` reads later.

        Raises:
            PlanError: Keras is to load nothing that may run any code, as a graph may.
        """
        # Keras has no public way to ask. Imported here, so that only files depend on it.
        from keras.src.saving.serialization_lib import in_safe_mode

        if in_safe_mode() is not False:
            raise PlanError(
                explain_error(
                    "the model has a mtf.keras.Layer, whose graph TensorFlow runs as it is: in "
                    "a file of somebody else it may do anything.",
                    way_out="If you trust the file: keras.models.load_model(path, "
                    "safe_mode=False).",
                )
            )
        loaded = cls.__new__(cls)
        config = keras.saving.deserialize_keras_object(config)
        calls = config.pop("calls")
        vars(loaded).update(config, variables=[], _fn=None, _calls={})
        loaded.weights = [Weight(**weight) for weight in config["weights"]]
        for call in calls:
            inputs = tuple((tuple(sizes), dtype) for sizes, dtype in call["inputs"])
            batch = None if call["batch"] is None else BatchAxes(**call["batch"])
            loaded._calls[Signature(inputs, call["training"])] = TracedCall(
                _not_loaded, call["outputs"], call["written"], batch
            )
        return loaded

    def save(self, folder: str) -> None:
        """Writes the graphs of the calls into a folder."""
        module = tf.Module()
        for k, call in enumerate(self._saved().values()):
            setattr(module, f"call_{k}", call.function)
        tf.saved_model.save(module, os.path.join(folder, _FOLDER))

    def load(self, folder: str) -> None:
        """Reads the graphs of a file's calls from a folder."""
        if self._fn is None:
            module = tf.saved_model.load(os.path.join(folder, _FOLDER))
            for k, (signature, call) in enumerate(self._calls.items()):
                function = getattr(module, f"call_{k}")
                self._calls[signature] = call._replace(function=function)

    def _saved(self) -> dict[Signature, TracedCall]:
        """Returns the calls that a file has: those so far, for batches of any size where that
        is possible, and those in training.
        """
        if self._fn is None:
            return self._calls
        saved = {}
        for signature in list(self._calls):
            for training in (False, True) if self.takes_training else (False,):
                fixed = signature._replace(training=training)
                for each in (any_batch(self.names, fixed), fixed):
                    with contextlib.suppress(PlanError):
                        saved[each] = self[each]
                        break
        return saved

    def _loaded(self, signature: Signature) -> TracedCall:
        """Returns the call of a file that fits a signature: one for a batch of any size."""
        call = self._calls.get(any_batch(self.names, signature))
        if call is None:
            known = [str(signature.inputs) for signature in self._calls]
            raise ShapeError(
                explain_error(
                    "a layer that was loaded from a file has no call of these sizes in it.",
                    inputs=signature.inputs,
                    file="\n".join(dict.fromkeys(known)) or "none",
                    way_out="Call the layer with such inputs before the model is saved.",
                )
            )
        return call


def _not_loaded(*tensors: Any) -> Any:
    """Raises PlanError: a configuration alone has no graphs."""
    raise PlanError(
        explain_error(
            "a mtf.keras.Layer that was made from its configuration cannot run: the "
            "configuration has no graph.",
            way_out="Load the model from a .keras file: keras.models.load_model(path, "
            "safe_mode=False).",
        )
    )
