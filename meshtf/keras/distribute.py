"""A Keras model on a mesh."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import ArgumentError, MeshtfError
from meshtf.forecast import Forecast
from meshtf.function.compiled_forecast import CompiledForecast
from meshtf.function.without_running import compile_for, explain
from meshtf.garbage import without_garbage_collection
from meshtf.keras.check import check_predictions
from meshtf.keras.layer_settings.patterns import LayerSettings, is_built, layers_within
from meshtf.keras.layout_map import VariableLayouts, as_mesh, check_axes
from meshtf.keras.named_layer.layer import Layer
from meshtf.keras.placed_variables import PlacedVariables
from meshtf.keras.step import TracedStep, signature_of, variables_of, warn_of_shapes
from meshtf.keras.variables import state_of, tracing
from meshtf.keras.without_running import check_labels, inputs_of, specs_of
from meshtf.layout_search import SearchResult, search
from meshtf.mesh import Mesh
from meshtf.runtime.devices.processes import processes
from meshtf.runtime.spmd.live.join_processes import any_process
from meshtf.runtime.variable import Variable
from meshtf.tensorflow_import.dimensions.table import DimensionTable, dimension_table
from meshtf.tensorflow_import.without_running import abstract_function

_KINDS = ("train", "test", "predict")


def distribute(
    model: Any,
    mesh: Any,
    names: Mapping[str, str] | None = None,
    layout: Any = None,
    regions: Mapping[str, Any] | None = None,
    recompute: str | Sequence[str] | None = None,
    repeated: str | Sequence[str] | None = None,
) -> DistributedModel:
    r"""Runs a Keras model's batches on a mesh from now on.

    `model.fit`, `evaluate`, `predict`, `train_on_batch` and the like work as before, with
    the model's own `train_step`, loss, optimizer, metrics and callbacks. Dimensions have
    names: "batch", "length", "heads", "vocab" and so on; `dimensions` of what is returned
    lists them. The mesh's layout says which are sharded.

    Args:
        model: A Keras model.
        mesh: Where it runs: a `mtf.Mesh`, or a `keras.distribution.DeviceMesh`, which shards
            batches along its first axis.
        names: New names of dimensions, by their names: {"channels_2": "filters"}.
        layout: A `keras.distribution.LayoutMap`: its rules are the layouts of the variables
            that they match; other variables, and all that is computed, follow the mesh's.
        regions: Layouts of parts of the model: changes of the mesh's layout, as in
            `mtf.layout`, by regular expressions of all of a layer's `path`:
            {"decoder/.*": "length:model"}. The operations and variables of the layers that
            match follow them.
        recompute: A regular expression, or several, of the paths of layers: for the backward
            pass their inputs are stored, and what is within is computed again, as in
            `mtf.recompute`. Each layer by itself; with a group in the expression, as in
            r"(conv\d_block\d)_.*", those together for which it is the same. `keras.remat` and
            `keras.RematScope` do the same.
        repeated: A regular expression of the paths of equal layers, each of which takes what the
            one before gives; or several, as of an encoder's and a decoder's. They become one loop
            over a dimension "layers", and their variables one for all of them: so the layout can
            shard it ("layers:stage": a pipeline), and a deep model compiles as fast as a flat
            one. With a group in the expression, those layers are one for which it is the same.

    Raises:
        ArgumentError: It is no Keras model on TensorFlow, or it has a distribution strategy;
            `recompute` or `repeated` matches no layer; or a `mtf.keras.Layer` was loaded from a
            file.
        LayoutError: A rule of the map matches no variable, or does not fit one; a region
            matches no layer, or two match one; a rule names an axis that the mesh lacks and
            that is not one of its `optional_axes`.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if not isinstance(strategy, tf.distribute.Strategy):
        raise ArgumentError(
            f"mtf.keras.distribute takes a keras.Model on the TensorFlow backend, not "
            f"{type(model).__name__}"
        )
    if tf.distribute.has_strategy() or strategy is not tf.distribute.get_strategy():
        raise ArgumentError(
            f"the model was made in the scope of a {type(strategy).__name__}: make it outside "
            "of the scope, since the mesh takes the strategy's place"
        )
    for layer, _ in layers_within(model):
        if isinstance(layer, Layer):
            layer.check_for_mesh()
    mesh = as_mesh(mesh)
    check_axes(mesh, (mesh.layout, mesh.variable_layout, mesh.optimizer_layout))
    settings = LayerSettings(regions, recompute, mesh, repeated)
    return DistributedModel(model, mesh, names or {}, layout, settings)


class DistributedModel:
    """A Keras model whose batches run on a mesh.

    Attributes:
        model: The model.
        placed: Its variables on the mesh.
    """

    def __init__(
        self,
        model: Any,
        mesh: Mesh,
        names: Mapping[str, str],
        layout: Any,
        settings: LayerSettings,
    ) -> None:
        self.model = model
        layouts = VariableLayouts(layout, model, mesh)
        self.placed = PlacedVariables(mesh, names, layouts, settings)
        self._uses_settings = False
        if is_built(model):
            self._use_settings()
        self._steps: dict[Any, TracedStep] = {}
        # `compile` empties the attributes that the makers fill, so the makers are replaced.
        for kind in _KINDS:
            setattr(model, f"make_{kind}_function", self._maker(kind))
            setattr(model, f"{kind}_function", None)
        model.export = self._writing("export")
        model.save = self._writing("save")
        model.save_weights = self._writing("save_weights")

    def step(self, method: str, batch: Any) -> TracedStep:
        """Returns the step of a method of the model for a batch."""
        key = (method, signature_of(batch))
        if key not in self._steps:
            self._use_settings()
            with without_garbage_collection():
                self._steps[key] = TracedStep(self.model, self.placed, method, batch)
        return self._steps[key]

    def _run(self, method: str, batch: Any) -> Any:
        """Returns what a method of the model returns for a batch."""
        step = self.step(method, batch)
        if step.has_run:
            return step(batch)
        with without_garbage_collection():
            results = step(batch)
            ran = {
                signature: step
                for (of_method, signature), step in self._steps.items()
                if of_method == method and step.has_run
            }
            warn_of_shapes(f"{self.model.name}.{method}", ran)
        return results

    def _use_settings(self) -> None:
        """Finds the layers that have settings, as soon as the model has layers."""
        settings = self.placed.settings
        if self._uses_settings or not settings:
            return
        if not is_built(self.model):
            raise ArgumentError(
                f"build {type(self.model).__name__} first: call it on a batch, so that "
                "`regions` and `recompute` find its layers"
            )
        settings.use(self.model)
        self._uses_settings = True

    @property
    def dimensions(self) -> DimensionTable:
        """A table of the model's dimensions: names, sizes, how they are sharded, which
        variables have them, and the operations that run replicated. Before the first step,
        those of `predict`.
        """
        steps = sorted(self._steps.items(), key=lambda item: item[0][0] != "train_step")
        if not steps:
            batch = inputs_of(self.model)
            self.step("predict_step", batch)
            return self.dimensions
        step = steps[0][1]
        own_layouts = self.placed.own_layouts(step.program)
        return dimension_table(step.program, self.placed.mesh, own_layouts)

    def explain(
        self, batch: Any, method: str = "train_step", **settings: Any
    ) -> Forecast:
        """Returns the forecast of a training step: operations, communication, memory and
        time. Nothing runs.

        Args:
            batch: A batch as a dataset yields it, `(x, y)`, of which only shapes and types
                are read: arrays, or specs such as `tf.TensorSpec`.
            method: The step: "train_step", "test_step" or "predict_step".
            **settings: `device_memory`, `hardware` and `runtime` of `mtf.explain`.

        Raises:
            ArgumentError: The model is not compiled or not built, or the batch has something
                else than arrays and their specs.
            ShapeError: A spec has a size that is not known.
        """
        step = self._step_of_specs(method, batch)
        mesh = self.placed.mesh
        if not mesh.abstract:
            settings.setdefault("runtime", "spmd" if mesh.live else "placed")
        return explain(step.abstract_function(), *step.program.specs(), **settings)

    def check(self, batch: Any) -> None:
        """Compares the model's predictions for a batch with those of TensorFlow on one device.

        Args:
            batch: Arrays, `x` or `(x, y)`.

        Raises:
            NumericsError: They differ by more than rounding; the first difference is told.
        """
        check_predictions(self.model, batch)

    def search(self, batch: Any, devices: int, **settings: Any) -> SearchResult:
        """Returns the layouts with the least predicted time of a training step. Nothing runs.

        Args:
            batch: As in `explain`.
            devices: The number of devices.
            **settings: `hardware`, `memory`, `axes`, `layout` and so on of `mtf.search`.
        """
        program = self._step_of_specs("train_step", batch).program
        build = functools.partial(
            abstract_function,
            program,
            "train_step",
            layout_of=self.placed.layout_by_region,
        )
        return search(build, *program.specs(), devices=devices, **settings)

    def variables(self, batch: Any, method: str = "train_step") -> dict[str, Variable]:
        """Returns the mesh's variables, by the paths of Keras' variables: of the model, its
        optimizer and its metrics. `mtf.checkpoints` saves them by slices, and restores them on
        any mesh: the model then has these values. Ask for them anew each time.

        Args:
            batch: As in `explain`.
            method: The step whose variables they are, as in `explain`.
        """
        return self._step_of_specs(method, batch).variables_on_mesh()

    def compile_for(
        self, batch: Any, topology: str, method: str = "train_step"
    ) -> CompiledForecast:
        """Returns what XLA makes of a step for devices that need not be there.

        Args:
            batch: As in `explain`.
            topology: As in `mtf.compile_for`, such as "v5e:8".
            method: As in `explain`.
        """
        step = self._step_of_specs(method, batch)
        function = step.abstract_function()
        return compile_for(function, *step.program.specs(), topology=topology)

    def _step_of_specs(self, method: str, batch: Any) -> TracedStep:
        """Returns the step of a method for a batch of which only specs are known."""
        if method == "train_step" and getattr(self.model, "optimizer", None) is None:
            raise ArgumentError(
                "compile the model: without an optimizer it trains nothing"
            )
        if not self.model.built:
            raise ArgumentError(
                f"build {type(self.model).__name__} first: call it on a batch, so that its "
                "variables exist"
            )
        specs = specs_of(batch)
        try:
            return self.step(method, specs)
        except MeshtfError:
            raise
        except (TypeError, ValueError) as error:
            check_labels(method, specs, error)
            raise

    def _forget(self, method: str) -> None:
        """Forgets the steps of a method, which is traced again."""
        self._steps = {k: step for k, step in self._steps.items() if k[0] != method}

    def _writing(self, name: str) -> Callable[..., Any]:
        """Returns a method of the model that writes files. All processes bring the values of
        variables, and the first one writes. What is traced for that is a copy, which reads no
        mesh.
        """
        model, method = self.model, getattr(type(self.model), name)

        @functools.wraps(method)
        def write(*args: Any, **kwargs: Any) -> Any:
            for variable in variables_of(model):
                state = state_of(variable)
                if state is not None:
                    state.to_host()
            try:
                if processes().is_first:
                    with tracing():
                        return method(model, *args, **kwargs)
            finally:
                any_process(False)  # what is written can be read from now on
            return None

        return write

    def _maker(self, kind: str) -> Callable[..., None]:
        model = self.model

        def make(force: bool = False) -> Any:
            # `compile` has emptied the attribute, or nothing has run yet.
            if force or getattr(model, f"{kind}_function") is None:
                self._forget(f"{kind}_step")
                setattr(model, f"{kind}_function", self._runner(kind))
            return getattr(model, f"{kind}_function")

        return make

    def _runner(self, kind: str) -> Callable[[Any], Any]:
        """Returns what Keras calls with an iterator over batches (`predict`: with a list)."""
        if self.model.run_eagerly:
            raise ArgumentError(
                "a model that is compiled with run_eagerly=True runs on no mesh: compile it "
                "without"
            )
        method = f"{kind}_step"

        def run(batches: Iterator[Any]) -> Any:
            results, count = None, self.model.steps_per_execution
            for batch in itertools.islice(batches, count):
                results = self._run(method, batch)
            if results is None:
                raise StopIteration
            return results

        def predict(batches: list[Any]) -> Any:
            results = [self._run(method, batch) for batch in batches]
            if len(results) == 1:
                return results[0]
            return tf.nest.map_structure(lambda *xs: tf.concat(xs, 0), *results)

        return predict if kind == "predict" else run
