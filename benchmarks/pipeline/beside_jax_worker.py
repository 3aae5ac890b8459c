"""Runs one case of `benchmarks.pipeline.beside_jax` in a separate process: see
`benchmarks.step.cases.worker`, whose requests it answers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.harness.case_server import serve
from benchmarks.pipeline.pipeline_cases import PipelineCase, batches, values
from benchmarks.step.cases.worker import LIBRARIES, Runner


def build(case: PipelineCase) -> tuple[Any, Callable[[], Any]]:
    """Returns the model of a case, and a function that makes its training step."""
    if case.runtime == "jax":
        module = importlib.import_module("benchmarks.pipeline.jax_pipeline")
        model = module.JaxPipeline(case)
    else:
        module = importlib.import_module("benchmarks.pipeline.meshtf_stack")
        model = module.MeshStack(case)
    return model, model.train_step


def start_runner(text: str) -> Runner:
    """Returns the runner of a case, given as JSON. Its libraries are imported before the clock
    starts.
    """
    case = PipelineCase.load(text)
    for library in LIBRARIES[case.runtime]:
        importlib.import_module(library)
    return Runner(case, build, batches, values)


if __name__ == "__main__":
    serve(start_runner)
