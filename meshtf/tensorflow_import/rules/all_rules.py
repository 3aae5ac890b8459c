"""All rules: importing them enters them in the table."""

from meshtf.tensorflow_import.rules import (
    elementwise,
    gathers,
    lists,
    loops,
    products,
    random,
    reductions,
    shapes,
    slices,
    windows,
)
from meshtf.tensorflow_import.rules.table import RULES
