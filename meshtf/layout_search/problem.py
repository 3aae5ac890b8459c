"""What is searched for: the program, as a function of a mesh, and the devices.

problem = Problem(build, args, devices=256, hardware=h100, memory=80e9)
problem.record("data:8;model:4", structure)
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshtf.errors import ArgumentError, LayoutWarning, explain_error
from meshtf.forecast import Forecast
from meshtf.forecast.outline import Outline, outline
from meshtf.function.function import Function
from meshtf.function.without_running import as_function
from meshtf.graph import ControlFlowOp, Loop, Node, Role
from meshtf.graph.control_flow.body import Body
from meshtf.graph.op_kinds import factor_of
from meshtf.graph.recorder import Recorded
from meshtf.graph.used_layouts import layout_use
from meshtf.hardware import Hardware, as_hardware
from meshtf.layout_search.space import sets_of_stages, sharded_together
from meshtf.mesh import Mesh
from meshtf.mesh.axes import caller_stacklevel
from meshtf.names import Shape
from meshtf.names.arguments import as_bytes, as_callable, as_int
from meshtf.partition import Program, build
from meshtf.partition.sharded_loops import reason_to_repeat

# What an axis shards is decided by the dimensions that ops with this fraction of all FLOPs have,
# or variables with this fraction of all elements.
_MAJOR = 0.01
# Dimensions above this fraction are sharded along with them, where that is possible.
_MINOR = 0.001


@dataclasses.dataclass(frozen=True)
class Problem:
    """A program whose layout is searched for.

    Attributes:
      build: a function of a mesh, and of the choices as keywords, that returns a function of
        `args`: a `mtf.function`, or one of tensors.
      args: the arguments of that function; only shapes and dtypes are read.
      devices: the number of devices.
      hardware: their profile.
      memory: the bytes of one device.
    """

    build: Callable[..., Any]
    args: tuple[Any, ...]
    devices: int
    hardware: Hardware
    memory: float

    @property
    def runtime(self) -> str:
        """The runtime whose memory counts: "spmd" if the hardware has XLA, else "placed"."""
        return "spmd" if self.hardware.fuses else "placed"

    def function(
        self, axes: str, settings: Mapping[str, Any], choices: Mapping[str, Any]
    ) -> tuple[Function[..., Any], tuple[Any, ...]]:
        """Returns the program on an abstract mesh, and the arguments of its call.

        Args:
          axes: the axes of the mesh, such as "data:8;model:4".
          settings: the layouts of the mesh.
          choices: the keywords of `build`.
        """
        mesh = Mesh(axes, devices="abstract", **settings)
        try:
            built = self.build(mesh, **choices)
        except TypeError:
            check_arguments(self.build, mesh, choices)
            raise
        return as_function(built, self.args)

    def record(
        self, axes: str, settings: Mapping[str, Any], choices: Mapping[str, Any]
    ) -> Recorded:
        """Returns the recorded program. The arguments are those of `function`.

        Raises:
          MeshtfError: the layout does not allow the program.
        """
        with without_layout_warnings():
            function, args = self.function(axes, settings, choices)
            return function.record_call(args, {}).recorded

    def takes(self, name: str) -> bool:
        """Returns whether `build` takes a choice of this name."""
        parameters = inspect.signature(self.build).parameters.values()
        return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)

    def outline(self, recorded: Recorded) -> Outline:
        """Returns the time, memory and bytes of a recorded program, from a plan of its own."""
        return outline(build_recorded(recorded), self.hardware)

    def forecast(
        self, axes: str, settings: Mapping[str, Any], choices: Mapping[str, Any]
    ) -> Forecast:
        """Returns the forecast of the program, with its time. The arguments are those of
        `function`.
        """
        with without_layout_warnings():
            function, args = self.function(axes, settings, choices)
            result = function.forecast_call(args, {}, hardware=self.hardware)
        return dataclasses.replace(result, device_memory=self.memory)


def problem_of(
    build: Callable[..., Any],
    args: tuple[Any, ...],
    devices: int,
    hardware: Hardware | str,
    memory: float | str | None,
) -> Problem:
    """Returns the problem of checked arguments of `search`."""
    as_callable("build", build, "a function of a mesh")
    profile = as_hardware(hardware)
    size = profile.memory if memory is None else as_bytes("memory", memory)
    if size is None:
        raise ArgumentError(
            f"the profile {profile.name!r} does not say how much memory a device has: give "
            'memory, such as memory="80GiB".'
        )
    return Problem(
        build, args, as_int("devices", devices, least=1), hardware=profile, memory=size
    )


def build_recorded(recorded: Recorded) -> Program:
    """Returns the plan of a recorded program."""
    return build(
        recorded.nodes,
        recorded.results,
        recorded.mesh,
        stores=recorded.stores,
        regions=recorded.regions,
    )


@contextlib.contextmanager
def without_layout_warnings() -> Iterator[None]:
    """Within this context, nothing warns of layouts: a search tries many that suit no user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        yield


def warn_of_own_rules(recorded: Recorded, axes: Collection[str]) -> None:
    """Warns of rules within a program whose axes a search does not keep.

    Args:
      recorded: the program.
      axes: the axes that are kept.
    """
    rules = {
        f"{name}:{'+'.join(rule_axes)}": set(rule_axes).difference(axes)
        for name, rule_axes in layout_use(recorded.nodes).rules
    }
    lacking = sorted(set().union(*rules.values()))
    if lacking:
        warnings.warn(
            explain_error(
                f"parts of the program have layouts of their own, along {', '.join(lacking)}: "
                "meshes that are tried may lack such axes, and then those rules do nothing.",
                rules="; ".join(sorted(rule for rule in rules if rules[rule])),
                way_out='Keep the axes: search(..., axes="data:4; model:2").',
            ),
            LayoutWarning,
            stacklevel=caller_stacklevel(),
        )


def check_arguments(
    build: Callable[..., Any], mesh: Mesh, choices: Mapping[str, Any]
) -> None:
    """Raises ArgumentError if `build` does not take a mesh and these choices."""
    try:
        inspect.signature(build).bind(mesh, **choices)
    except TypeError as mismatch:
        raise ArgumentError(
            explain_error(
                f"`build` does not take what a search passes: {mismatch}.",
                passed=", ".join(["a mesh", *choices]),
                way_out="Give it these parameters.",
            )
        ) from None


def all_nodes(nodes: Sequence[Node]) -> Iterator[tuple[Node, Body | None]]:
    """Yields all nodes, those of bodies included, each with its body; None: no body."""
    for node in nodes:
        yield node, None
        if isinstance(node.op, ControlFlowOp):
            for body in node.op.bodies:
                for inner, inner_body in all_nodes(body.nodes):
                    yield inner, inner_body or body


@dataclasses.dataclass(frozen=True)
class Names:
    """The names of a program's dimensions.

    Attributes:
      shapes: the shapes of all tensors of the forward pass.
      variables: the shapes of the variables that are trained.
      sizes: name -> its largest size.
      divisors: name -> the largest number that divides all of its sizes.
      unsharded: the names of which most of the work needs all elements, such as windows of
        kernels: no rule shards them.
      searched: the names that decide what an axis shards.
      minor: further names, which axes shard along with those if they can; the name that most
        work has comes first.
      scanned: the dimensions that loops scan of which every device runs all iterations.
      pipelined: of these the one that most elements of variables have: a rule along a further
        axis makes the loop a pipeline; "": there is none.
      carried: the dimensions that all tensors have which that loop carries; a pipeline divides
        the first one into microbatches.
    """

    shapes: tuple[Shape, ...]
    variables: tuple[Shape, ...]
    sizes: Mapping[str, int]
    divisors: Mapping[str, int]
    unsharded: frozenset[str]
    searched: frozenset[str]
    minor: tuple[str, ...] = ()
    scanned: frozenset[str] = frozenset()
    pipelined: str = ""
    carried: tuple[str, ...] = ()

    def all_sizes(self, name: str) -> set[int]:
        """Returns the sizes that a dimension has."""
        return {shape[name] for shape in self.shapes if name in shape}

    def sets_of_stages(self) -> list[tuple[str, ...]]:
        """Returns the sets of dimensions that the axis of the stages of a pipeline can shard:
        beside the layers, what no tensor has with them, or a dimension such as the length, which
        has rules outside of the layers only.
        """
        shardable = {*self.searched, *self.minor}
        sets = sets_of_stages(self.shapes, shardable, self.pipelined)
        of_layers = {
            name for x in self.variables if self.pipelined in x for name in x.names
        }
        for name in self.carried[1:]:
            if name in self.searched and name not in of_layers:
                sets.append((self.pipelined, name))
        return sets

    @property
    def microbatched(self) -> str:
        """The dimension that a pipeline divides into microbatches; "": there is none."""
        return self.carried[0] if self.carried else ""

    def sets(self) -> list[tuple[str, ...]]:
        """Returns the sets of dimensions that one axis can shard."""
        stored = {name for shape in self.variables for name in shape.names}
        sets = sharded_together(self.shapes, self.searched, stored)
        return [self._with_minor(dims) if set(dims) & stored else dims for dims in sets]

    def _with_minor(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """Returns a set of dimensions with those minor ones that no tensor has beside them."""
        result = list(dims)
        for name in self.minor:
            shapes = [shape for shape in self.shapes if name in shape]
            if not any(other in shape for shape in shapes for other in result):
                result.append(name)
        return tuple(result)


def names_of_program(recorded: Recorded) -> Names:
    """Returns the names of a recorded program. A layout may shard those of arguments and of
    variables, but not a dimension that a loop scans with a carry, and none that hardly any
    work has, or of which that work needs all elements.
    """
    shapes: dict[Shape, None] = {}
    variables: dict[Shape, None] = {}
    arguments: dict[Shape, None] = {}
    scanned: set[str] = set()
    for node, _ in all_nodes(recorded.nodes):
        op = node.op
        if isinstance(op, Loop) and op.dim is not None and reason_to_repeat(op):
            scanned.add(op.dim.name)
        if isinstance(op, ControlFlowOp):
            for body in op.bodies:
                shapes.update(dict.fromkeys(x.shape for x in body.arguments))
        if not node.primals:
            shapes.update(dict.fromkeys(y.shape for y in node.outputs))
        store = getattr(op, "store", None)
        if store is not None:
            kinds = variables if store.kind == "parameter" else arguments
            if store.kind != "state":
                kinds[store.spec.shape] = None
    sizes: dict[str, int] = {}
    divisors: dict[str, int] = {}
    for shape in shapes:
        for dim in shape:
            sizes[dim.name] = max(sizes.get(dim.name, 0), dim.size)
            divisors[dim.name] = math.gcd(divisors.get(dim.name, 0), dim.size)
    stored = {name for shape in (*variables, *arguments) for name in shape.names}
    flops = _flops_by_name(recorded.nodes)
    needed = _flops_by_name(recorded.nodes, unsharded=True)
    unsharded = {n for n in needed if n in sizes and 2 * needed[n] > flops[n]}
    shares = _shares(flops, variables)
    # Names that begin with a dot are those of a few operations, for a time.
    shardable = {n for n in stored - scanned - unsharded if not n.startswith(".")}
    candidates = [
        name
        for name in sorted(shardable, key=lambda name: -shares.get(name, 0.0))
        if sizes.get(name, 0) > 1 and shares.get(name, 0.0) >= _MINOR
    ]
    searched = [name for name in candidates if shares[name] >= _MAJOR]
    pipelined = _largest_of(scanned, variables)
    return Names(
        shapes=tuple(shapes),
        variables=tuple(variables),
        sizes=sizes,
        divisors=divisors,
        unsharded=frozenset(unsharded),
        searched=frozenset(searched),
        minor=tuple(candidates[len(searched) :]),
        scanned=frozenset(scanned),
        pipelined=pipelined,
        carried=_carried_names(recorded.nodes, pipelined),
    )


def _carried_names(nodes: Sequence[Node], dim: str) -> tuple[str, ...]:
    """Returns the dimensions of all tensors that the loop over `dim` carries."""
    for node, _ in all_nodes(nodes):
        op = node.op
        if isinstance(op, Loop) and op.dim is not None and op.dim.name == dim:
            carries = node.inputs[: op.num_carries]
            first = carries[0].shape.names if carries else ()
            return tuple(n for n in first if all(n in x.shape for x in carries))
    return ()


def _largest_of(names: Iterable[str], variables: Iterable[Shape]) -> str:
    """Returns the name that most elements of variables have; "" if none has one of them."""
    elements = dict.fromkeys(sorted(names), 0)
    for shape in variables:
        for name in elements:
            elements[name] += shape.size if name in shape else 0
    largest = max(elements, key=elements.__getitem__, default="")
    return largest if elements.get(largest) else ""


def _shares(flops: Mapping[str, float], variables: Iterable[Shape]) -> dict[str, float]:
    """Returns for each name the fraction of all FLOPs in ops that have it, or the fraction of
    the elements of variables that have it, if that is larger; `flops` are those of each name.
    """
    elements: dict[str, float] = {"": 0.0}
    for shape in variables:
        for name in ("", *shape.names):
            elements[name] = elements.get(name, 0.0) + shape.size
    shares: dict[str, float] = {}
    for amounts in (flops, elements):
        total = max(amounts[""], 1.0)
        for name, amount in amounts.items():
            shares[name] = max(shares.get(name, 0.0), amount / total)
    return shares


def _flops_by_name(nodes: Sequence[Node], unsharded: bool = False) -> dict[str, float]:
    """Returns name -> the FLOPs of all ops whose inputs or outputs have it; "" -> all FLOPs.

    Args:
      nodes: the ops.
      unsharded: whether only ops count that need all elements along the name.
    """
    result: dict[str, float] = {"": 0.0}
    for node in nodes:
        op = node.op
        if isinstance(op, ControlFlowOp):
            iterations = op.num_iterations or 1 if isinstance(op, Loop) else 1
            for body in op.bodies:
                for name, flops in _flops_by_name(body.nodes, unsharded).items():
                    result[name] = result.get(name, 0.0) + flops * iterations
            continue
        flops = op.flops(*(x.spec for x in node.inputs))
        tensors = node.inputs if unsharded else (*node.inputs, *node.outputs)
        names = {name for x in tensors for name in x.shape.names}
        if unsharded:
            names = {n for n in names if op.role(factor_of(op, n)) is Role.UNSHARDED}
        for name in {"", *names}:
            result[name] = result.get(name, 0.0) + flops
    return result
