"""What is asked of a layer that is linear in its own parameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

PRECISE = (torch.float32, torch.float64)  # coarser gradients cannot be verified


class Layer(ABC):
    """What one layer of a network has seen in one run over samples, which are the first dimension.

    Args:
        module: the layer.
        pieces: how many samples each of consecutive runs has whose gradients are sought apart; none if weights of
            samples come later.

    Attributes:
        owned: the parameters that are differentiated.
        listening: whether what comes back now is what is sought; a loss may run a backward pass of its own before.
    """

    listening = False

    def __init__(self, module: Any, pieces: Sequence[int] = ()) -> None:
        self._module = module
        self._weight: Tensor = self._module.weight
        self._bias: Tensor | None = self._module.bias
        self._pieces = list(pieces)
        self._samples: list[int] = []
        self.owned = [each for each in (self._weight, self._bias) if each is not None and each.requires_grad]

    def ran_once_over(self, samples: int) -> bool:
        """Whether it ran once, over this many samples, in a way that is understood."""
        return self._samples == [samples]

    @abstractmethod
    def watch(self) -> Callable[[], None]:
        """Take notes while the network runs; returns what ends that."""

    @abstractmethod
    def sought(self) -> list[GradientEdge]:
        """Where in the automatic differentiation the loss's gradients are asked for."""

    @abstractmethod
    def receive(self, found: Sequence[Tensor]) -> bool:
        """Take them; whether they can be used."""

    @abstractmethod
    def gradients(self, weights: Tensor | None, rows: slice) -> dict[Tensor, Tensor]:
        """Each parameter's gradient if each of the chosen samples' losses had a weight."""

    @abstractmethod
    def slopes(self, direction: Mapping[Tensor, Tensor], rows: slice) -> Tensor:
        """For each of the chosen samples, the inner product of its gradient and a direction."""

    @abstractmethod
    def apart(self) -> list[list[Tensor]]:
        """For each piece, a gradient for each parameter owned."""
