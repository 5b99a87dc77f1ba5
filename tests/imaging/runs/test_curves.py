"""The curves of an experiment's runs in one compressed file."""

import gzip

import pytest

from steelyard.errors import UserError
from steelyard.imaging.runs.curves import CURVES, read_curves, write_curves


def row(method, fold, epoch, **cells):
    key = {"model": "unet", "availability": "8F", "method": method, "fold": fold, "repeat": 0, "epoch": epoch}
    return key | cells


ROWS = [
    row("equal", 0, 0, weight_flair=0.5, weight_t1=0.5, validation_flair=0.25),
    row("equal", 0, 1, weight_flair=0.5, weight_t1=0.5, validation_flair=0.125),
    row("equal", 10, 0, weight_flair=0.5, weight_t1=0.5, validation_flair=0.5),
    row("t1-only", 2, 0, weight_t1=1.0, validation_flair=0.75),
]


def test_curves_are_read_as_they_were_written_in_any_order(tmp_path):
    write_curves(tmp_path, reversed(ROWS))
    read = read_curves(tmp_path)
    assert [(cells["method"], cells["fold"], cells["epoch"]) for cells in read] == [
        ("equal", "0", "0"),
        ("equal", "0", "1"),
        ("equal", "10", "0"),
        ("t1-only", "2", "0"),
    ]
    assert [float(cells["validation_flair"]) for cells in read] == [0.25, 0.125, 0.5, 0.75]
    assert read[-1]["weight_flair"] == ""
    content = (tmp_path / CURVES).read_bytes()
    assert content[4:8] == bytes(4)  # no time
    write_curves(tmp_path, ROWS)
    assert (tmp_path / CURVES).read_bytes() == content


def test_without_the_file_there_are_no_curves(tmp_path):
    assert read_curves(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"model,", "cannot be read as compressed CSV"),
        (gzip.compress(b"model,method\n")[:-9], "cannot be read as compressed CSV"),
        (gzip.compress(b"\xff\xfe"), "cannot be read as compressed CSV"),
        (gzip.compress(b"model,method\n"), "must have one column 'availability'"),
        (
            gzip.compress(b"model,availability,method,fold,repeat,epoch\nunet,8F,equal,0,0\n"),
            "line 2: must have 6 cells",
        ),
        (
            gzip.compress(b"model,availability,method,fold,repeat,epoch\nunet,8F,equal,x,0,0\n"),
            "line 2: fold must be a whole number",
        ),
    ],
)
def test_damaged_curves_are_named(tmp_path, content, fault):
    (tmp_path / CURVES).write_bytes(content)
    with pytest.raises(UserError, match=rf"curves.csv.gz.*{fault}"):
        read_curves(tmp_path)
