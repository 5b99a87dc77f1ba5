"""The gate for JSON and CSV files: plain values, or one line that names the file."""

import json
import os

import pytest

from steelyard.errors import UserError
from steelyard.files.records import parse_json, read_json, read_loose_rows, read_object, read_rows
from steelyard.imaging.datasets.bids import GENERATOR, written_by


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"a":' * 900 + "1" + "}" * 900,
        '{"a": %s}' % ("9" * 5000),
        '{"a": 36893488147419103232}',
        '{"a": "\\ud800"}',
        '{"\\ud800": 1}',
        "\x00",
    ],
)
def test_what_is_no_plain_object_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"record\.json: (cannot be read as JSON|a JSON object is needed)\.$") as caught:
        read_json(path)
    assert "\n" not in str(caught.value)
    assert read_object(path) == {}


def test_other_encodings_folders_and_pipes_are_refused(tmp_path):
    (tmp_path / "wide.json").write_bytes('{"a": 1}'.encode("utf-16"))
    with pytest.raises(UserError, match="cannot be read as JSON"):
        read_json(tmp_path / "wide.json")
    with pytest.raises(UserError, match="is not a file"):
        read_json(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for read in (read_json, read_loose_rows):
        with pytest.raises(UserError, match="is not a file"):
            read(tmp_path / "pipe")
    with pytest.raises(UserError, match="there is no such file"):
        read_json(tmp_path / "none.json")


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "large.json").open("wb") as stream:
        stream.truncate(10**12)
    with pytest.raises(UserError, match="is larger than 64 MB"):
        read_json(tmp_path / "large.json")


def test_numbers_that_json_may_hold_are_kept():
    assert parse_json('{"best": Infinity, "a": [1, -2.5, true, null, "é"]}') == {
        "best": float("inf"),
        "a": [1, -2.5, True, None, "é"],
    }


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"a,b\n1,2\n\xff\xfe\n", "cannot be read as CSV"),
        (b"a,b\n1,\x00\n", "cannot be read as CSV"),
        (b"a,b\n1," + b"2" * 200_000 + b"\n", "cannot be read as CSV"),
        ("a,b\n1,2\n".encode("utf-16"), "cannot be read as CSV"),
        (b"", "must have one column 'a'; it has none"),
        (b"a,a,b\n1,2,3\n", "must have one column 'a'"),
        (b"a,b\n1\n", "line 2: must have 2 cells"),
        (b"a,b\n1,2,3\n", "line 2: must have 2 cells"),
    ],
)
def test_tables_that_are_damaged_are_named(tmp_path, content, fault):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"table\.csv.*{fault}") as caught:
        list(read_rows(path, ["a"]))
    assert len(str(caught.value)) < 300


def test_rows_of_unequal_length_are_filled_or_cut(tmp_path):
    (tmp_path / "table.tsv").write_text("a\tb\n1\n1\t2\t3\n")
    assert read_loose_rows(tmp_path / "table.tsv", delimiter="\t") == [{"a": "1", "b": ""}, {"a": "1", "b": "2"}]


@pytest.mark.parametrize(
    "generated_by", ["x", [1, 2], None, [[]], [{"Name": []}], {"Name": "x"}, 7, [None], [{"Name": {}}], [{"Name": [1]}]]
)
def test_whoever_a_dataset_says_wrote_it_is_no_obstacle(tmp_path, generated_by):
    path = tmp_path / "dataset_description.json"
    path.write_text(json.dumps({"GeneratedBy": generated_by}))
    assert not written_by(tmp_path, GENERATOR)
    path.write_text(json.dumps({"GeneratedBy": [3, {"Name": GENERATOR}]}))
    assert written_by(tmp_path, GENERATOR)
