"""Stand-ins for live modules, to be changed at will."""

import types
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel


class Shadow:
    """A second tree of module objects beside the live one.

    Parameters of the shadow are new leaves on the live parameters' storage until `detach_parameters`, buffers are
    copies, and every attribute, list, dict and bound method that leads to a live module or tensor leads to its stand-in
    instead. Running, stepping or changing the shadow never touches the live modules. What wraps a module to change how
    it runs, `torch.compile` and distributed data parallelism, is left out: a shadow runs eagerly and on its own rank.
    """

    def __init__(self, *live: nn.Module) -> None:
        self._stand_ins: dict[int, Any] = {}
        self.parameters: dict[Tensor, nn.Parameter] = {}
        for root in live:
            for module in root.modules():
                self._add_tensors(module)
        self.modules = tuple(self._module(root) for root in live)

    def detach_parameters(self) -> None:
        """Give the shadow's parameters storage of their own and end their part in automatic differentiation."""
        for stand_in in self.parameters.values():
            stand_in.requires_grad_(False)
            stand_in.data = stand_in.data.clone()

    def _add_tensors(self, module: nn.Module) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in self._stand_ins:
                if nn.parameter.is_lazy(parameter):
                    raise ValueError(f"parameter {name!r} has no shape yet: run the model once before training.")
                stand_in = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
                self._stand_ins[id(parameter)] = self.parameters[parameter] = stand_in
        for buffer in module._buffers.values():
            if buffer is not None and id(buffer) not in self._stand_ins:
                self._stand_ins[id(buffer)] = buffer.detach().clone()

    def _module(self, live: nn.Module) -> nn.Module:
        if id(live) not in self._stand_ins:
            wrapped = _wrapped(live)
            if wrapped is not None:
                self._stand_ins[id(live)] = self._module(wrapped)
            else:
                self._stand_ins[id(live)] = stand_in = _hollow(live)
                attributes = {name: self._of(value) for name, value in vars(live).items()}
                stand_in.__dict__.update(attributes, _compiled_call_impl=None)
        return self._stand_ins[id(live)]  # type: ignore[no-any-return]

    def _of(self, value: Any) -> Any:
        """What stands in for a module's attribute."""
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, types.MethodType) and isinstance(value.__self__, nn.Module):
            return types.MethodType(value.__func__, self._module(value.__self__))
        if isinstance(value, torch.Generator):
            return value.clone_state()
        if type(value) is tuple:
            return tuple(self._of(item) for item in value)
        if type(value) in (list, set, dict, OrderedDict):
            return self._container(value)
        return self._stand_ins.get(id(value), value) if isinstance(value, Tensor) else value

    def _container(self, live: Any) -> Any:
        """A container that several modules share, or that holds itself, has one stand-in."""
        if id(live) not in self._stand_ins:
            self._stand_ins[id(live)] = stand_in = type(live)()
            if isinstance(live, dict):
                stand_in.update((key, self._of(item)) for key, item in live.items())
            else:
                (stand_in.extend if isinstance(live, list) else stand_in.update)(self._of(item) for item in live)
        return self._stand_ins[id(live)]


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
    if isinstance(live, torch.jit.ScriptModule):
        raise TypeError(f"a scripted module cannot be probed: pass the {live.original_name} it was scripted from.")
    if type(live).__name__ == "FullyShardedDataParallel":
        raise TypeError("a model sharded over ranks cannot be probed: no rank holds all of its parameters.")
    kind = _LocalBatchNorm if isinstance(live, nn.SyncBatchNorm) else type(live)
    return object.__new__(kind)
