"""docs/reference/settings.md: every gin setting, its default and its meaning."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import gin
from gin import config as gin_config

import transformer
from benchmarks.reference.docstrings import parameters, summary

HEAD = """# Settings

Every gin setting of `transformer`, its default and its meaning. Gin files and `--gin_param` bind
them: `train.batch_size = 16`, `AdamW.learning_rate = @warmup_cosine()`. The code gives those
that have no default, or they must be bound.

`operative_config.gin` in the folder of a run has all settings that it used. Unknown names, and
values of another type, are refused with file and line. `python -m benchmarks.reference` writes
this page from docstrings.
"""
# For each heading, the prefixes of the modules whose configurables it has.
GROUPS = {
    "Training": ("transformer.training",),
    "Mesh": ("meshtf.mesh",),
    "Optimizers and learning rates": ("meshtf.optimizers",),
    "Models": ("transformer.models",),
    "Mixtures of experts": ("transformer.experts",),
    "Data": ("transformer.data",),
    "Decoding": ("transformer.inference",),
}


def page() -> str:
    """Returns the text of the page."""
    sections = [HEAD]
    for title, modules in GROUPS.items():
        sections.append(f"\n## {title}\n")
        for name, wrapped in configurables():
            if wrapped.__module__.startswith(modules):
                sections.extend(section(name, wrapped))
    return "\n".join(sections)


def configurables() -> list[tuple[str, Any]]:
    """Returns the classes and functions that gin configures, with their names in gin files,
    sorted by name.
    """
    for module in pkgutil.walk_packages(transformer.__path__, "transformer."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    pairs = [
        (gin_config._REGISTRY.minimal_selector(selector), configurable.wrapped)
        for selector, configurable in gin_config._REGISTRY.items()
        if configurable.wrapped.__module__.startswith(("meshtf.", "transformer."))
    ]
    return sorted(pairs, key=lambda pair: pair[0].lower())


def section(name: str, wrapped: Any) -> Iterator[str]:
    """Yields the lines of one configurable: its heading, what it is, and its settings.

    Args:
      name: the name in gin files.
      wrapped: the class or function.
    """
    yield f"### `{name}`\n"
    yield f"{summary(wrapped.__doc__ or '')} (`{wrapped.__module__}`)\n"
    rows = list(settings(wrapped))
    if rows:
        yield "| setting | default | meaning |\n|---|---|---|"
        for setting, default, meaning in rows:
            yield f"| `{name}.{setting}` | {default} | {meaning} |"
        yield ""


def settings(wrapped: Any) -> Iterator[tuple[str, str, str]]:
    """Yields name, default and meaning of each parameter."""
    meanings = all_parameters(wrapped)
    for name, parameter in inspect.signature(wrapped).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = ""
        if parameter.default is not parameter.empty:
            default = default_text(parameter.default)
        yield name, default, meanings.get(name, "").replace("|", r"\|")


def all_parameters(wrapped: Any) -> dict[str, str]:
    """Returns the meanings of the parameters of a class or function by name, also those in
    the docstrings of base classes.
    """
    # Base classes first, so that the docstrings of subclasses override theirs.
    owners = wrapped.__mro__[::-1] if inspect.isclass(wrapped) else [wrapped]
    meanings: dict[str, str] = {}
    for owner in owners:
        meanings |= parameters(owner.__doc__ or "")
    return meanings


def default_text(default: Any) -> str:
    """Returns a default as Markdown, as a gin file would have it."""
    if default is gin.REQUIRED:
        return "required"
    if callable(default):
        return f"`@{default.__name__}`"
    return f"`{default!r}`".replace("|", r"\|")
