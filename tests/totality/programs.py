"""Legal calls of `meshtf.optimizers`, `decoding`, `pipeline` and `checkpoints`."""

from __future__ import annotations

import os
from types import SimpleNamespace

import meshtf as mtf
from tests.totality.calls import Call, Double, call, fresh_folder, named, tensor

_O = mtf.optimizers
_P = mtf.pipeline
_C = mtf.checkpoints
_BOTH = {"learning_rate": "int float"}


def optimizers(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of optimizers."""
    variables = [t.v, t.b]
    calls = {}
    rules = [("", lambda vs: _O.SGD(vs, 0.1))]
    constructors = {
        name: call(variables, takes=_BOTH)
        for name in ("Adafactor", "Adagrad", "Adam", "AdamW", "FTRL", "LAMB", "SGD")
    }
    constructors |= {
        "ParameterGroups": call(variables, rules),
        "Optimizer": call(variables, 0.1, [{}, {}], "o", takes=_BOTH),
    }
    average = _O.ExponentialMovingAverage(variables, 0.9)
    averages = {
        "ExponentialMovingAverage.update": call(variables, t.step, on=average),
        "ExponentialMovingAverage.applied_to": call(
            variables, on=average, then=lambda context: context.__enter__()
        ),
    }
    for name, c in constructors.items():
        one = getattr(_O, name)(*c.args)
        calls |= {
            f"{name}.apply_gradients": call(
                t.grads, variables, t.step, on=one, runs=name != "Optimizer"
            ),
            f"{name}.check_variables": call(variables, on=one),
            f"{name}.apply_weight_decay": call(variables, t.one, on=one),
            f"{name}.rate_at": call(t.step, on=one),
            f"{name}.step_scalars": call(t.one, t.step, on=one),
        }
        if name not in ("Optimizer", "ParameterGroups"):
            calls[f"{name}.update"] = call(
                t.b, t.grads[1], one.slots["b"], one.step_scalars(t.one, t.step), on=one
            )
    return (
        named(constructors | {"ExponentialMovingAverage": call(variables, 0.9)})
        | averages
        | calls
        | {
            "accumulate_gradients": call(
                lambda x: mtf.reduce_mean(x * t.b), [t.b], t.x, "batch", 2
            ),
            "clip_by_global_norm": call(t.grads, 1.0),
            "global_norm": call(t.grads),
            "match_names": call("v$", then=lambda test: test(t.v)),
            "exclude_names": call("v$", then=lambda test: test(t.v)),
        }
    )


def schedules(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of schedules, each of which then tells the rate at a step."""
    calls = {
        "cosine_decay": call(9),
        "inverse_sqrt": call(9),
        "linear_decay": call(9, 3),
        "delay": call(_O.linear_warmup(3), 2),
        "linear_warmup": call(3),
        "product": call(0.1, takes={"factors": "int float"}),
        "slanted_triangular": call(0.1, 9),
        "warmup_cosine": call(0.1, 3, 9),
        "warmup_inverse_sqrt": call(0.1, 3),
    }
    return {
        name: c._replace(then=lambda rate: rate(t.step)) for name, c in calls.items()
    } | {"relative_step": call(t.step)}


def decoding(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of searches."""
    table = mtf.log(tensor(t.mesh, "here:4;vocab:4") + 1.0)

    def step(position, ids, state):
        return mtf.gather(table, ids, "here"), state

    prompt = tensor(t.mesh, "batch:4;length:3", "int32") - 1
    takes = {"temperature": "int float", "max_length": "int none", "state": "none"}
    return {
        "beam_search": call(step, prompt, "beam:2", takes=takes),
        "sample": call(step, prompt, takes=takes),
    }


def pipeline(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of pipelines."""
    pipe = _P.GPipe([Double(), Double()], 2, 2)
    schedule = _P.gpipe(2, 2)
    task = schedule.tasks[0][0]
    timeline = _P.simulate(schedule)
    layers = [_P.Layer("a", 1.0), _P.Layer("b", 2.0)]
    return {
        "GPipe": call([Double(), Double()], 2, 2, takes={"name": "none"}),
        "GPipe.__call__": call(t.x, on=pipe),
        "GPipe.stage_of": call(0, on=pipe),
        "GPipe.loss": call(mtf.reduce_mean, t.x, on=pipe),
        "GPipe.timeline": call(on=pipe),
        "Schedule": call(schedule.tasks),
        "Schedule.before": call(task, on=schedule),
        "Schedule.model_chunk": call(task, on=schedule),
        "Schedule.order": call(on=schedule),
        "Timeline": call(timeline.spans),
        "Timeline.peak_activations": call(on=timeline),
        "gpipe": call(2, 2),
        "peak_activations": call(schedule.order()),
        "ideal_speed_up": call(2, 2),
        "interleaved": call(2, 2, 2),
        "one_f_one_b": call(2, 2),
        "simulate": call(schedule),
        "split": call([1.0, 2.0], 2),
        "split_svg": call("title", layers, [1, 1]),
        "split_text": call(layers, [1, 1]),
        "timeline_svg": call("title", {"a": timeline}),
        "timeline_text": call(timeline),
    }


def checkpoints(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of what saves and restores."""
    saver = _C.Saver(fresh_folder(t))
    manifest = _C.Manifest.read(t.saved)
    parent = os.path.dirname(t.saved)
    return {
        "Manifest.check_index": call(t.saved, on=manifest),
        "Manifest.check_sizes": call(t.saved, on=manifest),
        "Manifest.read": call(t.saved),
        "Manifest.write": call(fresh_folder(t), on=manifest),
        "Saver": call(fresh_folder(t)),
        "Saver.finish": call(on=saver),
        "Saver.wait": call(on=saver),
        "Saver.save": call(1, {"v": t.v}, on=saver),
        "check_shared": call(t.folder),
        "foreign_format": call(parent),
        "latest": call(parent),
        "newest_complete": call(parent, lambda path: {}),
        "only_run": call(fresh_folder(t)),
        "restore": call(t.saved, {"v": t.v}),
        "restore_latest": call(parent, {"v": t.v}),
        "save": call(fresh_folder(t), 3, {"v": t.v}),
    }


def programs(t: SimpleNamespace) -> dict[str, Call]:
    """Returns all of these calls."""
    by_module = {
        "optimizers": optimizers(t) | schedules(t),
        "decoding": decoding(t),
        "pipeline": pipeline(t),
        "checkpoints": checkpoints(t),
    }
    return {
        f"{module}.{name}": c
        for module, calls in by_module.items()
        for name, c in calls.items()
    }
