"""The passes of a vote alone, written by hand: what its arithmetic costs without the library.

These are the rows `bare first-order` and `bare inner-loop`. They take no hypothetical step, make no check and cast no
vote.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from steelyard.benchmark.peers import joint_losses
from steelyard.benchmark.tasks import Step, Task

BARE = "bare "
Gradients = Sequence[Tensor]
"""One per parameter."""


def bare_methods() -> list[str]:
    """Return the names of these rows."""
    return [f"{BARE}first-order", f"{BARE}inner-loop"]


def make_bare_step(method: str, task: Task, plain_step: Step) -> Step:
    """Return a step with the passes over halves that a vote by this method needs.

    Args:
        method: one of `bare_methods`.
        task: what is trained.
        plain_step: is taken after the vote where its gradients cannot serve the outer step.
    """
    passes = _VotePasses(task)
    batch_norm = any(isinstance(module, torch.nn.BatchNorm2d) for module in task.model.modules())
    if method == f"{BARE}first-order":
        vote, shared_vote = passes.first_order, passes.shared_first_order
    else:
        vote, shared_vote = passes.inner_loop, passes.shared_inner_loop
    if not batch_norm:
        return shared_vote

    def step() -> None:
        vote()
        plain_step()

    return step


class _VotePasses:
    """A task's batch in halves, and passes over them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._parameters = list(task.model.parameters())
        self._meta_train_halves = []
        self._meta_test_halves = []
        meta_test_batch = {}
        for domain, (x, y) in task.batch.items():
            half = len(y) // 2
            self._meta_train_halves.append((x[:half], y[:half]))
            self._meta_test_halves.append((x[half:], y[half:]))
            meta_test_batch[domain] = (x[half:], y[half:])
        self._meta_test_losses = joint_losses(replace(task, batch=meta_test_batch))

    def shared_first_order(self) -> None:
        """One pass over each half of each domain, whose gradients serve the outer step too."""
        self._take_outer_step(self._gradients([*self._meta_train_halves, *self._meta_test_halves]))

    def shared_inner_loop(self) -> None:
        """One pass over each meta-train half; the meta-test halves once per domain, and once for the outer step."""
        gradients = self._gradients(self._meta_train_halves)
        self._judge_replicas()
        gradients.append(torch.autograd.grad(self._meta_test_losses().sum(), self._parameters))
        self._take_outer_step(gradients)

    def first_order(self) -> None:
        """One pass over each meta-train half, and one over all meta-test halves in evaluation mode."""
        self._gradients(self._meta_train_halves)
        self._task.model.eval()
        torch.autograd.grad(self._meta_test_losses().sum(), self._parameters)
        self._task.model.train()

    def inner_loop(self) -> None:
        """One pass over each meta-train half; the meta-test halves once per domain."""
        self._gradients(self._meta_train_halves)
        self._judge_replicas()

    def _gradients(self, halves: Sequence[tuple[Tensor, Tensor]]) -> list[Gradients]:
        gradients: list[Gradients] = []
        for x, y in halves:
            gradients.append(torch.autograd.grad(self._task.loss(self._task.model(x), y), self._parameters))
        return gradients

    def _judge_replicas(self) -> None:
        """Run the meta-test halves once for each domain's replica; the model itself stands for the replicas."""
        self._task.model.eval()
        with torch.no_grad():
            for _ in self._meta_train_halves:
                self._meta_test_losses()
        self._task.model.train()

    def _take_outer_step(self, gradients_of_passes: Sequence[Gradients]) -> None:
        total = list(gradients_of_passes[0])
        for gradients in gradients_of_passes[1:]:
            torch._foreach_add_(total, list(gradients))
        for parameter, gradient in zip(self._parameters, total, strict=True):
            parameter.grad = gradient
        self._task.optimizer.step()
