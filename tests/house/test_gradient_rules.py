"""Gradient rules that run code, and code that sets what random numbers depend on, are listed
here: a new one is added knowingly.

A rule of `mtf.custom_gradient` runs in the context of the forward pass, as far as random numbers
and variables go. What it draws, or runs again, is then what the forward pass drew.
"""

from __future__ import annotations

import ast
import dataclasses

import pytest

from meshtf.graph import Context
from meshtf.ops.control.seeds import CAPTURED
from tests.documentation.test_house import ROOT, files, tree

pytestmark = pytest.mark.every_case

# Each file that makes gradient rules, and what they draw or run again.
RULES = {
    "meshtf/graph/autodiff/recomputation.py": "a rule on recomputed tensors: calls the rule",
    "meshtf/layers/attention/context_parallel/ring.py": "runs each step again: dropout, bias",
    "meshtf/layers/attention/context_parallel/ring_step.py": "raises an error",
    "meshtf/layers/reversible.py": "runs each function again; a clipped gradient: nothing",
    "meshtf/ops/control/branch_not_taken.py": "zeros; the branch is recorded and never runs",
    "meshtf/ops/control/custom_gradient.py": "rules of users: anything",
    "meshtf/pipeline/gpipe.py": "scales gradients that are computed with the loss",
    "meshtf/tensorflow_import/rules/control/custom_gradients.py": "the operations of a rule of "
    "TensorFlow's, which may draw by their own seeds; one raises an error",
    "transformer/experts/dispatch.py": "gathers: nothing",
}

# Each file that changes what random numbers depend on, and what for.
SETTERS = {
    "meshtf/function/recording.py": "iterations are arguments of a trace",
    "meshtf/layers/attention/blockwise.py": "the iterations of the caller, not of its loop",
    "meshtf/layers/attention/context_parallel/ring_step.py": "the same",
    "meshtf/ops/control/microbatch.py": "microbatches",
    "meshtf/ops/control/seeds.py": "seeds, iterations, the context of gradient rules",
    "meshtf/ops/loops/pipelined_scan.py": "no microbatch, outside of the layers",
    "meshtf/ops/loops/stage.py": "the microbatch, and the layer in place of tick and stage",
    "meshtf/ops/random/random_indices.py": "indices of parts and of another order",
    "meshtf/optimizers/microbatches.py": "the iterations of the caller, not of its loop",
    "meshtf/pipeline/costs.py": "layers are recorded to count FLOPs, and never run",
    "meshtf/pipeline/gpipe.py": "each microbatch draws from the same paths",
    "meshtf/runtime/initial_values.py": "initial values depend on the name of the variable",
}

# What a gradient rule has from the backward pass, and why.
NOT_CAPTURED = {
    "region": "set by the backward pass for each node",
    "stage": "set by the backward pass for each node",
    "primals": "the tensors of the forward node",
    "needs_cotangent": "set by the backward pass for each node",
    "gradient_rule": "of one node",
    "recompute_group": "of the pass that runs",
    "wait_for": "of one node",
    "substitutes": "recomputed tensors of this backward pass",
    "deferred_calls": "calls once per batch are made in the forward pass",
    "stacked_dims": "for new variables",
    "mesh": "that of the program",
    "check_numerics": "of the pass that runs",
    "functions_run_eagerly": "of the pass that runs",
    "source": "that of the forward node",
    "runs_again": "set by the rule for what it runs again",
}


def test_files_with_gradient_rules_are_listed():
    makers = {"custom_gradient", "CustomGradientRule"}
    assert _files_with(lambda node: _name(node) in makers) == set(RULES)


def test_files_that_set_what_random_numbers_depend_on_are_listed():
    names = {*CAPTURED} - {"path", "layer_entries", "batch_means"}

    def sets(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or _name(node.func) != "context":
            return False
        return any(keyword.arg in names for keyword in node.keywords)

    assert _files_with(sets) == set(SETTERS)


def test_each_attribute_of_the_context_is_captured_or_not_for_a_reason():
    names = {field.name for field in dataclasses.fields(Context)}
    assert names == {*CAPTURED, *NOT_CAPTURED}
    assert not set(CAPTURED) & set(NOT_CAPTURED)


def _name(node: ast.AST) -> str | None:
    """Returns the last component of a name that is read; None for other nodes."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _files_with(matches) -> set[str]:
    """Returns the paths of the files of the packages that have a node that matches."""
    return {
        str(path.relative_to(ROOT))
        for package in ("meshtf", "transformer", "examples")
        for path in files(package)
        if any(matches(node) for node in ast.walk(tree(path)))
    }
