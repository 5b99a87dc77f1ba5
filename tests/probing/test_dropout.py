"""Dropout switched off wherever it is called: what is left is evaluation mode, and no number is drawn."""

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from steelyard.probing.dropout import WithoutDropout


class Function(nn.Module):
    """A function of the input and of whether the module is in training mode."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, self.training)


def attention_of_positions(x, training):
    return scaled_dot_product_attention(x, x, x, None, 0.5 if training else 0.0)


def attention_by_name(x, training):
    return scaled_dot_product_attention(query=x, key=x, value=x, dropout_p=0.5 if training else 0.0)


def stochastic_depth(x, training):
    return x * x.new_empty(len(x), 1, 1).bernoulli_(0.7).div_(0.7) if training else x


def masks_by_tensor(x, training):
    return x * torch.empty_like(x).bernoulli_(torch.full_like(x, 0.7)) / 0.7 if training else x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = kind(8, 8, 2, dropout=0.5, batch_first=True)

    def forward(self, x):
        packed = nn.utils.rnn.pack_sequence([x[0], x[1, :3]])
        return torch.cat([self.layers(x)[0].flatten(), self.layers(packed)[0].data.flatten()])


MODELS = {
    "a module": lambda: nn.Dropout(0.5),
    "in place": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5, inplace=True)),
    "of channels": lambda: nn.Dropout1d(0.5),
    "alpha": lambda: nn.AlphaDropout(0.5),
    "of features, alpha": lambda: nn.FeatureAlphaDropout(0.5),
    "a function": lambda: Function(lambda x, training: dropout(x, 0.5, training)),
    "torch's function": lambda: Function(lambda x, training: torch.dropout(x, 0.5, training)),
    "a keyword": lambda: Function(lambda x, training: dropout(input=x, p=0.5, training=training)),
    "attention, by position": lambda: Function(attention_of_positions),
    "attention, by name": lambda: Function(attention_by_name),
    "a module of attention": Attention,
    "a layer of a transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "GRU": lambda: Recurrent(nn.GRU),
    "RNN": lambda: Recurrent(nn.RNN),
    "stochastic depth": lambda: Function(stochastic_depth),
    "masks by a tensor": lambda: Function(masks_by_tensor),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_without_dropout_training_mode_is_evaluation_mode(make):
    torch.manual_seed(0)
    model, x = make(), torch.randn(2, 5, 8, requires_grad=True)
    assert not torch.allclose(model(x), model(x))  # so that there is something to switch off
    state = torch.get_rng_state()
    with WithoutDropout():
        output = model(x)
        (gradient,) = torch.autograd.grad(output.sin().sum(), x)
    assert torch.equal(torch.get_rng_state(), state)
    expected = model.eval()(x)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sin().sum(), x)[0])


def test_other_numbers_are_drawn_as_always():
    torch.manual_seed(0)
    expected = torch.rand(3), torch.randn(3), torch.randperm(9)
    torch.manual_seed(0)
    with WithoutDropout():
        numbers = torch.rand(3), torch.randn(3), torch.randperm(9)
    assert all(torch.equal(*pair) for pair in zip(numbers, expected, strict=True))
