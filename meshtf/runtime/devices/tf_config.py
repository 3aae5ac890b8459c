"""The processes that the environment variable TF_CONFIG names, as TensorFlow's own strategies
for several hosts read it:

    TF_CONFIG='{"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]},
                "task": {"type": "worker", "index": 0}}'      # the second of three processes

The chief, if there is one, is the first process, and the workers follow. The first process
listens at its address for the others, since nothing else does in a program on a live mesh.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from meshtf.errors import ClusterError, explain_error

VARIABLE = "TF_CONFIG"
# Kinds of tasks that train, in the order of the processes; "master" is an old name of a chief.
_KINDS = ("chief", "master", "worker")


class TensorFlowCluster(NamedTuple):
    """The processes of a TensorFlow cluster.

    Attributes:
      addresses: the address of each process, such as "host1:2222".
      process: the index of this process.
    """

    addresses: tuple[str, ...]
    process: int


def read_tf_config(environment: Mapping[str, str]) -> TensorFlowCluster | None:
    """Returns the processes that TF_CONFIG names; None if it is not set, or names none.

    Args:
      environment: the environment variables.

    Raises:
      ClusterError: the variable is malformed, or this process is none that trains.
    """
    text = environment.get(VARIABLE, "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
        cluster = config.get("cluster") or {}
        addresses = {
            (kind, index): str(address)
            for kind in _KINDS
            for index, address in _numbered(cluster.get(kind, ()))
        }
        task = config.get("task") or {}
        own_task = (str(task.get("type", "")), int(task.get("index", 0)))
    except (ValueError, TypeError, AttributeError) as error:
        raise _malformed(text, f"cannot be read: {error}") from None
    if not cluster:
        return None
    other_kinds = sorted(set(cluster) - {*_KINDS, "evaluator"})
    if other_kinds:
        raise _malformed(text, f"has tasks of kind {other_kinds[0]!r}")
    if not task and len(addresses) == 1:
        return TensorFlowCluster(tuple(addresses.values()), process=0)
    if own_task not in addresses:
        own_name = "{} {}".format(*own_task) if task else "no task"
        raise _malformed(text, f"says that this is {own_name}, which does not train")
    return TensorFlowCluster(
        tuple(addresses.values()), process=list(addresses).index(own_task)
    )


def _numbered(addresses: Any) -> list[tuple[int, Any]]:
    """Returns the index and the address of each task of one kind: of a list, or of a dict by
    index.

    Raises:
      TypeError: they are neither.
    """
    if isinstance(addresses, Mapping):
        return sorted((int(index), address) for index, address in addresses.items())
    if isinstance(addresses, str):
        raise TypeError(f"{addresses!r} is no list of addresses")
    return list(enumerate(addresses))


def _malformed(text: str, problem: str) -> ClusterError:
    """Returns the error for a TF_CONFIG that does not name the processes of a run.

    Args:
      text: the value of the variable.
      problem: what is wrong with it.
    """
    return ClusterError(
        explain_error(
            f"{VARIABLE} {problem}.",
            **{VARIABLE: f"{text:.300}"},
            way_out="It names a chief and workers, which all run the same program on a live "
            "mesh, and which one this process is. For other processes unset it; "
            "MESHTF_COORDINATOR and MESHTF_PROCESS say the same.",
        )
    )
