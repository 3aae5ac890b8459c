"""TensorFlow's StableHLO as a portable artifact of one partition.

    artifact = portable(text)              # bytes, which later versions of XLA can read

TensorFlow writes StableHLO as MLIR text with some ops and attributes of the dialect mhlo,
which only TensorFlow reads, and with the names of source files. This module

    drops the attributes of mhlo         they say which outputs reuse inputs: the host decides;
                                         only that of `stored` is kept
    replaces mhlo.copy by a reshape      it is TensorFlow's identity
    replaces mhlo.erf, mhlo.tan          by the custom calls that jax.export writes for them
    replaces replica_id by partition_id  XLA runs one partition at each mesh position
    keeps names of ops as locations      profilers show them; files and lines are dropped
    names functions by their order       so equal programs are equal texts, found in caches

and refuses every other op of mhlo.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from meshtf.errors import MeshtfError
from meshtf.runtime.tf_internals.stablehlo_artifact import serialize
from meshtf.runtime.tf_internals.xla_ops import NOT_INLINED

# The artifact can be read by this version of StableHLO and later ones; jax 0.6.2 has it.
VERSION = "1.10.0"

# Patterns that also match strings, so that what they look for is not found inside a string.
_STRING = r'"(?:[^"\\]|\\.)*"'
_STRING_OR_LOCATION = re.compile(rf"{_STRING}| loc\(")
_STRING_OR_BRACKET = re.compile(rf"{_STRING}|[()\[\]{{}}]")
_STRING_OR_MHLO = re.compile(rf"{_STRING}|\bmhlo\.\w+")
# Locations: #loc3 = loc("a/name"), or loc("file.py":12:3), or loc(fused[#loc1, #loc2]).
_LOCATION = re.compile(r"(#loc\d*) = loc\((.*)\)")
_REFERENCE = re.compile(r"#loc\d*")
_NAME = re.compile(
    r'"((?:[^"\\]|\\.)*)"(?!:\d)'
)  # not the name of a file, before ":12"
# func.func private @name(...) and uses of such names.
_FUNCTION = re.compile(r"\s*func\.func (?:private |public )?(@[\w.$-]+)")
_SYMBOL = re.compile(r"@[\w.$-]+")
_MHLO_ATTRIBUTE = re.compile(r"(?:, )?mhlo\.\w+ = ")
# %3 = mhlo.erf %2 : tensor<4xf32>
_MHLO_OP = re.compile(r"(\s*%\w+) = mhlo\.(\w+) (%[\w#]+) : (tensor<.*>)")
# The element-wise functions that StableHLO lacks, and XLA knows as custom calls.
_CUSTOM_CALLS = ("erf", "tan")


class UnknownMhloOpError(MeshtfError):
    """An op of mhlo that has no counterpart in StableHLO.

    Attributes:
      op: its name, such as "mhlo.foo".
      location: the name of the TensorFlow op that it comes from; "" if unknown.
    """

    def __init__(self, op: str, location: str) -> None:
        super().__init__(f"{op} is not portable, of {location or 'an unknown op'}.")
        self.op = op
        self.location = location


def portable(text: str) -> bytes:
    """Returns a module that TensorFlow wrote as text, as a portable artifact.

    Raises:
      UnknownMhloOpError: an op has no counterpart in StableHLO.
    """
    return serialize(portable_text(text), VERSION)


def portable_text(text: str) -> str:
    """Returns the module as text of StableHLO alone; see `portable` for `Raises`."""
    lines = text.splitlines()
    locations = _Locations(lines)
    names = _function_names(lines)
    portable_lines = []
    for line in lines:
        if line.startswith("#loc"):
            continue
        line = _portable_line(line, locations)
        renamed = _SYMBOL.sub(lambda match: names.get(match[0], match[0]), line)
        portable_lines.append(renamed)
    return "\n".join(portable_lines)


def _function_names(lines: Iterable[str]) -> dict[str, str]:
    """Returns {old name: new name} for all functions but main. New names are @f0, @f1, ...,
    which do not depend on what TensorFlow traced before.
    """
    names: dict[str, str] = {}
    for line in lines:
        match = _FUNCTION.match(line)
        if match is not None and match[1] != "@main":
            names[match[1]] = f"@f{len(names)}"
    return names


def _portable_line(line: str, locations: _Locations) -> str:
    """Returns a line without mhlo. Of its locations, only the name of an op is kept."""
    if line.startswith("module "):
        return "module @program {"
    body, location = _split_location(line)
    op_name = "" if location is None else locations.name_in(location)
    if "mhlo." in body and not _is_stored(body):
        body = _without_mhlo(body, op_name)
    body = body.replace("= stablehlo.replica_id ", "= stablehlo.partition_id ")
    if location is None:
        return body
    return f'{body} loc("{op_name}")' if op_name else f"{body} loc(unknown)"


def _is_stored(line: str) -> bool:
    """Returns whether a line is the call of `stored`, which XLA must not inline."""
    return " = call @" in line and NOT_INLINED in line


def _without_mhlo(line: str, op_name: str) -> str:
    """Returns the line of an op without ops and attributes of mhlo.

    Args:
      line: the line, without locations.
      op_name: the name of the TensorFlow op, for errors.

    Raises:
      UnknownMhloOpError: the op has no counterpart in StableHLO.
    """
    line = _without_mhlo_attributes(line)
    match = _MHLO_OP.fullmatch(line)
    if match is None:
        for token in _STRING_OR_MHLO.findall(line):
            if not token.startswith('"'):
                raise UnknownMhloOpError(token, op_name)
        return line
    result, op, operand, tensor_type = match.groups()
    signature = f"({tensor_type}) -> {tensor_type}"
    if op == "copy":
        return f"{result} = stablehlo.reshape {operand} : {signature}"
    if op in _CUSTOM_CALLS:
        attributes = "{mhlo.attributes = {}, mhlo.version = 1 : i64}"
        call = f"stablehlo.custom_call @mhlo.{op}({operand}) {attributes}"
        return f"{result} = {call} : {signature}"
    raise UnknownMhloOpError(f"mhlo.{op}", op_name)


def _without_mhlo_attributes(line: str) -> str:
    """Returns a line without the attributes of mhlo, and without empty dictionaries."""
    while (match := _MHLO_ATTRIBUTE.search(line)) is not None:
        line = line[: match.start()] + line[_end_of_value(line, match.end()) :]
    return line.replace("{, ", "{").replace(" {}", "")


def _end_of_value(line: str, start: int) -> int:
    """Returns the index after the value of an attribute that begins at `start`."""
    if line[start] in "{[":
        return _closing_bracket(line, start) + 1
    end = re.search(r"[,}]", line[start:])
    return len(line) if end is None else start + end.start()


def _split_location(line: str) -> tuple[str, str | None]:
    """Returns (line, location): the line without the location at its end, and the contents of
    this location, None if there is none. All other locations in the line become unknown.
    """
    body = ""
    copied_until = 0
    for match in _STRING_OR_LOCATION.finditer(line):
        is_inside_location = match.start() < copied_until
        is_string = match[0].startswith('"')
        if is_inside_location or is_string:
            continue
        bracket = match.end() - 1
        end = _closing_bracket(line, bracket)
        body += line[copied_until : match.start()]
        copied_until = end + 1
        if copied_until == len(line):
            return body, line[bracket + 1 : end]
        body += " loc(unknown)"
    return body + line[copied_until:], None


def _closing_bracket(text: str, start: int) -> int:
    """Returns the index of the bracket that closes the one at `start`."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, start):
        if match[0].startswith('"'):
            continue
        depth += 1 if match[0] in "([{" else -1
        if depth == 0:
            return match.start()
    return len(text)


class _Locations:
    """The names of TensorFlow ops in the locations of a module.

    Args:
      lines: the lines of the module; those that define locations are used.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        # {reference such as "#loc3": the contents of this location}
        self._contents: dict[str, str] = {}
        # {reference: the name of an op in it}, for references that were looked up.
        self._names: dict[str, str] = {}
        for line in lines:
            match = _LOCATION.fullmatch(line)
            if match is not None:
                self._contents[match[1]] = match[2]

    def name_in(self, content: str) -> str:
        """Returns the first name of an op in the contents of a location, "" if none.

        A location is a name, a place in a file, a reference such as #loc3, or several of
        these: fused[#loc21, #loc22].
        """
        match = _NAME.search(content)
        if match is not None:
            return match[1]
        for reference in _REFERENCE.findall(content):
            if reference not in self._names:
                self._names[reference] = ""  # ends the recursion if it refers to itself
                inner = self._contents.get(reference, "")
                self._names[reference] = self.name_in(inner)
            if self._names[reference]:
                return self._names[reference]
        return ""
