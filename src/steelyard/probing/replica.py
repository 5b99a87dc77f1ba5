"""Replicas: copies of live modules for hypothetical steps, and the random numbers that their passes draw."""

import copy
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_PLAIN = frozenset((bool, int, float, str, type(None)))
_CONTAINERS = frozenset((list, set, deque, dict, OrderedDict, defaultdict, Counter))
# Private names of torch, as seen in torch 2.13; tests fail where they change.
_COMPILED_FROM = "_torchdynamo_orig_callable"  # of a function that torch.compile returns: the original
_COMPILED_MODULE = "_orig_mod"  # of a module that torch.compile returns: the original


class Replica:
    """A second tree of module objects beside the live one.

    Parameters, buffers and other tensors that hold state are copies. Every attribute, container, partial function and
    bound method that leads to a live module or tensor leads to its copy instead. Running, stepping or changing the
    replica never touches the live modules. Wrappers that change how a module runs, `torch.compile` and distributed data
    parallelism, are left out: a replica runs eagerly and on its own rank. Objects of other kinds are shared.

    Args:
        live: the modules.
        borrow: share the parameters' memory instead of copying it, for a replica that is run and never stepped.

    Attributes:
        modules: the copies of the modules, in order.
        parameters: every live parameter's copy.
    """

    def __init__(self, *live: nn.Module, borrow: bool = False) -> None:
        self._copies: dict[int, Any] = {}  # by the id of the live object
        self._borrow = borrow
        self.parameters: dict[Tensor, nn.Parameter] = {}
        self._module_pairs: list[tuple[nn.Module, nn.Module]] = []
        self._generator_pairs: list[tuple[Any, Any]] = []
        self.modules = tuple(self._module(root) for root in live)
        self._first_buffers = list(self._buffers())

    def wrote_buffers(self) -> bool:
        """Whether a buffer of the replica was written to, or replaced by another."""
        buffers = list(self._buffers())
        if len(buffers) != len(self._first_buffers):
            return True
        for buffer, first in zip(buffers, self._first_buffers, strict=True):
            if buffer is not first or buffer._version:
                return True
        return False

    def drew_numbers(self) -> bool:
        """Whether a generator that a module holds is in another state than the live one."""
        return any(_generator_state(live) != _generator_state(copied) for live, copied in self._generator_pairs)

    def changed_attribute(self) -> tuple[str, str] | None:
        """The class of a module and the name of a number, text or tensor that the replica has changed; not its mode."""
        for live, copied in self._module_pairs:
            attributes = vars(copied) | _slots(copied)
            for name, value in (vars(live) | _slots(live)).items():
                if name != "training" and self._is_changed(value, attributes.get(name)):
                    return type(live).__name__, name
        return None

    def _is_changed(self, live: Any, value: Any) -> bool:
        """Whether a replica's attribute is not the live one any more; only numbers, texts and tensors are compared."""
        if type(live) in _PLAIN:
            return repr(value) != repr(live)
        if isinstance(live, Tensor) and not live.requires_grad:
            copied: Tensor = self._copies[id(live)]
            return value is not copied or copied._version > 0
        return False

    def restore_buffers(self) -> None:
        """Give the replica the live modules' buffers again."""
        with torch.no_grad():
            for live, copied in self._module_pairs:
                for name, buffer in live._buffers.items():
                    replica_buffer = copied._buffers[name]
                    if buffer is not None and replica_buffer is not None:
                        replica_buffer.copy_(buffer)

    def end_differentiation(self) -> None:
        """Take the parameters out of automatic differentiation, and out of autocast's cache of cast parameters."""
        for parameter in self.parameters.values():
            parameter.requires_grad_(False)

    def _buffers(self) -> Iterator[Tensor]:
        for module in self.modules:
            yield from module.buffers()

    def _module(self, live: nn.Module) -> nn.Module:
        if id(live) in self._copies:
            return self._copies[id(live)]  # type: ignore[no-any-return]
        wrapped = _wrapped(live)
        if wrapped is not None:
            self._copies[id(live)] = copied = self._module(wrapped)
            return copied
        _check_can_be_copied(live)
        kind = _LocalBatchNorm if isinstance(live, nn.SyncBatchNorm) else type(live)
        self._copies[id(live)] = copied = object.__new__(kind)
        self._module_pairs.append((live, copied))
        # Not by setattr, which would register modules and parameters a second time.
        attributes = vars(copied)
        for name, value in vars(live).items():
            attributes[name] = value if type(value) in _PLAIN else self._copy(value)
        for name, value in _slots(live).items():
            object.__setattr__(copied, name, self._copy(value))
        return copied

    def _copy(self, value: Any) -> Any:
        """The replica of a module's attribute, or of an item in it."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind in _CONTAINERS:  # before the others, because a module has a dozen, most of them empty
            copied = self._copies.get(id(value))
            return self._container(value) if copied is None else copied
        value = getattr(value, _COMPILED_FROM, value)
        if isinstance(value, nn.Module):
            return self._module(value)
        is_generator = isinstance(value, torch.Generator | random.Random) or kind.__module__.startswith("numpy")
        if is_generator or isinstance(value, Tensor):
            return self._leaf(value)
        return self._compound(value)

    def _compound(self, value: Any) -> Any:
        """The replica of a method, partial function or tuple; anything else is shared with the live module."""
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self._copy(value.__self__))
        if isinstance(value, partial):
            keywords = {name: self._copy(item) for name, item in value.keywords.items()}
            return partial(self._copy(value.func), *self._items(value.args), **keywords)
        if isinstance(value, tuple):
            items = self._items(value)
            if hasattr(value, "_fields"):  # a named tuple
                return type(value)(*items)
            return type(value)(items)
        return value

    def _items(self, values: Iterable[Any]) -> list[Any]:
        return [self._copy(item) for item in values]

    def _leaf(self, live: Any) -> Any:
        """Copy a tensor, a generator or an array; one that several modules share is copied once."""
        if id(live) not in self._copies:
            self._copies[id(live)] = self._tensor(live) if isinstance(live, Tensor) else self._generator(live)
        return self._copies[id(live)]

    def _generator(self, live: Any) -> Any:
        """A copy of a generator, which draws the same numbers; or of a numpy array."""
        copied = live.clone_state() if isinstance(live, torch.Generator) else copy.deepcopy(live)
        self._generator_pairs.append((live, copied))
        return copied

    def _tensor(self, live: Tensor) -> Tensor:
        if not isinstance(live, nn.Parameter):
            # A tensor that was computed from parameters is stored by a module to be read, not to be changed.
            return live if live.requires_grad else live.clone()
        if nn.parameter.is_lazy(live):
            raise ValueError("a parameter has no shape yet: run the model once before training.")
        values = live.detach()
        if not self._borrow:
            values = values.clone()
        self.parameters[live] = copied = nn.Parameter(values, requires_grad=live.requires_grad)
        return copied

    def _container(self, live: Any) -> Any:
        copied = live.copy()
        self._copies[id(live)] = copied  # before its items are copied, because it may contain itself
        if not live:
            return copied
        copied.clear()  # which leaves a default factory, or a maximum length
        if isinstance(live, dict):
            for key, item in live.items():  # not by update, which counts in a Counter
                copied[key] = self._copy(item)
        elif isinstance(live, set):
            copied.update(self._items(live))
        else:
            copied.extend(self._items(live))
        return copied


def _slots(module: nn.Module) -> dict[str, Any]:
    """The attributes that a module's classes keep in `__slots__`, outside its `__dict__`."""
    state = object.__getstate__(module)  # a pair of both where there are slots
    return state[1] if isinstance(state, tuple) else {}


def _generator_state(generator: Any) -> Any:
    """The state of a generator, to be compared; `None` for other objects, such as arrays."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, random.Random):
        return generator.getstate()
    # numpy.random.Generator and the older numpy.random.RandomState
    bits = getattr(generator, "bit_generator", getattr(generator, "_bit_generator", None))
    if bits is None:
        return None
    return repr(bits.state)


class _LocalBatchNorm(nn.BatchNorm1d):
    """Batch normalisation over this rank's samples, of any dimension: replaces one that waits for the other ranks."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        pass


def _wrapped(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper that only changes how it runs."""
    if isinstance(module, DistributedDataParallel):
        return module.module  # type: ignore[no-any-return]
    compiled_from = getattr(module, _COMPILED_MODULE, None)  # asking for the class would import the compiler
    return compiled_from if isinstance(compiled_from, nn.Module) else None


def _check_can_be_copied(live: nn.Module) -> None:
    if isinstance(live, torch.jit.ScriptModule):
        raise TypeError(f"a scripted module cannot be probed: pass the {live.original_name} it was scripted from.")
    _check_is_whole(live)
    forward = vars(live).get("forward")
    if isinstance(forward, FunctionType) and not hasattr(forward, _COMPILED_FROM):
        cells = [cell.cell_contents for cell in forward.__closure__ or ()]
        if any(isinstance(cell, nn.Module | MethodType) for cell in cells):
            raise TypeError(
                f"a {type(live).__name__} whose forward is now a function that holds the live module cannot be probed."
            )


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was applied to the model or to a part of it."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # a model is sharded only where the user has imported it
    return fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules())


def _check_is_whole(live: nn.Module) -> None:
    names = {kind.__name__ for kind in type(live).__mro__}
    if "FSDPModule" in names:
        raise TypeError('a model sharded over ranks cannot be copied: pass probe=sy.FirstOrder() or probe="auto".')
    if "FullyShardedDataParallel" in names:
        raise TypeError(
            "a model sharded by FullyShardedDataParallel cannot be probed: shard it with fully_shard (FSDP2)."
        )


@contextmanager
def preserved_random_states(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore the global generators afterwards: Python's, numpy's if loaded, torch's on CPU and the tensors' GPUs."""
    restore = saved_random_states(tensors)
    try:
        yield
    finally:
        restore()


def saved_random_states(tensors: Iterable[Tensor]) -> Callable[[], None]:
    """Return a function that gives the global generators the states that they have now."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    torch_state = torch.get_rng_state()
    gpu_states = {gpu: torch.cuda.get_rng_state(gpu) for gpu in _gpus(tensors)}

    def restore() -> None:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        for gpu, state in gpu_states.items():
            torch.cuda.set_rng_state(state, gpu)

    return restore


def random_states(tensors: Iterable[Tensor]) -> list[Any]:
    """The states of the global generators, to be compared: equal if and only if nothing was drawn in between."""
    states: list[Any] = [random.getstate()]
    states += [torch.cuda.get_rng_state(gpu).tolist() for gpu in _gpus(tensors)]
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return [*states, torch.get_rng_state().tolist()]
    for part in numpy.random.get_state():  # a name, an array and numbers
        states.append(part.tobytes() if hasattr(part, "tobytes") else part)
    return [*states, torch.get_rng_state().numpy().tobytes()]


def _gpus(tensors: Iterable[Tensor]) -> list[int]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    return sorted({tensor.device.index for tensor in tensors if tensor.device.type == "cuda"})
