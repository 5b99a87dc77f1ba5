"""Random models, optimizers and batches through the balancer.

What must hold, whatever was drawn:

- a probe leaves parameters, buffers, gradients, optimizer, modes, hooks and generators as they were, bit for bit;
- the weights are finite and not negative, and sum to 1 where the weighting says so;
- the loss, its gradients and what the forward pass leaves behind are those of a sum written by hand, unless a vote that
  drew masks of dropout was shared;
- a checkpoint continues with the same weights;
- a call that raises says why in our own words, and changes nothing.
"""

import copy
import random
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, l1_loss, mse_loss

import steelyard as sy
from fuzz.library_models import MODELS
from fuzz.tally import Tally, chance

FEATURES = 6

# The refusals that the documentation promises; any other error is a finding.
_REFUSALS = (
    r"reuse=True needs a loss that is a mean over independently processed samples",
    r"reuse=True needs votes cast on the outer step's own samples",
    r"must be one number in a tensor",
    r"the batch holds no sample of any of",
    r"every part of a batch must hold the same number of samples",
    r"a batch must map names among",
    r"a batch must hold tensors",
    r"the optimizer is needed for the vote",
    # What torch says in the plain loop too, of a batch of one sample.
    r"Expected more than 1 value per channel",
)


def batch_dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is not a mean over samples."""
    chances, truth = outputs.sigmoid(), targets.sigmoid()
    return 1 - 2 * (chances * truth).sum() / (chances.sum() + truth.sum())


LOSSES = {
    "mse": mse_loss,
    "l1": l1_loss,
    "huber": huber_loss,
    "large": lambda outputs, targets: 1e4 * mse_loss(outputs, targets),
    "tiny": lambda outputs, targets: 1e-6 * mse_loss(outputs, targets),
    "negative": lambda outputs, targets: mse_loss(outputs, targets) - 100,
    "batch dice": batch_dice,
    "sum": lambda outputs, targets: (outputs - targets).square().sum(),
}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.01),
    "nesterov": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "maximize": partial(torch.optim.SGD, lr=0.01, momentum=0.5, dampening=0.2, maximize=True),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "one by one": partial(torch.optim.AdamW, lr=0.01, foreach=False),
    "rate in a tensor": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), foreach=False),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.001, momentum=0.5, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
    "adadelta": partial(torch.optim.Adadelta, lr=0.5),
    "nadam": partial(torch.optim.NAdam, lr=0.01),
    "radam": partial(torch.optim.RAdam, lr=0.01),
    "adamax": partial(torch.optim.Adamax, lr=0.01),
    "asgd": partial(torch.optim.ASGD, lr=0.01),
    "rprop": partial(torch.optim.Rprop, lr=0.001),
    "no rate": partial(torch.optim.SGD, lr=0.0),
}

WEIGHTINGS: dict[str, Callable[[], sy.Weighting]] = {
    "greedy": lambda: sy.DirichletVote("greedy", window=3, prior=1.5),
    "conservative": lambda: sy.DirichletVote("conservative", window=4, prior_votes=2),
    "fixed": sy.Fixed,
}
WEIGHTINGS_BY_LOSSES: dict[str, Callable[[], sy.Weighting]] = {
    "group DRO": sy.GroupDRO,
    "dynamic weight average": lambda: sy.DynamicWeightAverage(period=2),
    "uncertainty": lambda: sy.UncertaintyWeighting(rate=0.1),
    "FAMO": lambda: sy.FAMO(lower_bound=-200.0),
    "fixed": sy.Fixed,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """All that was drawn for one case."""

    model: str
    optimizer: str
    loss: str
    probe: str
    weighting: str
    domains: int
    double: bool
    join: bool
    objective: bool
    scaled: bool
    spoiled: str
    settings: tuple[tuple[str, object], ...]

    @property
    def may_share_masks(self) -> bool:
        """Whether the outer step may have the masks of dropout that a vote has drawn."""
        return self.model == "dropout" and self.probe == "first order" and dict(self.settings)["reuse"] is not False

    @property
    def names(self) -> tuple[str, ...]:
        """The domains."""
        return tuple(f"domain {number}" for number in range(self.domains))

    def make_balancer(self) -> sy.Balancer:
        """A fresh balancer; the same each time."""
        kinds = {"inner loop": sy.InnerLoop, "first order": sy.FirstOrder}
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16) if self.scaled else None
        probe = None if self.probe == "none" else kinds[self.probe](**dict(self.settings), scaler=scaler)
        table = WEIGHTINGS_BY_LOSSES if probe is None else WEIGHTINGS
        loss = LOSSES[self.loss]
        if not self.objective:
            return sy.Balancer(self.names, loss=loss, weighting=table[self.weighting](), probe=probe, join=self.join)
        objective = partial(_objective, loss)
        return sy.Balancer(self.names, objective=objective, weighting=table[self.weighting](), probe=probe)


def _objective(loss: Callable[[Tensor, Tensor], Tensor], model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return loss(model(batch[0]), batch[1])


def draw_case(dice: random.Random) -> Case:
    """Draw a case."""
    probe = dice.choice(["inner loop", "inner loop", "first order", "first order", "none"])
    settings: dict[str, object] = {}
    if probe != "none":
        settings["step"] = dice.choice(["optimizer", "optimizer", "sgd"])
        settings["meta_test"] = dice.choice(["eval", "batch"])
        settings["split"] = dice.choice(["first", "random"])
        settings["every"] = dice.choice([1, 1, 2])
        settings["reuse"] = dice.choice([False, "detect", "detect", "detect", True])
        settings["gather"] = False if settings["reuse"] is True else dice.choice([False, False, False, True, 4])
    return Case(
        model=dice.choice(list(MODELS)),
        optimizer=dice.choice(list(OPTIMIZERS)),
        loss=dice.choice(list(LOSSES)),
        probe=probe,
        weighting=dice.choice(list(WEIGHTINGS_BY_LOSSES if probe == "none" else WEIGHTINGS)),
        domains=dice.choice([1, 2, 2, 3, 5]),
        double=dice.random() < 0.7,
        join=dice.random() < 0.8,
        objective=dice.random() < 0.15,
        scaled=dice.random() < 0.3,
        spoiled=dice.choice(["", "", "", "", "nan", "huge", "unknown domain", "uneven", "empty", "array"]),
        settings=tuple(settings.items()),
    )


def draw_batch(case: Case, dice: random.Random) -> dict[str, tuple[Tensor, Tensor]]:
    """Draw a batch; domains may be absent or have a single sample."""
    precision = torch.float64 if case.double else torch.float32
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    batch = {}
    for number, name in enumerate(case.names):
        size = dice.choice([0, 1, 2, 3, 4, 6, 6, 6])
        if size:
            inputs = torch.randn(size, FEATURES, generator=generator, dtype=precision)
            targets = torch.randn(size, 1, generator=generator, dtype=precision) + number
            batch[name] = (inputs, targets)
    if not batch:
        return {case.names[0]: (torch.ones(2, FEATURES, dtype=precision), torch.ones(2, 1, dtype=precision))}
    return batch


def spoil(case: Case, batch: dict[str, tuple[Tensor, Tensor]]) -> dict[str, object]:
    """The batch with one fault."""
    name, (inputs, targets) = next(iter(batch.items()))
    spoiled: dict[str, object] = dict(batch)
    if case.spoiled == "nan":
        spoiled[name] = (inputs.clone().fill_(float("nan")), targets)
    if case.spoiled == "huge":
        spoiled[name] = (inputs * 1e30, targets)
    if case.spoiled == "unknown domain":
        spoiled["elsewhere"] = (inputs, targets)
    if case.spoiled == "uneven":
        spoiled[name] = (inputs, torch.cat([targets, targets]))
    if case.spoiled == "empty":
        spoiled = {name: (inputs[:0], targets[:0])}
    if case.spoiled == "array":
        spoiled[name] = (inputs.numpy(), targets)
    return spoiled


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """Everything that a probe must leave as it was."""
    hooks = []
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks"):
            hooks.append(list(getattr(module, kind)))
    return {
        "parameters": _bytes(model.parameters()),
        "buffers": _bytes(model.buffers()),
        "gradients": _bytes(parameter.grad for parameter in model.parameters()),
        "gradients required": [parameter.requires_grad for parameter in model.parameters()],
        "optimizer": _frozen(optimizer.state_dict()),
        "modes": [module.training for module in model.modules()],
        "hooks": hooks,
        "generators": generator_states(),
    }


def generator_states() -> tuple[object, ...]:
    """Where torch's, Python's and numpy's generators are."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state[1].tobytes(), numpy_state[2]


def _bytes(tensors: object) -> list[bytes | None]:
    return [None if tensor is None else tensor.detach().numpy().tobytes() for tensor in tensors]


def _frozen(value: object) -> object:
    """A value that can be compared: tensors as bytes."""
    if isinstance(value, Tensor):
        return value.detach().numpy().tobytes()
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_frozen(item) for item in value]
    return value


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """What is not as it was."""
    return [key for key in before if before[key] != after[key]]


def sum_by_hand(case: Case, model: nn.Module, batch: dict[str, tuple[Tensor, Tensor]], weights: dict[str, float]):
    """The weighted loss as anybody would write it."""
    loss = LOSSES[case.loss]
    if case.join and not case.objective:
        sizes = [len(inputs) for inputs, _ in batch.values()]
        outputs = model(torch.cat([inputs for inputs, _ in batch.values()])).split(sizes)
    else:
        outputs = [model(inputs) for inputs, _ in batch.values()]
    pairs = zip(batch.items(), outputs, strict=True)
    return sum(weights[name] * loss(output, targets) for (name, (_, targets)), output in pairs)


class Trial:
    """One case: its model and balancer, and the faults that it shows."""

    def __init__(self, case: Case, dice: random.Random) -> None:
        self.case = case
        self.faults: list[str] = []
        self.refused = False
        torch.manual_seed(dice.randrange(2**31))
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        self.model = MODELS[case.model](FEATURES)
        if case.double:
            self.model.double()
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = OPTIMIZERS[case.optimizer](trainable)
        self.balancer = case.make_balancer()
        for parameter in trainable[::2]:
            parameter.grad = torch.ones_like(parameter)  # gradients that are being accumulated

    def step(self, batch: dict[str, tuple[Tensor, Tensor]]) -> None:
        """One step of training, beside the same step by hand."""
        self._check_probe(batch)
        twin = copy.deepcopy(self.model)
        generators = _generators()
        before = state_of(self.model, self.optimizer)
        own = _frozen(self.balancer.state_dict())
        try:
            loss = self.balancer(self.model, batch, self.optimizer)
        except Exception as error:
            self._check_refusal(error, before, own)
            return
        self._check_weights()
        after = state_of(self.model, self.optimizer)
        moved = set(changes(before, after)) - {"buffers", "generators"}  # the forward pass itself may change these
        self.faults += [f"the call changed {key}" for key in sorted(moved)]
        after_call = _generators()
        comparable = not (self.case.may_share_masks and self.balancer.last.measured)
        _set_generators(generators)
        expected = sum_by_hand(self.case, twin, batch, self.balancer.weights)
        if comparable and generator_states() != after["generators"]:
            self.faults.append("the generators are not where a plain forward pass leaves them")
        _set_generators(after_call)
        if _bytes(twin.buffers()) != after["buffers"] and not _close(list(self.model.buffers()), list(twin.buffers())):
            self.faults.append("the buffers are not those of a plain forward pass")
        if not self.refused:  # what was refused before was declared wrongly: `reuse=True` for a loss that is not a mean
            self._check_gradients(loss, expected, twin, comparable=comparable)
        self.optimizer.step()

    def _check_probe(self, batch: dict[str, tuple[Tensor, Tensor]]) -> None:
        """The probe alone: nothing at all may change, whatever happens in it."""
        probe = copy.deepcopy(self.balancer.probe)
        if probe is None:
            return
        before = state_of(self.model, self.optimizer)
        with suppress(TypeError, ValueError):  # the call of the balancer meets it again, and looks at it
            probe.measure(self.model, batch, losses=self.balancer.domain_losses, optimizer=self.optimizer)
        after = state_of(self.model, self.optimizer)
        self.faults += [f"the probe changed {key}" for key in changes(before, after)]

    def _check_refusal(self, error: Exception, before: dict[str, object], own: object) -> None:
        self.refused = True
        if not _is_refusal(error):
            self.faults.append(f"{type(error).__name__}: {str(error)[:200]}")
        moved = set(changes(before, state_of(self.model, self.optimizer))) - {"buffers", "generators"}
        self.faults += [f"a call that raised changed {key}" for key in sorted(moved)]
        counters = {k: v for k, v in own.items() if "refused" not in k and "vmapping" not in k}
        now = _frozen(self.balancer.state_dict())
        if any(now[key] != value for key, value in counters.items()):
            self.faults.append("a call that raised moved the balancer's counters")

    def _check_weights(self) -> None:
        weights = list(self.balancer.weights.values())
        if not all(np.isfinite(weights)) or min(weights) < 0:
            self.faults.append(f"weights are {weights}")
        elif self.balancer.weighting.on_simplex and abs(sum(weights) - 1) > 1e-6:
            self.faults.append(f"the weights sum to {sum(weights)}")

    def _check_gradients(self, loss: Tensor, expected: Tensor, twin: nn.Module, *, comparable: bool) -> None:
        if comparable and not _close([loss.detach()], [expected.detach()]):
            self.faults.append(f"the loss is {loss.item():.9g}, by hand {expected.item():.9g}")
        self.optimizer.zero_grad()
        twin.zero_grad()
        loss.backward()
        expected.backward()
        mine = [parameter.grad for parameter in self.model.parameters()]
        theirs = [parameter.grad for parameter in twin.parameters()]
        if comparable and not _close(mine, theirs):
            self.faults.append("the gradients are not those of the loss by hand")

    def check_checkpoint(self, batch: dict[str, tuple[Tensor, Tensor]]) -> None:
        """A balancer loaded from a checkpoint goes on with the same weights."""
        other = self.case.make_balancer()
        other.load_state_dict(copy.deepcopy(self.balancer.state_dict()))
        weights = []
        for balancer in (self.balancer, other):
            model, optimizer = copy.deepcopy((self.model, self.optimizer))
            generators = _generators()
            try:
                balancer(model, batch, optimizer)
            except Exception as error:
                if not _is_refusal(error):
                    raise
            _set_generators(generators)
            weights.append(balancer.weights)
        if repr(weights[0]) != repr(weights[1]):
            self.faults.append(f"after a checkpoint the weights are {weights[1]}, not {weights[0]}")


def _is_refusal(error: Exception) -> bool:
    """Whether an error is one that the documentation promises."""
    return isinstance(error, TypeError | ValueError) and any(re.search(text, str(error)) for text in _REFUSALS)


def _generators() -> tuple[object, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002


def _set_generators(states: tuple[object, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002


def _close(values: list[Tensor | None], others: list[Tensor | None]) -> bool:
    """Whether tensors are alike up to rounding; inf and nan are alike, too."""
    tensors = [tensor for tensor in (*values, *others) if tensor is not None and tensor.is_floating_point()]
    sizes = [tensor[tensor.isfinite()].abs().max().item() for tensor in tensors if tensor.isfinite().any()]
    largest = max(sizes, default=0.0)
    for value, other in zip(values, others, strict=True):
        if value is None or other is None:
            # A gradient of zero stands for none where gradients are shared.
            if any(tensor is not None and bool(tensor.abs().max() > 0) for tensor in (value, other)):
                return False
            continue
        finite = value.isfinite()
        if not torch.equal(finite, other.isfinite()):
            return False
        relative = 1e-9 if value.dtype is torch.float64 else 1e-4
        if not torch.allclose(value[finite], other[finite], rtol=relative, atol=relative * largest):
            return False
    return True


def run_case(seed: int, number: int) -> tuple[Case, list[str], str]:
    """Run one case: what it was, its faults, and its kind."""
    dice = chance(seed, "library", number)
    case = draw_case(dice)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Advice to the user, which some cases are made to deserve.
        warnings.filterwarnings("ignore", message=r"the forward pass changes the buffer")
        try:
            trial = Trial(case, dice)
            for _ in range(3):
                trial.step(draw_batch(case, dice))
            if case.spoiled:
                trial.step(spoil(case, draw_batch(case, dice)))
            if not trial.refused:
                trial.check_checkpoint(draw_batch(case, dice))
        except Exception as error:
            return case, [f"{type(error).__name__}: {str(error)[:300]}"], case.probe
    return case, trial.faults, f"{case.probe}, refused" if trial.refused else case.probe


def run(seed: int, cases: int) -> Tally:
    """Run so many cases."""
    tally = Tally("library", seed)
    for number in range(cases):
        case, faults, kind = run_case(seed, number)
        tally.add(number, kind, sorted(set(faults)), repr(case))
    return tally
