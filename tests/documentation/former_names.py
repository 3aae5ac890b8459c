"""Copies the tables of docs/explain/mesh_tensorflow.md into meshtf/mesh_tensorflow_names.txt.

    python -m tests.documentation.former_names

The errors for names that only Mesh-TensorFlow has quote them.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explain" / "mesh_tensorflow.md"
FILE = ROOT / "meshtf" / "mesh_tensorflow_names.txt"

HEADER = """# What takes the place of the names of Mesh-TensorFlow 0.1.21: name, tab, text.
# Written by `python -m tests.documentation.former_names` from docs/explain/mesh_tensorflow.md.
"""


def replacements(page: str) -> dict[str, str]:
    """Returns what each name in the first column of the tables is replaced by."""
    table = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("|"):
            for name in re.findall("`([^`]+)`", cells[0]):
                table[name] = cells[1].replace(r"\|", "|")
    return table


def file_text(page: str) -> str:
    """Returns the text of meshtf/mesh_tensorflow_names.txt."""
    table = replacements(page)
    return HEADER + "".join(f"{name}\t{table[name]}\n" for name in sorted(table))


if __name__ == "__main__":
    FILE.write_text(file_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
