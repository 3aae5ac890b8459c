"""The conversion rules of the blocks of a stack, for all families.

Example:

    table = "ln_1.weight   attention_norm/scale   d_model"
    rules = block_rules(model.decoder, table, tensor_prefix="transformer.h.{layer}.")
"""

from __future__ import annotations

from transformer.convert.rules import Rule, each_layer, table
from transformer.models.stack import Stack


def block_rules(stack: Stack, text: str, tensor_prefix: str) -> list[Rule]:
    """Returns the rules of all blocks of a stack.

    Args:
      stack: a stack of our model.
      text: the table of rules of one block: see `transformer.convert.rules`.
      tensor_prefix: the start of the names of a block's tensors, with `{layer}` in it.
    """
    # A scanned stack has one block, whose variables are stacked over layers.
    block_name = "blocks/block" if stack.architecture.scanned else "block_{layer}"
    variable_prefix = "/".join([*stack.path, block_name, ""])
    rules = table(text, tensor_prefix=tensor_prefix, variable_prefix=variable_prefix)
    return each_layer(stack.architecture.blocks, rules)
