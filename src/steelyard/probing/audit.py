"""Checks that losses and gradients of a whole batch are the means of those of its parts."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from steelyard.batches import (
    Tree,
    can_join,
    clone_samples,
    count_samples,
    differentiable_samples,
    join_samples,
    take_samples,
)
from steelyard.probing.dropout import WithoutDropout
from steelyard.probing.passes import explained_in_evaluation, model_and_losses, take_gradients
from steelyard.probing.probe import Gradients, Losses
from steelyard.probing.replica import Replica, preserved_random_states, random_states
from steelyard.probing.sharing import AuditCase, CannotShareError, Reuse
from steelyard.probing.vote_probe import Vote, VoteProbe

COARSE = 1e-4  # float16 and bfloat16 round by more: too coarse to tell a mean over samples from something else

Parts = Mapping[str, Sequence[Tree]]
"""Each domain's samples, in the parts that the vote runs separately."""


def check_halves(
    probe: VoteProbe,
    vote: Vote,
    train_outputs: Mapping[str, Tree],
    test_outputs: Mapping[str, Tree],
    *,
    drawn: bool = False,
) -> None:
    """Refuse to share where the outer loss is not the mean of the halves' losses; an objective has no outputs.

    Args:
        probe: whose vote it is.
        vote: what is voted on.
        train_outputs: the model's outputs for the meta-train halves.
        test_outputs: those for the meta-test halves.
        drawn: whether the passes drew random numbers, which only dropout may.
    """
    parts: dict[str, list[Tree]] = {half.domain: [half.samples] for half in vote.halves.meta_train}
    if not vote.halves.held_out:
        for half in vote.halves.meta_test:
            parts[half.domain].append(half.samples)
        if train_outputs:
            check_loss_is_mean(vote.losses, parts, train_outputs, test_outputs)
    case = AuditCase(max(map(len, parts.values())), drawn)
    if probe.reuse.needs_audit(vote.model, case, probe.vote_number):
        audit(vote.model, vote.losses, parts, scaler=probe.scaler, reuse=probe.reuse, evaluating=probe.evaluating)
        probe.reuse.note_audit(vote.model, case)


def check_loss_is_mean(
    losses: Losses, halves: Parts, train_outputs: Mapping[str, Tree], test_outputs: Mapping[str, Tree]
) -> None:
    """Refuse a domain's loss that is not the mean of its halves' losses; needs no pass of the model.

    The values are compared, and the gradients for the outputs. Values alone are not enough: those of a batch Dice
    agree on many labels, while its gradients do not. As the gradients are compared at every vote, those that are shared
    with the outer step are right on these samples, whatever their labels.
    """
    wholes: dict[str, Tensor] = {}
    means: dict[str, Tensor] = {}
    outputs: dict[str, list[Tensor]] = {}
    for name, (meta_train, meta_test) in halves.items():
        if not can_join([train_outputs[name], test_outputs[name]]):
            raise CannotShareError(f"the outputs for domain {name!r} have another form in evaluation mode")
        whole = join_samples([meta_train, meta_test])
        share = count_samples(meta_train) / count_samples(whole)
        first_outputs, first_copies = differentiable_samples(train_outputs[name])
        second_outputs, second_copies = differentiable_samples(test_outputs[name])
        with torch.enable_grad():
            # Clones, because a loss may write into the outputs that it is given.
            first = losses.of({name: clone_samples(first_outputs)}, {name: meta_train})[name]
            second = losses.of({name: clone_samples(second_outputs)}, {name: meta_test})[name]
            wholes[name] = losses.of({name: join_samples([first_outputs, second_outputs])}, {name: whole})[name]
            means[name] = share * first + (1 - share) * second
        outputs[name] = [*first_copies, *second_copies]
    with torch.autocast(next(iter(wholes.values())).device.type, enabled=False):
        check_same_losses(wholes, means, units=1024)
        for name, whole in wholes.items():
            if not _have_same_gradients(whole, means[name], outputs[name]):
                raise CannotShareError(
                    f"the gradients of the loss of domain {name!r} are not those of a mean over samples"
                )


def audit(
    model: nn.Module, losses: Losses, parts: Parts, *, scaler: GradScaler | None, reuse: Reuse, evaluating: bool
) -> None:
    """Refuse a model whose samples meet in the forward pass, or whose loss reaches tensors elsewhere.

    One pass over everything must give the losses of passes over the parts; over half of each part, to save memory, also
    their gradients. A last layer of zeros hides from the losses what the gradients show. Dropout is switched off
    meanwhile, so that only what does not come from dropout can differ.

    Args:
        model: the live model.
        losses: the live losses.
        parts: each domain's samples, in the parts that the vote runs separately: one or two.
        scaler: the outer loop's.
        reuse: whose setting says whether losses may be too coarse to be compared.
        evaluating: whether the vote judges in evaluation mode, which must give the same losses then.
    """
    with preserved_random_states(model.parameters()), WithoutDropout():
        states = random_states(model.parameters())
        replica = Replica(model, losses)
        copied, copied_losses = model_and_losses(replica)
        whole = {name: join_samples(domain_parts) for name, domain_parts in parts.items()}
        same_gradients = _have_gradients_of_parts(replica, parts, scaler=scaler)
        if random_states(model.parameters()) != states:
            raise CannotShareError("the forward pass draws random numbers that are not dropout's")
        with torch.no_grad():
            expected = _means_of_parts(copied, copied_losses, parts)
            check_same_losses(copied_losses(copied, whole), expected)
            if evaluating:
                with explained_in_evaluation(evaluating):
                    evaluated = copied_losses(copied.eval(), whole)
                check_same_losses(evaluated, expected)
        changed = replica.changed_attribute()
        if changed is not None:
            module, attribute = changed
            raise CannotShareError(f"the forward pass changes {attribute!r} of {module}")
        if not same_gradients:
            raise CannotShareError("the gradients of a pass over all samples are not those of passes over some of them")
        for name, loss in expected.items():
            if reuse.setting == "detect" and torch.finfo(loss.dtype).eps > COARSE:
                raise CannotShareError(
                    f"the loss of domain {name!r} is {loss.dtype}, too coarse to tell whether it is a mean over samples"
                )


def _means_of_parts(model: nn.Module, losses: Losses, parts: Parts) -> dict[str, Tensor]:
    """Each domain's loss as the mean over passes over its parts, weighted by their sizes."""
    means: dict[str, Tensor] = {}
    for name, domain_parts in parts.items():
        sizes = [count_samples(part) for part in domain_parts]
        terms = []
        for size, part in zip(sizes, domain_parts, strict=True):
            terms.append(size / sum(sizes) * losses(model, {name: part})[name])
        means[name] = torch.stack(terms).sum()
    return means


def _have_gradients_of_parts(replica: Replica, parts: Parts, *, scaler: GradScaler | None) -> bool:
    """Whether one pass over half of each part gives the gradients of separate passes over them."""
    model, losses = model_and_losses(replica)
    pieces: dict[str, list[Tree]] = {}
    for name, domain_parts in parts.items():
        pieces[name] = [take_samples(part, slice(0, max(1, count_samples(part) // 2))) for part in domain_parts]
    joined = {name: join_samples(domain_pieces) for name, domain_pieces in pieces.items()}
    together = torch.stack(list(losses(model, joined).values())).sum()
    _check_leaves(together, replica.parameters.values())
    leaves = [parameter for parameter in replica.parameters.values() if parameter.requires_grad]
    gradients, _ = take_gradients(together, leaves, scaler=scaler)
    separate = torch.stack(list(_means_of_parts(model, losses, pieces).values())).sum()
    expected, _ = take_gradients(separate, leaves, scaler=scaler)
    # Other kernels for other numbers of samples round differently, and that switches activations and maxima near a tie:
    # 3 % of the gradients of an untrained U-Net on noise.
    return are_close(gradients, expected, tolerance=max(0.1, 8 * _rounding(together, units=4096)))


def check_same_losses(wholes: Mapping[str, Tensor], means: Mapping[str, Tensor], *, units: int = 4096) -> None:
    """Refuse the first domain whose loss over all samples is not the mean of its parts', up to rounding.

    The tolerance is relative to the loss itself, and to a thousandth of the largest, for one whose terms cancel.
    """
    values = [abs(float(loss.detach())) for loss in (*wholes.values(), *means.values())]
    largest = max(filter(math.isfinite, values), default=0.0)
    for name, loss in wholes.items():
        whole, mean = float(loss.detach()), float(means[name].detach())
        tolerance = _rounding(loss, units=units) * max(abs(whole), largest / 1000)
        if math.isfinite(whole) and not abs(whole - mean) <= tolerance:
            raise CannotShareError(
                f"the loss of domain {name!r} over all samples is {whole:.6g}, and {mean:.6g} as a mean of halves"
            )


def are_close(gradients: Gradients, expected: Gradients, *, tolerance: float) -> bool:
    """Whether gradients agree: no difference is larger than a part of its norm, and of a hundredth of the largest."""
    norms = [_norm(gradient) for gradient in gradients]
    largest = max(filter(math.isfinite, norms), default=0.0)
    for gradient, expectation, norm in zip(gradients, expected, norms, strict=True):
        difference = _norm(expectation) if gradient is None else norm  # a missing gradient is zero
        if gradient is not None and expectation is not None:
            difference = _norm(gradient - expectation)
        if math.isfinite(norm) and not difference <= tolerance * (norm + largest / 100):
            return False
    return True


def _norm(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.norm())


def _have_same_gradients(loss: Tensor, other: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Whether two losses have the same gradients for the outputs, up to rounding."""
    if not outputs or not loss.requires_grad or not other.requires_grad:
        return loss.requires_grad == other.requires_grad
    gradients = torch.autograd.grad(loss, outputs, allow_unused=True, materialize_grads=True)
    expected = torch.autograd.grad(other, outputs, allow_unused=True, materialize_grads=True)
    for gradient, expectation in zip(gradients, expected, strict=True):
        # Compared output by output: one with large gradients must not hide an error in another.
        if not are_close([gradient], [expectation], tolerance=_rounding(gradient, units=128)):
            return False
    return True


def _rounding(tensor: Tensor, *, units: int) -> float:
    """How far, relative to it, a value may differ because of rounding, by its own precision and that of autocast.

    Args:
        tensor: the value.
        units: in which it may differ; coarse values, which are computed in float32 as a rule and rounded once, in 4.
    """
    device = tensor.device.type
    eps = torch.finfo(tensor.dtype).eps
    if torch.is_autocast_enabled(device):
        eps = max(eps, torch.finfo(torch.get_autocast_dtype(device)).eps)
    return (4 if eps > COARSE else units) * eps


def _check_leaves(loss: Tensor, parameters: Iterable[Tensor]) -> None:
    """Refuse a loss that depends on a trainable tensor outside the model and the loss."""
    expected = {id(parameter) for parameter in parameters}
    for leaf in graph_leaves(loss):
        if id(leaf) not in expected:
            raise CannotShareError(
                f"it depends on a trainable tensor of shape {tuple(leaf.shape)} outside the model and the loss"
            )


def graph_leaves(loss: Tensor) -> list[Tensor]:
    """The leaves whose `grad` a backward pass writes to, also those that belong to no module."""
    leaves: list[Tensor] = []
    seen, waiting = {loss.grad_fn}, [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):  # of the nodes that accumulate gradients
            leaves.append(node.variable)
        following = {function for function, _ in node.next_functions}
        waiting += following - seen
        seen |= following
    return leaves
