"""What both runtimes share: who carries out which step between computations.

    class Mine(Carrier):
      def _load(self, store): ...           # and _put, _tell, _window, _move

    carrier.carry_out(step)                 # carrier.values[step.out] is there
"""

from __future__ import annotations

from typing import Any

from meshtf.graph import Store
from meshtf.partition import Load, MoveStep, Put, Step, Tell, Value, WindowStep


class Carrier:
  """Base of runtimes: keeps values, and sends each step to the method that carries it out."""

  def __init__(self) -> None:
    self.values: dict[Value, Any] = {}

  def carry_out(self, step: Step) -> None:
    """Carries out a step that is no computation, and keeps what it makes."""
    if isinstance(step, Load):
      self.values[step.out] = self._load(step.store)
    elif isinstance(step, Put):
      self._put(step)
    elif isinstance(step, Tell):
      self.values[step.out] = self._tell(step)
    elif isinstance(step, WindowStep):
      self.values[step.out] = self._window(step)
    elif isinstance(step, MoveStep):
      self.values[step.out] = self._move(step)

  def _load(self, store: Store) -> Any:
    raise NotImplementedError

  def _put(self, step: Put) -> None:
    raise NotImplementedError

  def _tell(self, step: Tell) -> Any:
    raise NotImplementedError

  def _window(self, step: WindowStep) -> Any:
    raise NotImplementedError

  def _move(self, step: MoveStep) -> Any:
    raise NotImplementedError
