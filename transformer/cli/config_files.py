"""Finds the gin files of the package: in `configs/` of a checkout, or in
`transformer/configs/` of an installed package.

Example:

    gin.add_config_file_search_path(config_folder())     # for `include` in gin files
    gin.parse_config_file(find_config("lm_stdlib.gin"))
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def config_folder() -> str:
    """Returns the folder of the gin files that come with the package."""
    installed_folder = _PACKAGE / "configs"
    if installed_folder.is_dir():
        return str(installed_folder)
    return str(_PACKAGE.parent / "configs")


def find_config(name: str) -> str:
    """Returns the path of a gin file: `name` itself if it is a file, else a file of the
    package.

    Raises:
      FileNotFoundError: there is neither; the message lists the files of the package.
    """
    folder = Path(config_folder())
    for path in (Path(name), folder / name):
        if path.is_file():
            return str(path)
    names = sorted(
        str(path.relative_to(folder).as_posix()) for path in folder.rglob("*.gin")
    )
    raise FileNotFoundError(
        f"there is no gin file {name!r}, neither at this path nor in {folder}.\n"
        f"  there are    {', '.join(names) or 'none'}\n"
        f"  Give one of these, or the path of another file."
    )
