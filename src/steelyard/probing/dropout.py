"""Dropout switched off, to see whether it is the only reason why passes differ."""

from collections.abc import Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Each returns its input, with elements set to zero at random.
_DROPOUTS = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    torch.dropout,
    torch.dropout_,
    torch.feature_dropout,
    torch.feature_dropout_,
    torch.alpha_dropout,
    torch.alpha_dropout_,
    torch.feature_alpha_dropout,
    torch.feature_alpha_dropout_,
}
# Each drops elements within. The probability is the only float among the positional arguments of any of them.
_WITH_DROPOUT_INSIDE = {
    functional.scaled_dot_product_attention,
    functional.multi_head_attention_forward,
    torch.lstm,
    torch.gru,
    torch.rnn_tanh,
    torch.rnn_relu,
}


@final
class WithoutDropout(TorchFunctionMode):
    """Calls of dropout give what they give on average, wherever they are made: in modules, functions or attention.

    So do masks that are drawn by `bernoulli_`, as in stochastic depth. Other random numbers are drawn as always.

    >>> with WithoutDropout():
    ...     functional.dropout(torch.ones(3), 0.9)
    tensor([1., 1., 1.])
    """

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What torch calls in place of each of its functions."""
        keywords = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else keywords["input"]
        if func in _WITH_DROPOUT_INSIDE:
            args = tuple(0.0 if isinstance(argument, float) else argument for argument in args)
            if "dropout_p" in keywords:
                keywords["dropout_p"] = 0.0
        if func is Tensor.bernoulli_:
            return _mean_of_mask(*args, **keywords)
        return func(*args, **keywords)


def _mean_of_mask(mask: Tensor, p: float | Tensor = 0.5, *, generator: object = None) -> Tensor:  # noqa: ARG001
    """Fill a mask with the probabilities of its ones."""
    with torch.no_grad():
        return mask.copy_(p) if isinstance(p, Tensor) else mask.fill_(p)
