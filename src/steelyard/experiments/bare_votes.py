"""Votes in separate passes, by hand: what the arithmetic takes."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from steelyard.experiments.benchmark_tasks import Step, Task
from steelyard.experiments.peers import joint_losses

BARE = "bare "


def bare_names(network: str) -> list[str]:
    """The votes whose passes are measured on this network, two domains each."""
    shared = [] if network == "unet-batchnorm" else [f"{BARE}first-order"]  # where samples meet, nothing is shared
    return [*shared, f"{BARE}inner-loop"]


def bare_step(method: str, task: Task, plain: Step) -> Step:
    """One step, with the passes over halves that a vote of this name asks for, but no hypothetical step and no vote."""
    votes = _Passes(task)
    return {
        "first-order": votes.shared_first_order,
        "inner-loop": (lambda: votes.inner_loop_apart(plain)) if votes.apart else votes.shared_inner_loop,
    }[method.removeprefix(BARE)]


class _Passes:
    """A task's batch in halves, and passes over them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._parameters = list(task.model.parameters())
        half = min(len(y) for _, y in task.batch.values()) // 2
        self._trains = [(x[:half], y[:half]) for x, y in task.batch.values()]
        self._tests = [(x[half:], y[half:]) for x, y in task.batch.values()]
        rest = dict(zip(task.batch, self._tests, strict=True))
        self._judged = joint_losses(Task(model=task.model, loss=task.loss, batch=rest, optimizer=task.optimizer))
        self.apart = any(isinstance(module, torch.nn.BatchNorm2d) for module in task.model.modules())

    def shared_first_order(self) -> None:
        """One pass over each half of each domain, whose gradients are the outer step's as well."""
        self._step(self._gradients([*self._trains, *self._tests]))

    def shared_inner_loop(self) -> None:
        """One over each meta-train half, the meta-test halves judged once for each domain, then run for the step."""
        found = self._gradients(self._trains)
        self._judge()
        self._step([*found, torch.autograd.grad(self._judged().sum(), self._parameters)])

    def inner_loop_apart(self, plain: Step) -> None:
        """The same where samples meet, and the whole plain step after it."""
        self._gradients(self._trains)
        self._judge()
        plain()

    def _gradients(self, halves: Iterable[tuple[Tensor, Tensor]]) -> list[Sequence[Tensor]]:
        return [torch.autograd.grad(self._task.loss(self._task.model(x), y), self._parameters) for x, y in halves]

    def _judge(self) -> None:
        self._task.model.eval()
        with torch.no_grad():
            for _ in self._trains:
                self._judged()
        self._task.model.train()

    def _step(self, found: Sequence[Sequence[Tensor]]) -> None:
        total = list(found[0])
        for gradients in found[1:]:
            torch._foreach_add_(total, list(gradients))
        for parameter, gradient in zip(self._parameters, total, strict=True):
            parameter.grad = gradient
        self._task.optimizer.step()
