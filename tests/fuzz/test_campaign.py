"""A short campaign, from another seed than the long one's; `make fuzz` runs the whole."""

import json
from collections import Counter

import pytest

from fuzz import headers, kills, library, mutations, records
from fuzz.__main__ import CASES, main, run_part
from fuzz.fault_point import FaultPoint
from fuzz.material import TRAINING, Bench, Material
from fuzz.nursery import Case, Nursery
from fuzz.odd_inputs import commands
from fuzz.records import RECORDS
from fuzz.tally import Budget, Tally, chance, faults_of
from steelyard.cli import COMMANDS

SEED = 1


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as process:
        yield process


@pytest.fixture(scope="module")
def bench(nursery, tmp_path_factory):
    root = tmp_path_factory.mktemp("material")
    scratch = tmp_path_factory.mktemp("scratch")
    return Bench(nursery=nursery, material=Material(root, nursery), scratch=scratch, budget=Budget())


def assert_nothing_found(tally):
    assert not tally.findings, "\n".join(ascii(str(finding)) for finding in tally.findings)


def test_mutated_headers_are_refused_or_read(bench):
    tally = headers.run(SEED, 45, bench)
    assert tally.counts["read by the readers"] == 45
    assert_nothing_found(tally)


@pytest.mark.parametrize("kind", dict.fromkeys(records.KINDS), ids=lambda kind: kind.__name__)
def test_bad_records_names_and_folders_are_one_line(kind, bench):
    tally = Tally(records.PART, SEED)
    numbers = [case for case in range(60) if records.kind_of(case) is kind]
    for case in numbers[:2]:
        records.run_case(tally, case, bench)
    assert_nothing_found(tally)


@pytest.mark.parametrize("name", ["preprocess", "predict", "train", "evaluate"])
def test_a_killed_command_comes_to_the_same_bytes(name, bench):
    tally = Tally(kills.PART, SEED)
    names = [victim.name for victim in kills.VICTIMS]
    kills.run_case(tally, names.index(name), bench)
    assert_nothing_found(tally)


def test_the_balancer_keeps_its_promises():
    tally = library.run(SEED, 60)
    assert tally.cases == 60
    assert_nothing_found(tally)


@pytest.mark.slow
@pytest.mark.parametrize("part", CASES)
def test_a_longer_campaign_finds_nothing(part):
    assert_nothing_found(run_part(part, seed=SEED, cases=CASES[part] // 6, minutes=None))


# The campaign itself: it must see what it looks for.


def test_cases_follow_from_the_seed_alone():
    assert headers.damaged(SEED, 7) == headers.damaged(SEED, 7) != headers.damaged(SEED, 8)
    assert chance(1, "kills", 2).random() == chance(1, "kills", 2).random() != chance(2, "kills", 2).random()


def test_every_command_is_tried(monkeypatch, tmp_path):
    monkeypatch.setattr(Material, "folder", lambda self, name: tmp_path / name)
    read = {record.words(tmp_path)[0] for record in RECORDS}
    written = {words[0] for words in commands(Material(tmp_path, None), tmp_path / "out")}
    assert read | written == set(COMMANDS)


def test_a_crash_a_hang_and_what_is_printed_are_seen(nursery, tmp_path):
    def faults(call, **options):
        ending = nursery.run(Case(command=(), call=call, folder=tmp_path, **options))
        return " ".join(faults_of(ending, tmp_path))

    assert "exit code -6" in faults("os:abort")
    assert "it hangs" in faults("signal:pause", seconds=0.3)
    assert "traceback: TypeError" in faults("os:rename")
    assert "outlive" in faults("fuzz.test_campaign:leave_an_orphan")
    assert "control characters" in faults("fuzz.test_campaign:print_escapes")
    (tmp_path / "executed").touch()
    assert "was run" in faults("os:getpid")


def leave_an_orphan():
    import os
    import time

    if os.fork() == 0:
        time.sleep(60)


def print_escapes():
    import sys

    sys.stderr.write("\x1b[31mred\n")


def test_a_fault_point_ends_a_command_where_it_says(bench, tmp_path):
    for fault, code in (("kill", -9), ("torn", -25)):
        out, counter = tmp_path / fault, tmp_path / f"changes-{fault}"
        point = FaultPoint(out=out, counter=counter, at=10, fault=fault, torn_after=7)
        command = ("train", bench.material.bids, out, *TRAINING)
        assert bench.nursery.steelyard(*command, folder=tmp_path, fault=point).code == code
        assert point.changes == 10  # the first file that is written
        counter.unlink()
    assert [path.stat().st_size for path in out.glob(".*.part")] == [7]


def test_other_bytes_missing_and_left_over_files_are_seen():
    before = {"a": b"1", "b": b"2"}
    assert list(kills.differences({"a": b"1", "b": b"2"}, before)) == []
    faults = list(kills.differences({"b": b"3", "c": b"4"}, before))
    assert faults == ["missing afterwards: a", "other bytes: b", "left over: c"]


def test_every_kind_of_damage_can_be_done(bench, tmp_path):
    content = {"config.json": b'{"a": [1, {"b": null}]}', "epochs.csv": b"a,b\n1,2\n3,4\n", "page.md": b"text\n"}
    kinds = Counter()
    for number in range(150):
        for name in content:
            (tmp_path / name).write_bytes(content[name])
            mutations.damage(chance(0, "damage", number), tmp_path / name, tmp_path)
            kinds[name] += (tmp_path / name).read_bytes() != content[name]
    assert all(number > 120 for number in kinds.values())


def test_findings_are_told_with_what_reproduces_them(monkeypatch, tmp_path, capsys):
    def run(part, *, seed, cases, minutes, case):
        tally = Tally(part, seed)
        tally.add(4, "train", ["it hangs"], "epochs.csv: NaN")
        tally.add(5, "train", [], "")
        return tally

    monkeypatch.setattr("fuzz.__main__.run_part", run)
    out = tmp_path / "counts.json"
    assert main(["--only", "records", "--seed", "3", "--out", str(out)]) == 1
    assert "records --seed 3 --case 4: it hangs" in capsys.readouterr().out
    assert json.loads(out.read_text())["parts"]["records"] == {"cases": 2, "findings": 1, "kinds": {"train": 2}}
