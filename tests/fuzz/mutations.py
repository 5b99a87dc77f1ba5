"""Damage to files: of their structure where it is known, of their bytes everywhere."""

import csv
import io
import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzz.tally import CANARY

_DEEP = 100_000  # levels of brackets

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 2.5, 1e308, -1e308, float("inf"), float("nan"), 10**30, -(2**63), 1e-320),
    *("", "x", "0", "nan", "inf", r"$\frac{$", "$x_{", "<script>alert(1)</script>", "a\nb", "\x1b[31mred", "\ud800"),
    *(
        "../../outside",
        "/etc/passwd",
        "=1+1",
        "a" * 10_000,
        "os:system",
        "monai:UNet",
        "\u202eesrever",
        "%s {0} {{7*7}}",
    ),
    *([], [1], [[]], ["a", "a"], {}, {"a": 1}, [[[[[[[[]]]]]]]], [None], [float("nan")], [-1, -1], [64, 64, 64]),
)
"""Values that no writer of ours would write there."""

ODD_CELLS = (
    *("", " ", "x", "nan", "NaN", "inf", "-inf", "1e308", "-1e308", "1e999", "1e-320", "-1", "2.5", "9" * 5000),
    *("0x10", "1_000", "١", "=1+1", '"', "a\x00b", "a\nb", "\x1b[2J", r"$\frac{$", "<b>", "a" * 200_000, ",", "\t"),
)
"""What a cell of a table may be set to."""


class Payload:
    """Something that writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def damage(draw: random.Random, path: Path, root: Path) -> str:
    """Damage a file in one of the ways that fit it, and say which.

    Args:
        draw: Settles which.
        path: The file.
        root: The folder of the case: what runs code puts a file there.
    """
    changes: dict[str, tuple[Callable[[random.Random, bytes, Path], tuple[bytes, str]], ...]] = {
        ".json": (_json, _json, _json, _json, _json_text, _text, _bytes),
        ".csv": (_table, _table, _table, _table, _text, _bytes),
        ".tsv": (_table, _table, _table, _text, _bytes),
        ".safetensors": (_tensors, _tensors, _tensor_header, _tensor_header, _pickled, _bytes),
        ".pt": (_checkpoint, _checkpoint, _checkpoint, _pickled, _bytes, _bytes),
        ".npz": (_arrays, _pickled, _bytes, _bytes),
    }
    change = draw.choice(changes.get(path.suffix, (_text, _bytes)))
    content, words = change(draw, path.read_bytes(), root)
    path.write_bytes(content)
    return f"{path.name}: {words}"


def _json(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    """Change one value, wherever it is."""
    changed, words = change_value(draw, json.loads(content))
    return json.dumps(changed).encode(), words


def change_value(draw: random.Random, tree: Any) -> tuple[Any, str]:
    """Change, remove or add a value somewhere in what JSON holds."""
    places = list(_places(tree))
    if not places:
        return draw.choice(ODD_VALUES), "another value altogether"
    holder, key = draw.choice(places)
    value = draw.choice(ODD_VALUES)
    kind = draw.choice(("set", "set", "set", "remove", "add", "wrap"))
    if kind == "remove":
        del holder[key]
        return tree, f"{key!r} removed"
    if kind == "add" and isinstance(holder, dict):
        holder[draw.choice(("surprise", "__class__", "", "Name", "a\nb"))] = value
        return tree, f"something added beside {key!r}"
    holder[key] = [holder[key]] if kind == "wrap" else value
    return tree, f"{key!r} wrapped" if kind == "wrap" else f"{key!r} = {_shown(value)}"


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every value as its holder and its key there."""
    if isinstance(tree, dict):
        keys: list[Any] = list(tree)
    elif isinstance(tree, list):
        keys = list(range(len(tree)))
    else:
        return []
    places = [(tree, key) for key in keys]
    for key in keys:
        places += _places(tree[key])
    return places


def _shown(value: Any) -> str:
    return ascii(value)[:60]


def _json_text(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    texts = {
        "deep brackets": b"[" * _DEEP,
        "deep, closed brackets": b"[" * _DEEP + b"]" * _DEEP,
        "deep objects": b'{"a":' * _DEEP,
        "null": b"null",
        "a number": b"7",
        "a huge number": b"9" * 10_000,
        "a number beyond floats": b'{"width": 1e999}',
        "a text": b'"config"',
        "a list": b"[]",
        "an empty object": b"{}",
        "NaN": b"NaN",
        "two documents": content + content,
        "a key twice": content.replace(b"{", b'{"width": -1, "width": "x", ', 1),
        "a lone surrogate": b'{"Name": "\\ud800"}',
    }
    name = draw.choice(sorted(texts))
    return texts[name], name


def _table(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    """Change a table's cells, columns or rows."""
    text = content.decode()
    tab = "\t" if "\t" in text else ","
    rows = list(csv.reader(io.StringIO(text), delimiter=tab)) or [["a"]]
    row = draw.randrange(len(rows))
    column = draw.randrange(max(1, len(rows[row])))
    kind = draw.choice(
        ("cell", "cell", "cell", "cell", "head", "row", "twice", "drop column", "more", "less", "header only")
    )
    if kind in ("cell", "head"):
        target = 0 if kind == "head" else row
        cell = draw.choice(ODD_CELLS)
        rows[target] = [cell if number == column else old for number, old in enumerate(rows[target])]
        kind = f"row {target}, column {column} = {_shown(cell)}"
    elif kind == "row":
        del rows[row]
    elif kind == "twice":
        rows.insert(row, rows[row])
    elif kind == "drop column":
        rows = [[cell for number, cell in enumerate(cells) if number != column] for cells in rows]
    elif kind == "more":
        rows[row] = rows[row] + ["1"] * 3
    elif kind == "less":
        rows[row] = rows[row][:column]
    else:
        rows = rows[:1]
    written = io.StringIO()
    csv.writer(written, delimiter=tab, lineterminator="\n").writerows(rows)
    return written.getvalue().encode(), kind


def _text(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    """Write a text in another encoding, or with what no text holds."""
    text = content.decode(errors="replace")
    texts = {
        "UTF-16": text.encode("utf-16"),
        "a byte order mark": b"\xef\xbb\xbf" + content,
        "Latin-1": content.replace(b"a", b"\xe4"),
        "NUL bytes": content.replace(b",", b"\x00,"),
        "carriage returns": content.replace(b"\n", b"\r"),
        "empty": b"",
        "white space": b" \n\t \n",
        "a quote": b'"' + content,
        "cut short": content[: draw.randrange(len(content) + 1)],
        "one long line": b"x" * 1_000_000,
    }
    name = draw.choice(sorted(texts))
    return texts[name], name


def _bytes(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    """Flip, cut, repeat or replace bytes."""
    if not content:
        return b"\x00", "a NUL byte"
    kind = draw.choice(("flip", "flip", "cut", "zeros", "random", "repeated", "inserted"))
    start = draw.randrange(len(content))
    if kind == "flip":
        for _ in range(draw.choice((1, 1, 4, 64))):
            start = draw.randrange(len(content))
            content = content[:start] + bytes([content[start] ^ 1 << draw.randrange(8)]) + content[start + 1 :]
        return content, "bits flipped"
    if kind == "cut":
        return content[:start], f"cut to {start} of {len(content)} bytes"
    if kind == "zeros":
        return content[:start] + bytes(len(content) - start), f"zeros from byte {start}"
    if kind == "random":
        return draw.randbytes(min(len(content), 5000)), "random bytes"
    if kind == "repeated":
        return content + content, "twice"
    return content[:start] + draw.randbytes(8) + content[start:], f"8 bytes inserted at {start}"


def _pickled(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    """A pickle that runs code, plain or in torch's envelope."""
    payload = Payload(root / CANARY)
    if draw.random() < 0.5:
        return pickle.dumps({"network": payload}), "a pickle that runs code"
    return _saved({"network": payload}), "torch.save of what runs code"


def _saved(state: Any) -> bytes:
    packed = io.BytesIO()
    torch.save(state, packed)
    return packed.getvalue()


def _tensors(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    """Weights of another type, shape or value."""
    from safetensors.torch import load, save

    tensors = load(content)
    name = draw.choice(sorted(tensors))
    tensor = tensors[name].to(torch.float32)
    others = {
        "8-bit floats": lambda: tensor.to(torch.float8_e4m3fn),
        "bfloat16": lambda: tensor.to(torch.bfloat16),
        "float64": lambda: tensor.to(torch.float64),
        "whole numbers": lambda: tensor.to(torch.int64),
        "booleans": lambda: tensor.to(torch.bool),
        "complex numbers": lambda: tensor.to(torch.complex64),
        "NaN": lambda: torch.full_like(tensor, float("nan")),
        "infinity": lambda: torch.full_like(tensor, float("inf")),
        "no numbers": lambda: tensor.new_zeros(0),
        "one axis": lambda: tensor.flatten(),
        "another size": lambda: tensor.new_zeros(3, 5, 7),
    }
    kind = draw.choice(sorted(others))
    scope = sorted(tensors) if draw.random() < 0.5 else [name]
    for changed in scope:
        tensor = tensors[changed].to(torch.float32)
        tensors[changed] = others[kind]().contiguous()
    return save(tensors), f"{'all' if len(scope) > 1 else name} as {kind}"


def _tensor_header(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    """Change the header of a safetensors file, or what it says of its own length."""
    (size,) = struct.unpack_from("<Q", content)
    if draw.random() < 0.3:
        wrong = draw.choice((0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1))
        return struct.pack("<Q", wrong) + content[8:], f"a header of {wrong} bytes"
    changed, words = change_value(draw, json.loads(content[8 : 8 + size]))
    header = json.dumps(changed).encode()
    return struct.pack("<Q", len(header)) + header + content[8 + size :], f"in the header, {words}"


def _checkpoint(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    """Change one value of a checkpoint, or make it another's."""
    state = torch.load(io.BytesIO(content), weights_only=True)
    places = _places(state)
    holder, key = draw.choice(places)
    others = (*ODD_VALUES, torch.zeros(0), torch.full((3,), float("nan")), torch.zeros(2, dtype=torch.bool), state)
    kind = draw.choice(("set", "set", "remove", "other"))
    if kind == "other":
        other = draw.choice((None, [], {}, 5, "text", torch.zeros(3), {"epoch": 1}))
        return _saved(other), f"the checkpoint of {_shown(other)}"
    if kind == "remove":
        del holder[key]
        return _saved(state), f"{key!r} removed"
    holder[key] = draw.choice(others[:-1])
    return _saved(state), f"{key!r} = {_shown(holder[key])}"


def _arrays(draw: random.Random, content: bytes, root: Path) -> tuple[bytes, str]:
    """Change an array of an .npz file."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = dict(file)
    name = draw.choice(sorted(arrays))
    others: dict[str, Any] = {
        "objects that run code": np.array([Payload(root / CANARY)], dtype=object),
        "NaN": np.full(arrays[name].shape, np.nan, dtype=np.float32),
        "empty": np.zeros(0),
        "texts": np.array(["a", "b"]),
        "another shape": np.zeros((2, 3)),
        "gone": None,
    }
    kind = draw.choice(sorted(others))
    arrays[name] = others[kind]
    if kind == "gone":
        del arrays[name]
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue(), f"{name} {kind}"
