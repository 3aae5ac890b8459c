"""Writes docs/reference/settings.md and docs/reference/commands.md.

python -m benchmarks.reference
"""

from __future__ import annotations

from benchmarks.reference import commands, settings
from benchmarks.reference.commands import ROOT


def pages() -> dict[str, str]:
    """Returns the pages by their names."""
    return {"settings.md": settings.page(), "commands.md": commands.page()}


def main() -> None:
    """Writes the pages."""
    for name, text in pages().items():
        path = ROOT / "docs" / "reference" / name
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
