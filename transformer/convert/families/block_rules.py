"""Rules of the blocks of a stack, shared by families."""

from __future__ import annotations

from transformer.convert.rules import Rule, each_layer, table
from transformer.models.stack import Stack


def block_rules(stack: Stack, text: str, tensor_prefix: str) -> list[Rule]:
    """Returns the rules of all blocks of a stack.

    Args:
      stack: of our model; if it is scanned, each of its variables has all layers.
      text: the table of one block.
      tensor_prefix: of the names of tensors of a block, with `{layer}` in it.
    """
    block = "blocks/block" if stack.architecture.scanned else "block_{layer}"
    return each_layer(
        stack.architecture.blocks,
        table(text, tensor_prefix, "/".join([*stack.path, block, ""])),
    )
