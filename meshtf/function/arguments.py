"""The arguments of one call of a `mtf.function`: arrays, tensors and Python values, in
any nesting.

A function has a trace, that is a compiled program, for each key of its calls. A store is the
place from which the program reads one array or tensor:

    call = CallArguments(mesh)
    call.add_array("x", array, "batch;d_model")
    call.add_structure("training", True)
    call.key                        # shapes, dtypes, Python values and so on
    fn(**call.arguments())          # records the function
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from meshtf.errors import MeshError, PlanError, explain_error
from meshtf.graph import Context, Spec, Tensor, apply
from meshtf.mesh import Mesh
from meshtf.names import dtype_name, has_gradient, nested
from meshtf.names.arguments import refuse
from meshtf.ops.control.nested_values import flatten
from meshtf.ops.variables.read_write import Read
from meshtf.runtime.storage.argument_storage import (
    ArrayStore,
    DeviceStore,
    ShardsStore,
    as_array,
)
from meshtf.runtime.storage.asarray import named_shape
from meshtf.runtime.storage.sharding import distinct


class KeyEntry(NamedTuple):
    """One entry of the key of a trace: a property of a call that the trace depends on.

    Attributes:
      argument: the name of an argument; "" for the context.
      kind: the kind of property: "value", "shape", "structure", or the name of an attribute
        of `Context`.
      facts: the property itself, such as (shape, dtype); warnings show the first fact.
    """

    argument: str
    kind: str
    facts: tuple[Any, ...]


def context_entries(context: Context) -> tuple[KeyEntry, ...]:
    """Returns the entries of a key for the attributes of the context: the region (changes
    of the mesh's layout), the pipeline stage and the mesh.
    """
    region = KeyEntry(argument="", kind="region", facts=(context.region,))
    if context.stage is None and context.mesh is None:
        return (region,)
    stage = KeyEntry(argument="", kind="stage", facts=(context.stage,))
    mesh = KeyEntry(argument="", kind="mesh", facts=(context.mesh,))
    return (region, stage, mesh)


class CallArguments:
    """The arguments of one call: a key for the cache of traces, stores for recording, and
    TensorFlow tensors for running.

    Args:
      mesh: the mesh that the function runs on; None: the mesh of the first tensor.
      runs: whether the call runs; if not, only shapes and dtypes of arrays are read.
      in_place: whether the function runs without a new trace: eagerly, or as part of the
        calling function. Then it gets the tensors of the call instead of symbolic ones.

    Attributes:
      key: the key of the trace: calls with equal keys share a trace.
      stores: for each argument that is an array or tensor, where the program reads it.
      flat_values: the values of the stores, as TensorFlow tensors; for a tensor, its
        distinct shards (shards that several devices replicate are passed once).
      tensors: the arguments that are tensors and can have gradients.
    """

    def __init__(
        self, mesh: Mesh | None, runs: bool = True, in_place: bool = False
    ) -> None:
        self.mesh = mesh
        self.runs = runs
        self.in_place = in_place
        self.key: tuple[KeyEntry, ...] = ()
        self.stores: list[Any] = []
        self.flat_values: list[Any] = []
        self.tensors: list[Tensor] = []
        # For each argument, the getter: a function that takes nothing and returns the value
        # of the argument for recording, such as a symbolic tensor.
        self._getters: dict[str, Callable[[], Any]] = {}

    def add_array(self, name: str, value: Any, dims: Any) -> None:
        """Adds an array, or a dict or list of arrays.

        Args:
          name: the name of the argument.
          value: the array, or the nesting of arrays. Dicts may lack keys.
          dims: the names of dimensions, such as "batch;d_model", or a nesting of them.

        Raises:
          ShapeError: an array has more or fewer dimensions than names.
          LayoutError: the layout cannot shard an array.
          PlanError: a dict has a key without names of dimensions, or a list another length.
        """
        self._getters[name] = self._arrays(name, value, dims)

    def _arrays(self, name: str, value: Any, dims: Any) -> Callable[[], Any]:
        """Adds a nesting of arrays, and returns the getter of its symbolic tensors."""
        if isinstance(dims, str):
            return self._array(name, value, dims)
        if isinstance(dims, Mapping):
            if not isinstance(value, Mapping):
                raise _wrong_keys(name, dims, got=type(value).__name__)
            if not set(value) <= set(dims):
                raise _wrong_keys(name, dims, got=sorted(value))
            keys = sorted(value)
            getters = {k: self._arrays(f"{name}_{k}", value[k], dims[k]) for k in keys}
            return lambda: {key: get() for key, get in getters.items()}
        if not isinstance(value, (list, tuple)) or len(value) != len(dims):
            raise PlanError(f"argument {name!r} is a list of {len(dims)} arrays.")
        elements = [
            self._arrays(f"{name}_{k}", x, text)
            for k, (x, text) in enumerate(zip(value, dims))
        ]
        return lambda: [get() for get in elements]

    def _array(self, name: str, value: Any, dims: str) -> Callable[[], Any]:
        """Adds an array, and returns the getter of its symbolic tensor.

        Args:
          name: the name of the argument.
          value: the array; a tensor or None is added as it is.
          dims: the names of dimensions, such as "batch;d_model".
        """
        has_names = isinstance(value, Tensor) or hasattr(value, "tensor")
        if value is None or has_names:
            return self._structure(name, value)
        source = f"argument {name!r}"
        has_spec = hasattr(value, "shape") and hasattr(value, "dtype")
        array = value if has_spec and not self.runs else as_array(value)
        shape = named_shape(array, dims, source)
        spec = Spec(shape, dtype_name(array.dtype))
        store = ArrayStore(
            name,
            spec,
            mesh=self.mesh,
            source=source,
            array=array if self.in_place else None,
        )
        entry = KeyEntry(argument=name, kind="shape", facts=tuple(spec))
        self._add(store, entry, values=[array])
        if self.mesh is not None:
            _ = store.placement  # computed as a check: raises LayoutError
        return lambda: apply(Read(store), mesh=store.mesh)

    def add_structure(self, name: str, value: Any) -> None:
        """Adds an argument that consists of tensors and Python values, in any nesting.

        Raises:
          PlanError: it contains an array without names of dimensions, or a tensor that
            another function recorded.
          MeshError: a tensor is on another mesh than the arguments before it.
        """
        self._getters[name] = self._structure(name, value)

    def _structure(self, name: str, value: Any) -> Callable[[], Any]:
        """Adds the leaves of a nesting, and returns the getter of the argument."""
        leaves = flatten(value)
        names = leaf_names(name, value)
        getters = [
            self._leaf(name, leaf, leaf_name)
            for leaf, leaf_name in zip(leaves, names, strict=True)
        ]
        if len(leaves) != 1 or leaves[0] is not value:
            # The nesting as text, with 0 in place of each leaf.
            structure = repr(nested.map_structure(lambda x: 0, value))
            entry = KeyEntry(argument=name, kind="structure", facts=(structure,))
            self.key += (entry,)
        return lambda: nested.pack_sequence_as(value, [get() for get in getters])

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments for recording the function, by name.

        Raises:
          LayoutError: the layout cannot shard an argument.
        """
        for store in self.stores:
            # The mesh was unknown when this store was added, and a later argument has one.
            if store.mesh is None and self.mesh is not None:
                store.mesh = self.mesh
                _ = store.placement  # computed as a check: raises LayoutError
        return {name: get() for name, get in self._getters.items()}

    def _leaf(self, name: str, leaf: Any, leaf_name: str) -> Callable[[], Any]:
        """Adds a leaf of a nesting, and returns the getter of the leaf.

        Args:
          name: the name of the argument.
          leaf: a tensor or a Python value.
          leaf_name: the name of the leaf, see `leaf_names`.
        """
        if _is_array(leaf):
            raise PlanError(
                explain_error(
                    f"argument {name!r} is an array without named dimensions.",
                    array=list(leaf.shape),
                    way_out=f'Name them: @mtf.function({name}="batch;...").',
                )
            )
        if not isinstance(leaf, Tensor):
            facts = (_hashable(leaf), type(leaf))
            self.key += (KeyEntry(argument=name, kind="value", facts=facts),)
            return lambda: leaf
        if self.in_place:
            if self.mesh is None:
                self.mesh = leaf.mesh
            return lambda: leaf
        self._check_tensor(name, leaf)
        self.mesh = leaf.mesh
        return self._tensor(name, leaf, leaf_name)

    def _check_tensor(self, name: str, leaf: Tensor) -> None:
        """Raises PlanError for a recorded tensor, MeshError for one on another mesh."""
        if leaf.sharded_value is None:
            raise PlanError(
                explain_error(
                    "a recorded tensor cannot be passed to a function from outside.",
                    tensor=repr(leaf),
                    **{"made by": leaf.node.source},
                )
            )
        if self.mesh is not None and leaf.mesh is not self.mesh:
            raise MeshError(
                explain_error(
                    "the arguments of one function are on two meshes.",
                    argument=name,
                    meshes=f"{self.mesh} and {leaf.mesh}",
                    way_out="Make all of them on one Mesh object.",
                )
            )

    def _tensor(self, name: str, leaf: Tensor, leaf_name: str) -> Callable[[], Any]:
        """Adds an eager tensor, and returns the getter of its symbolic tensor."""
        value = leaf.sharded_value
        assert leaf.mesh is not None and value is not None
        store: DeviceStore | ShardsStore
        facts: tuple[Any, ...]
        # A live mesh runs on the devices of jax. The shards of a result of a program are one
        # object there (`DeviceShards`); any other tensor has a list of shards.
        if leaf.mesh.live and not isinstance(value.values, list):
            store = DeviceStore(leaf_name, leaf.spec, leaf.mesh, value.placement)
            facts = (*leaf.spec, value.placement, "on devices", leaf.mesh)
            return self._add_tensor(
                name, leaf, store=store, facts=facts, values=[value.values]
            )
        shards, distinct_index = distinct(value.values)
        store = ShardsStore(
            leaf_name,
            leaf.spec,
            mesh=leaf.mesh,
            placement=value.placement,
            distinct_index=distinct_index,
        )
        facts = (*leaf.spec, value.placement, distinct_index, leaf.mesh)
        return self._add_tensor(name, leaf, store=store, facts=facts, values=shards)

    def _add_tensor(
        self,
        name: str,
        leaf: Tensor,
        store: Any,
        facts: tuple[Any, ...],
        values: list[Any],
    ) -> Callable[[], Any]:
        """Adds a tensor with a store, and returns the getter of its symbolic tensor.

        Args:
          name: the name of the argument.
          leaf: the tensor.
          store: the store from which the program reads the tensor.
          facts: the properties of the tensor that the trace depends on.
          values: the TensorFlow tensors that fill the store.
        """
        entry = KeyEntry(argument=name, kind="shape", facts=facts)
        self._add(store, entry, values=values)
        if has_gradient(leaf.dtype):
            self.tensors.append(leaf)
        return lambda: apply(Read(store), mesh=store.mesh)

    def _add(self, store: Any, entry: KeyEntry, values: list[Any]) -> None:
        """Adds a store, its entry of the key, and its values as TensorFlow tensors."""
        self.stores.append(store)
        self.key += (entry,)
        self.flat_values += values


def _wrong_keys(name: str, dims: Mapping[str, str], got: object) -> PlanError:
    """Returns the error for an argument that is no dict, or has a key without names of
    dimensions.

    Args:
      name: the name of the argument.
      dims: the names of dimensions, by key.
      got: the keys, or the type of the argument.
    """
    return PlanError(
        explain_error(
            f"argument {name!r} is a dict of some of {', '.join(dims)}.",
            got=got,
            way_out=f"Leave out the others, or name their dimensions: {name}={{...}}.",
        )
    )


def _is_array(x: Any) -> bool:
    """Returns whether x is an array of NumPy or TensorFlow."""
    if isinstance(x, np.ndarray):
        return True
    # Asked by name first: planning does not import TensorFlow.
    classes = type(x).__mro__
    is_of_tensorflow = any(c.__module__.startswith("tensorflow.") for c in classes)
    return is_of_tensorflow and isinstance(x, (tf.Tensor, tf.Variable))


def leaf_names(name: str, value: Any) -> list[str]:
    """Returns a name for each leaf of a nesting, in the order of `tf.nest.flatten`.

    >>> leaf_names("batch", {"tokens": 0, "parts": (1, 2)})
    ['batch_parts_0', 'batch_parts_1', 'batch_tokens']
    """
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = [(key, value[key]) for key in sorted(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value)
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return [name] * len(nested.flatten(value))
    names: list[str] = []
    for key, x in items:
        names += leaf_names(f"{name}_{key}" if name else str(key), x)
    return names


def signature_of(fn: Callable[..., Any], names: Mapping[str, Any]) -> inspect.Signature:
    """Returns the signature of a function.

    Args:
      fn: the function.
      names: for arguments that are arrays, the names of their dimensions.

    Raises:
      ArgumentError: names of dimensions are not strings, or `inspect.signature` does not
        support the function.
    """
    for name, dims in names.items():
        if not all(isinstance(value, str) for value in nested.flatten(dims)):
            refuse(
                name,
                dims,
                'names of dimensions, such as "batch;d_model", or a dict or list of them',
            )
    try:
        return inspect.signature(fn)
    except ValueError:
        refuse(
            "fn",
            fn,
            takes="a function of which Python knows the arguments",
            way_out="Write a lambda around it.",
        )


class ByIdentity:
    """Wraps a Python value that cannot be hashed; it is compared by identity.

    The wrapper keeps the value alive, so that no other value gets its id.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value


def _hashable(value: Any) -> Any:
    """Returns a hashable form of a Python value, for a key."""
    return nested.exact(value) if value.__hash__ is not None else ByIdentity(value)
