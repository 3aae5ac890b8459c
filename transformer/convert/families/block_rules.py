"""Tables of rules that families share: where our stacks keep the variables of their
blocks.
"""

from __future__ import annotations

from transformer.convert.rules import Rule, each_layer, table
from transformer.models.stack import Stack


def block_rules(stack: Stack, text: str, theirs: str) -> list[Rule]:
    """Returns the rules of all blocks of a stack.

    Args:
      stack: of our model; if it is scanned, each of its variables has rows for all
        layers.
      text: the table of one block.
      theirs: what their names of a block begin with, `{layer}` in it.
    """
    inside = "blocks/block" if stack.architecture.scanned else "block_{layer}"
    return each_layer(
        stack.architecture.blocks,
        table(text, theirs, "/".join([*stack.path, inside, ""])),
    )
