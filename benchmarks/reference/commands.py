"""docs/reference/commands.md: every command with its flags.

Flags are read from the source: modules that are run as commands define flags of equal
names, which one process cannot have.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from meshtf.command_line import COMMANDS

ROOT = Path(__file__).resolve().parents[2]  # the folder of the repository
HEAD = """# Commands

Every command with its flags. `--help` prints the same, `--helpfull` the flags of absl as well.
Exit codes: 0, or 1 for an error; those of clusters are in [clusters](clusters.md#faults).
`python -m benchmarks.reference` writes this page from the source.
"""
# The programs of `transformer` and of `examples.bert`, in the order of the page.
TRANSFORMER = (
    "train",
    "evaluate",
    "score",
    "decode",
    "export_saved_model",
    "tokenize",
    "train_vocabulary",
    "convert",
)
BERT = (
    "make_tasks",
    "create_pretraining_data",
    "run_pretraining",
    "run_classifier",
    "run_squad",
)
# The headings of the flags that several commands have, by the module of the flags.
SHARED = {
    "transformer.cli.command_line": "Flags of configurations",
    "transformer.cli.hardware_flags": "Flags of hardware",
    "transformer.cli.measure_flags": "Flags of measuring",
    "meshtf.commands.timeouts": "Flags of supervision",
    "examples.bert.shared.program_flags": "Flags of BERT programs",
    "examples.bert.shared.training_flags": "Flags of fine-tuning",
}


class Flag(NamedTuple):
    """A flag.

    Attributes:
      name: the name of the flag.
      default: the default as Markdown, or "required".
      choices: the values of an enum, as Markdown; "": the flag is no enum.
      help: the help text.
    """

    name: str
    default: str
    choices: str
    help: str


def page() -> str:
    """Returns the text of the page."""
    lines = [HEAD, "## Library: `python -m meshtf`\n"]
    for command, (module, _) in COMMANDS.items():
        lines.extend(section(f"python -m meshtf {command}", module))
    lines.append("## Transformers\n")
    for name in TRANSFORMER:
        lines.extend(section(f"python -m transformer.{name}", f"transformer.{name}"))
    lines.append("## BERT\n")
    for name in BERT:
        lines.extend(
            section(f"python -m examples.bert.{name}", f"examples.bert.{name}")
        )
    lines.append("## Flags that several commands have\n")
    for module, title in SHARED.items():
        lines.append(f"### {title}\n")
        lines.extend(table(flags_of(module)))
    return "\n".join(lines)


def section(command: str, module: str) -> Iterator[str]:
    """Yields the lines of one command: its heading, what it does, examples, and flags.

    Args:
      command: the command line, without flags.
      module: the name of its module.
    """
    docstring = inspect.cleandoc(ast.get_docstring(tree(module)) or "")
    title, _, rest = docstring.partition("\n\n")
    yield f"### `{command}`\n"
    yield f"{' '.join(title.split())}\n"
    examples = [
        line.removeprefix("    ")
        for line in rest.split("\n")
        if line.startswith("    ") and "python -m" in line
    ]
    if examples:
        yield "```text\n" + "\n".join(examples) + "\n```\n"
    yield from table(flags_of(module))
    shared = [name for name in adopted_modules(module) if name in SHARED]
    links = [f"[{SHARED[name].lower()}](#{anchor(SHARED[name])})" for name in shared]
    if links:
        yield f"Also: {', '.join(links)}.\n"


def table(flags: list[Flag]) -> Iterator[str]:
    """Yields the lines of a table of flags."""
    if flags:
        yield "| flag | default | meaning |\n|---|---|---|"
        for flag in flags:
            choices = f" One of {flag.choices}." if flag.choices else ""
            meaning = f"{flag.help}{choices}".replace("|", r"\|")
            yield f"| `--{flag.name}` | {flag.default} | {meaning} |"
        yield ""


def anchor(title: str) -> str:
    """Returns the anchor of a heading, for links."""
    return title.lower().replace(" ", "-")


@functools.cache
def tree(module: str) -> ast.Module:
    """Returns the syntax tree of a module, or of the `__main__` of a package."""
    path = ROOT / module.replace(".", "/")
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def flags_of(module: str) -> list[Flag]:
    """Returns the flags that a module defines, in the order of its source."""
    calls = [node for node in ast.walk(tree(module)) if isinstance(node, ast.Call)]
    definitions = [
        call for call in calls if ast.unparse(call.func).startswith("flags.DEFINE_")
    ]
    definitions.sort(key=lambda call: call.lineno)
    return [flag_of(call) for call in definitions]


def flag_of(call: ast.Call) -> Flag:
    """Returns the flag that a call of flags.DEFINE_... defines."""
    # DEFINE_type(name, default, [choices,] help)
    name, default, *choices, help_text = call.args
    keywords = {key.arg: key.value for key in call.keywords}
    required = ast.unparse(keywords.get("required", ast.Constant(False))) == "True"
    # A help text that is no literal, such as an f-string, is shown as source.
    if isinstance(help_text, ast.Constant):
        help_words = str(help_text.value)
    else:
        help_words = ast.unparse(help_text)
    choices_source = ", ".join(ast.unparse(choice) for choice in choices)
    return Flag(
        name=str(ast.literal_eval(name)),
        default="required" if required else f"`{ast.literal_eval(default)!r}`",
        # ['a', 'b'] -> `a`, `b`
        choices=choices_source.strip("[]").replace("'", "`"),
        help=" ".join(help_words.split()),
    )


def adopted_modules(module: str) -> list[str]:
    """Returns the modules whose flags a module adopts by `flags.adopt_module_key_flags`, also
    indirectly: the flags that an adopted module adopts.
    """
    nodes = list(ast.walk(tree(module)))
    imported: dict[str, str] = {}  # names in this module -> names of modules
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    direct = []
    for node in nodes:
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if function == "flags.adopt_module_key_flags":
                name = ast.unparse(node.args[0])
                if name in imported:
                    direct.append(imported[name])
    indirect = [inner for name in direct for inner in adopted_modules(name)]
    return list(dict.fromkeys([*direct, *indirect]))
