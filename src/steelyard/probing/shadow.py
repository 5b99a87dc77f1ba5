"""Stand-ins for live modules, to be changed at will."""

import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

_PLAIN = frozenset((bool, int, float, str, type(None)))
_CONTAINERS = frozenset((list, set, deque, dict, OrderedDict, defaultdict, Counter))
_BARE = frozenset((list, set, dict, OrderedDict))  # of which an empty one is like any other


class Shadow:
    """A second tree of module objects beside the live one.

    Parameters, buffers and other tensors that hold state are copies, and every attribute, container, partial function
    and bound method that leads to a live module or tensor leads to its stand-in instead. Running, stepping or changing
    the shadow never touches the live modules. What wraps a module to change how it runs, `torch.compile` and
    distributed data parallelism, is left out: a shadow runs eagerly and on its own rank. Objects of other kinds are
    shared.

    Args:
        live: the modules.
        borrow: share the parameters' memory instead of copying it, for a shadow that is run and never stepped.

    Attributes:
        modules: the stand-ins of the modules given, in order.
        parameters: every live parameter's stand-in.
    """

    def __init__(self, *live: nn.Module, borrow: bool = False) -> None:
        self._stand_ins: dict[int, Any] = {}
        self._borrow = borrow
        self.parameters: dict[Tensor, nn.Parameter] = {}
        self._pairs: list[tuple[nn.Module, nn.Module]] = []
        self._generators: list[tuple[Any, Any]] = []
        self.modules = tuple(self._module(root) for root in live)
        self._began = list(self._buffers())

    def wrote_buffers(self) -> bool:
        """Whether a buffer of the stand-ins was written to, or another put in its place."""
        now = list(self._buffers())
        kept = len(now) == len(self._began) and all(one is other for one, other in zip(now, self._began, strict=True))
        return not kept or any(buffer._version for buffer in now)

    def drew_numbers(self) -> bool:
        """Whether a generator that a module holds is elsewhere than the live one."""
        return any(_place(live) != _place(stand_in) for live, stand_in in self._generators)

    def _buffers(self) -> Iterator[Tensor]:
        return (buffer for module in self.modules for buffer in module.buffers())

    def changed_attribute(self) -> tuple[str, str] | None:
        """The class of a module and a number, text or tensor in it that the stand-in has changed; not its mode."""
        for live, stand_in in self._pairs:
            now = _attributes(stand_in)
            for name, value in _attributes(live).items():
                if type(value) in _PLAIN and name != "training" and repr(now.get(name)) != repr(value):
                    return type(live).__name__, name
                if isinstance(value, Tensor) and not value.requires_grad:
                    began: Tensor = self._stand_ins[id(value)]
                    if now.get(name) is not began or began._version:
                        return type(live).__name__, name
        return None

    def end_differentiation(self) -> None:
        """Take the parameters out of automatic differentiation (and out of autocast's cache of what it has cast)."""
        for stand_in in self.parameters.values():
            stand_in.requires_grad_(False)

    def _module(self, live: nn.Module) -> nn.Module:
        if id(live) not in self._stand_ins:
            wrapped = _wrapped(live)
            if wrapped is not None:
                self._stand_ins[id(live)] = self._module(wrapped)
            else:
                self._stand_ins[id(live)] = stand_in = _hollow(live)
                self._pairs.append((live, stand_in))
                self._fill(vars(stand_in), vars(live))
                for name, value in _slots(live).items():
                    object.__setattr__(stand_in, name, self._of(value))
        return self._stand_ins[id(live)]  # type: ignore[no-any-return]

    def _fill(self, stand_ins: dict[str, Any], live: dict[str, Any]) -> None:
        """Put what stands in for each of a module's attributes; by the shortest way for most of them."""
        for name, value in live.items():
            kind = type(value)
            if kind in _PLAIN:
                stand_ins[name] = value
            elif kind in _BARE and not value and not (kind is OrderedDict and value.__dict__):
                stand_ins[name] = self._stand_ins.setdefault(id(value), kind())
            else:
                stand_ins[name] = self._of(value)

    def _of(self, value: Any) -> Any:
        """What stands in for a module's attribute, or for what it holds."""
        if type(value) in _PLAIN:
            return value
        if type(value) in _CONTAINERS:  # first, because a module holds a dozen, most of them empty
            return self._container(value)
        if type(value) is tuple and all(type(item) in _PLAIN for item in value):
            return value
        value = getattr(value, "_torchdynamo_orig_callable", value)  # what torch.compile compiled
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, Tensor):
            return self._once(value, self._tensor)
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self._of(value.__self__))
        if isinstance(value, partial):
            arguments = (self._of(item) for item in value.args)
            return partial(self._of(value.func), *arguments, **{k: self._of(v) for k, v in value.keywords.items()})
        if isinstance(value, tuple):
            items = [self._of(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, torch.Generator | random.Random) or type(value).__module__.startswith("numpy"):
            return self._once(value, self._copied)
        return value

    def _copied(self, live: Any) -> Any:
        """A copy; of a generator one that draws the same, and whose place is compared later."""
        stand_in = live.clone_state() if isinstance(live, torch.Generator) else copy.deepcopy(live)
        self._generators.append((live, stand_in))
        return stand_in

    def _once(self, live: Any, make: Any) -> Any:
        """What several modules share stays shared."""
        if id(live) not in self._stand_ins:
            self._stand_ins[id(live)] = make(live)
        return self._stand_ins[id(live)]

    def _tensor(self, live: Tensor) -> Tensor:
        if isinstance(live, nn.Parameter):
            if nn.parameter.is_lazy(live):
                raise ValueError("a parameter has no shape yet: run the model once before training.")
            values = live.detach() if self._borrow else live.detach().clone()
            stand_in = nn.Parameter(values, requires_grad=live.requires_grad)
            self.parameters[live] = stand_in
            return stand_in
        # What was computed from parameters is kept by a module to be read, not to be changed.
        return live if live.requires_grad else live.clone()

    def _container(self, live: Any) -> Any:
        if id(live) not in self._stand_ins:
            # Its own copy() is many times as fast, but leaves out attributes that an OrderedDict may have been given.
            stand_in = copy.copy(live) if getattr(live, "__dict__", None) else live.copy()
            self._stand_ins[id(live)] = stand_in
            if not live:
                return stand_in
            stand_in.clear()  # what is left of it: a default factory, a greatest length
            if isinstance(live, dict):
                stand_in.update({key: self._of(item) for key, item in live.items()})
            else:
                (stand_in.update if isinstance(live, set) else stand_in.extend)(self._of(item) for item in live)
        return self._stand_ins[id(live)]


def _place(generator: Any) -> Any:
    """Where a generator is, to be compared; `None` of what is not one."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, random.Random):
        return generator.getstate()
    bits = getattr(generator, "bit_generator", getattr(generator, "_bit_generator", None))
    return None if bits is None else repr(bits.state)


def _attributes(module: nn.Module) -> dict[str, Any]:
    slots = _slots(module)
    return vars(module) | slots if slots else vars(module)


def _slots(module: nn.Module) -> dict[str, Any]:
    """The attributes that a module's classes keep in `__slots__`, outside its `__dict__`."""
    values: dict[str, Any] = {}
    for kind in type(module).__mro__:
        declared = kind.__dict__.get("__slots__", ())
        names = (declared,) if isinstance(declared, str) else declared
        for name in names:
            # Python stores a private slot `__x` of the class `C` as `_C__x`.
            private = name.startswith("__") and not name.endswith("__")
            stored = f"_{kind.__name__.lstrip('_')}{name}" if private else name
            if stored not in ("__dict__", "__weakref__") and hasattr(module, stored):
                values[stored] = getattr(module, stored)
    return values


class _LocalBatchNorm(_BatchNorm):
    """Batch normalisation over this rank's samples: stands in for one that would wait for the other ranks."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        pass


def _wrapped(module: nn.Module) -> nn.Module | None:
    """What a wrapper wraps that only changes how the module runs."""
    if isinstance(module, DistributedDataParallel):
        return module.module  # type: ignore[no-any-return]
    compiled_from = getattr(module, "_orig_mod", None)  # asking for the class would import the compiler
    return compiled_from if isinstance(compiled_from, nn.Module) else None


def _hollow(live: nn.Module) -> nn.Module:
    """An empty object of the module's class, or an error that says why there can be none."""
    name = type(live).__name__
    if isinstance(live, torch.jit.ScriptModule):
        raise TypeError(f"a scripted module cannot be probed: pass the {live.original_name} it was scripted from.")
    if any(kind.__name__ in ("FullyShardedDataParallel", "FSDPModule") for kind in type(live).__mro__):
        raise TypeError("a model sharded over ranks cannot be probed: no rank holds all of its parameters.")
    forward = vars(live).get("forward")
    if isinstance(forward, FunctionType) and not hasattr(forward, "_torchdynamo_orig_callable"):
        cells = [cell.cell_contents for cell in forward.__closure__ or ()]
        if any(isinstance(cell, nn.Module | MethodType) for cell in cells):
            raise TypeError(f"a {name} whose forward is now a function that holds the live module cannot be probed.")
    kind = _LocalBatchNorm if isinstance(live, nn.SyncBatchNorm) else type(live)
    return object.__new__(kind)
