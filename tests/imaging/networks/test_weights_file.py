"""Weights files from anybody."""

import json
import os
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

import networks_by_hand
from steelyard.errors import UserError
from steelyard.imaging.networks.build import build_network
from steelyard.imaging.predict.trained_network import load_trained_network

NAME = "encoder.0.0.weight"
COUNTER = "encoder.0.1.num_batches_tracked"


@pytest.fixture
def run(tmp_path):
    return networks_by_hand.write_run(tmp_path / "run")


def change(run, **tensors):
    path = run / "last.safetensors"
    save_file(load_file(path) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}, path)


@pytest.mark.parametrize(
    "kind", ["float8_e4m3fn", "float8_e5m2", "int32", "bool", "complex64", "uint8", "int64", "float8_e8m0fnu"]
)
def test_weights_that_are_no_usual_floats_are_refused(run, kind):
    weights = load_file(run / "last.safetensors")
    change(run, **{NAME: weights[NAME].to(getattr(torch, kind))})
    with pytest.raises(UserError, match=rf"last\.safetensors: {NAME} holds numbers of type"):
        load_trained_network(run)


def test_a_pipe_is_refused_at_once(run):
    path = run / "last.safetensors"
    path.unlink()
    os.mkfifo(path)
    handle = os.open(path, os.O_RDWR)  # otherwise opening the pipe would wait for ever
    with pytest.raises(UserError, match=r"last\.safetensors: cannot be read as safetensors \(.*Not a regular file"):
        load_trained_network(run)
    os.close(handle)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_other_usual_floats_are_taken(run, kind):
    weights = load_file(run / "last.safetensors")
    change(run, **{name: one.to(getattr(torch, kind)) for name, one in weights.items() if one.is_floating_point()})
    assert load_trained_network(run).network.output.bias.dtype == torch.float32


def test_numbers_that_become_infinite_are_refused(run):
    weights = load_file(run / "last.safetensors")
    for value in (float("nan"), 1e300):
        change(run, **{NAME: torch.full_like(weights[NAME], value, dtype=torch.float64)})
        with pytest.raises(UserError, match="holds NaN or infinite numbers"):
            load_trained_network(run)


def test_a_counter_must_be_whole(run):
    change(run, **{COUNTER: torch.tensor(0.5)})
    with pytest.raises(UserError, match="holds numbers of type F32"):
        load_trained_network(run)


def test_names_and_shapes_are_compared_before_numbers_are_read(run):
    weights = load_file(run / "last.safetensors")
    change(run, **{NAME: weights[NAME].flatten()})
    with pytest.raises(UserError, match=rf"another architecture; {NAME} is \(9,\), not \(1, 1, 3, 3\)"):
        load_trained_network(run)
    save_file({"x" if name == NAME else name: one for name, one in weights.items()}, run / "last.safetensors")
    with pytest.raises(UserError, match=f"another architecture; the file lacks '{NAME}'"):
        load_trained_network(run)


def test_a_header_that_declares_terabytes_is_refused(run):
    path = run / "last.safetensors"
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header[NAME] |= {"shape": [2**20, 2**22], "data_offsets": [0, 2**44]}
    packed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + content[8 + size :])
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        load_trained_network(run)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"channels": -1}, "channels must be a whole number within 1 to 100000; got -1"),
        ({"channels": 2.5}, "channels must be a whole number"),
        ({"channels": True}, "channels must be a whole number"),
        ({"channels": 0}, "channels must be a whole number"),
        ({"width": 3}, "width is a setting of its own"),
        ({"depth": 3}, "has no option depth"),
    ],
)
def test_options_that_no_network_takes_are_refused(options, fault):
    for model in ("unet", "lightweight"):
        with pytest.raises(UserError, match=f"model {model}: .*{fault}"):
            build_network(model, width=2, options=options)


def test_a_network_of_gigabytes_is_refused_before_it_is_built():
    with pytest.raises(UserError, match="has 36070033500019 weights with width 100000; 250000000 are the most"):
        build_network("unet", width=100_000)


def test_random_numbers_are_as_if_the_size_had_not_been_looked_at():
    torch.manual_seed(3)
    network = build_network("unet", width=2)
    torch.manual_seed(3)
    assert torch.equal(network.output.weight, type(network)(width=2).output.weight)


def test_whatever_a_constructor_of_somebody_raises_is_one_line():
    with pytest.raises(UserError, match=r"^model torch\.nn:Conv2d: .*negative dimension"):
        build_network("torch.nn:Conv2d", options={"in_channels": 1, "out_channels": -1, "kernel_size": 1})
