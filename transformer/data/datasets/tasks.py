"""Tasks and mixtures of tasks, registered by name, as in seqio (Roberts et al. 2022).

Example:

    register(Task("reverse", source=tsv("pairs/*.tsv", columns=("text", "reversed")),
                  vocabulary=ByteVocabulary(), features=EncoderDecoderFeatures(64, 64),
                  preprocessors=[partial(tokenize, vocabulary=ByteVocabulary(),
                                         fields={"text": "inputs", "reversed": "targets"})]))
    register(Mixture("both", {"reverse": 0.7, "span_corruption_stdlib": 0.3}))
    TaskData("both").batches(16)
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence

import gin

from transformer.data.batching.features import Arrays, Features
from transformer.data.batching.packing import Packing
from transformer.data.batching.seeds import Seed
from transformer.data.errors import DataError
from transformer.data.sources.base import Example, Source
from transformer.data.vocabularies import Vocabulary

Preprocessor = Callable[[Example, Seed], Example]
_TOTAL_SHARES = 2**32  # the sum of the shares of a mixture as integers, up to rounding


@dataclasses.dataclass(frozen=True)
class Task:
    """A source of examples, and the conversion of its examples to arrays for a model.

    Args:
      name: the name of the task.
      source: the source of documents or examples.
      vocabulary: the vocabulary of the tokens.
      features: converts an example to arrays.
      packing: makes training examples from documents, once; None: the source has training
        examples.
      preprocessors: pure functions of (example, seed), applied in this order at each use
        of an example.
    """

    name: str
    source: Source
    vocabulary: Vocabulary
    features: Features
    packing: Packing | None = None
    preprocessors: Sequence[Preprocessor] = ()

    def arrays(self, example: Example, seed: Seed) -> Arrays:
        """Returns the arrays of an example, by feature. They depend only on the example and
        the seed.
        """
        try:
            for index, preprocessor in enumerate(self.preprocessors):
                example = preprocessor(example, (*seed, index))
            return self.features(example)
        except DataError as error:
            raise DataError(f"task {self.name!r}: {error}") from error


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Mixture:
    """Interleaved tasks: among any successive examples, each task has its share, up to
    rounding.

    Args:
      name: the name of the mixture.
      shares: the share of each task in the examples, by name of the task; they need not
        sum to 1.
    """

    name: str
    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.shares or any(not share > 0 for share in self.shares.values()):
            raise DataError(
                f"a mixture needs tasks with shares above 0; {self.name!r} has "
                f"{dict(self.shares)}."
            )

    def integer_shares(self) -> list[int]:
        """Returns the shares as integers, at least 1 each, of about 2**32 in total."""
        total = sum(self.shares.values())
        return [
            max(round(share / total * _TOTAL_SHARES), 1)
            for share in self.shares.values()
        ]


# Name -> a function that returns the registered task or mixture.
_task_makers: dict[str, Callable[[], Task | Mixture]] = {}


def register(
    task: Task | Mixture | Callable[[], Task], name: str | None = None
) -> None:
    """Registers a task or mixture.

    Args:
      task: the task or mixture, or a function that returns the task, called at each use.
      name: the name of the task, if `task` is a function; None: `task` has a name.

    Raises:
      DataError: a task of this name is registered already.
    """
    if isinstance(task, Task | Mixture):
        _add(task.name, lambda: task)
    else:
        assert name is not None, "a function is registered under a name"
        _add(name, task)


def task_names() -> list[str]:
    """Returns the names of all tasks and mixtures, sorted."""
    return sorted(_task_makers)


def find(name: str) -> Task | Mixture:
    """Returns the task or mixture of a name.

    Raises:
      DataError: there is no such task; the message has a similar name.
    """
    if name not in _task_makers:
        similar = difflib.get_close_matches(name, _task_makers, n=1, cutoff=0.4)
        suggestion = f"Did you mean {similar[0]!r}? " if similar else ""
        raise DataError(
            f"there is no task {name!r}.\n  there are    {', '.join(task_names())}\n"
            f"  {suggestion}Or import the module that registers it: in gin, "
            "`import my.tasks`."
        )
    return _task_makers[name]()


def tasks_of(task: Task | Mixture) -> list[Task]:
    """Returns the tasks of a mixture; for a task only itself.

    Raises:
      DataError: the features of the tasks differ, or one is a mixture.
    """
    if isinstance(task, Task):
        return [task]
    mixture = task
    tasks: list[Task] = []
    for name in mixture.shares:
        member = find(name)  # a task or, wrongly, a mixture
        if not isinstance(member, Task):
            raise DataError(
                f"mixture {mixture.name!r} has a mixture among its tasks; only tasks are "
                "allowed."
            )
        tasks.append(member)
    _check_compatible(mixture, tasks)
    return tasks


def _check_compatible(mixture: Mixture, tasks: Sequence[Task]) -> None:
    """Raises DataError unless all tasks have the same features and vocabulary."""
    reference = tasks[0]
    for task in tasks[1:]:
        if task.features.shapes() != reference.features.shapes():
            raise DataError(
                f"mixture {mixture.name!r}: the features of its tasks differ.\n"
                f"  {reference.name}: {reference.features}\n"
                f"  {task.name}: {task.features}\n"
                "  Give them the same kinds and lengths."
            )
        if task.vocabulary.fingerprint() != reference.vocabulary.fingerprint():
            raise DataError(
                f"mixture {mixture.name!r}: the vocabularies of its tasks differ.\n"
                f"  {reference.name}: {reference.vocabulary}\n"
                f"  {task.name}: {task.vocabulary}"
            )


def _add(name: str, make_task: Callable[[], Task | Mixture]) -> None:
    """Registers a function that returns a task or mixture.

    Raises:
      DataError: a task of this name is registered already.
    """
    if name in _task_makers:
        raise DataError(f"there is a task {name!r} already: a name is registered once.")
    _task_makers[name] = make_task
