"""The settings of Hugging Face's config.json: reads them, and checks that settings have the
one value that our models support, and that none is left over.

Example:

    settings = Settings(json.loads(text))
    settings.require(scale_attn_weights=True)      # an error for any other value
    d_model = settings["n_embd"]
    settings.refuse_unread(HARMLESS)               # an error for a setting of no effect here
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import meshtf as mtf

# Hugging Face's name of an activation -> our name. Our "gelu" is the approximation by tanh.
ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


class Settings:
    """The settings of a config.json.

    Args:
      values: the settings by name.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()  # names that were asked for

    def __getitem__(self, name: str) -> Any:
        """Returns a setting.

        Raises:
          CheckpointError: the setting is absent.
        """
        self._read.add(name)
        if name not in self._values:
            raise mtf.CheckpointError(
                f"config.json has no {name!r}, which this model needs."
            )
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a setting; `default` if it is absent or null."""
        self._read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def require(self, **supported: Any) -> None:
        """Checks that settings have the one value that our models support.

        Args:
          **supported: the supported value of each setting. A setting that is absent or null
            counts as having this value.

        Raises:
          CheckpointError: a setting has another value.
        """
        self._read.update(supported)
        unsupported = {
            name: self._values[name]
            for name, value in supported.items()
            if self._values.get(name, value) not in (value, None)
        }
        if unsupported:
            raise mtf.CheckpointError(
                mtf.errors.explain_error(
                    "config.json has settings that are not supported.",
                    config="\n".join(
                        f"{name}: {value!r}" for name, value in unsupported.items()
                    ),
                    supported="\n".join(
                        f"{name}: {supported[name]!r}" for name in unsupported
                    ),
                )
            )

    def refuse_unread(self, harmless: Container[str]) -> None:
        """Checks that every setting was read, since a setting that is left over may change what
        the model computes.

        Args:
          harmless: the names of settings that need not be read. A setting that is null or
            empty counts as absent.

        Raises:
          CheckpointError: a setting is left over.
        """
        unread = {
            name: value
            for name, value in self._values.items()
            if name not in self._read
            and name not in harmless
            and value not in (None, [], {})
        }
        if unread:
            raise mtf.CheckpointError(
                mtf.errors.explain_error(
                    "config.json has settings that this kind of model does not have here.",
                    config="\n".join(
                        f"{name}: {value!r:.60}" for name, value in unread.items()
                    ),
                    way_out="What they change would be lost. Remove those from config.json "
                    "that change nothing of this model.",
                )
            )

    def activation(self, name: str) -> str:
        """Returns our name of an activation.

        Args:
          name: the name of the setting that has the activation, such as "hidden_act".

        Raises:
          CheckpointError: we do not have this activation.
        """
        activation = self[name]
        if activation not in ACTIVATIONS:
            raise mtf.CheckpointError(
                f"config.json has the activation {activation!r}; supported are "
                f"{', '.join(ACTIVATIONS)}."
            )
        return ACTIVATIONS[activation]


def hugging_face_activation(name: str) -> str:
    """Returns the name that config.json uses for one of our activations.

    Raises:
      CheckpointError: config.json has no name for the activation.
    """
    names = [theirs for theirs, ours in ACTIVATIONS.items() if ours == name]
    if not names:
        raise mtf.CheckpointError(
            f"Hugging Face has no name for the activation {name!r}; it has names for "
            f"{', '.join(ACTIVATIONS.values())}."
        )
    return names[0]
