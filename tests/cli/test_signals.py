import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def start(tmp_path):
    """Start a command in a session of its own, as a terminal would; whatever outlives its test is killed."""
    started = []

    def begin(command):
        whole = [Path(sys.executable).with_name("steelyard"), *map(str, command)]
        settings = {"cwd": tmp_path, "env": os.environ | {"OMP_NUM_THREADS": "1"}, "start_new_session": True}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(whole, **settings, **quiet))
        return started[-1]

    yield begin
    for process in started:
        for member in {process.pid, *processes.descendants(process.pid), *processes.group(process.pid)}:
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        process.communicate()


def wait_for_workers(process, number):
    while process.poll() is None and len(processes.descendants(process.pid)) < number:
        time.sleep(0.01)


def assert_all_gone(process, *others, seconds=60.0):
    end = time.monotonic() + seconds
    while any(map(processes.running, others)) or processes.group(process.pid):
        assert time.monotonic() < end, processes.group(process.pid)
        time.sleep(0.02)


def assert_stopped(process, number):
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    *before, last = said.splitlines()
    assert last == f"steelyard: stopped by {signal.Signals(number).name}; run the same command again to finish."
    assert "Traceback" not in said
    assert not [line for line in before if "rror" in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_during_the_imports_a_command_ends_with_one_line(number, start, tmp_path):
    chance = random.Random(int(number))
    process = start(["phantom", tmp_path / "out", "--subjects", "1"])
    time.sleep(0.5 + chance.random())
    os.killpg(process.pid, number)
    assert_stopped(process, number)
    assert_all_gone(process)


@pytest.mark.parametrize("whole_group", [True, False])
def test_workers_that_are_starting_end_with_their_command(whole_group, start, tmp_path):
    number = signal.SIGINT if whole_group else signal.SIGTERM
    process = start(["phantom", tmp_path / "out", "--subjects", "4", "--workers", "2"])
    wait_for_workers(process, 3)  # two, and the tracker of their semaphores
    children = processes.descendants(process.pid)
    time.sleep(random.Random(0).random())
    (os.killpg if whole_group else os.kill)(process.pid, number)
    assert_stopped(process, number)
    assert_all_gone(process, *children)


def test_workers_do_not_outlive_a_command_that_is_killed(start, tmp_path):
    process = start(["phantom", tmp_path / "out", "--subjects", "4", "--workers", "2"])
    wait_for_workers(process, 3)
    children = processes.descendants(process.pid)
    time.sleep(0.3)
    process.kill()
    process.communicate(timeout=60)
    assert_all_gone(process, *children)


COMMANDS = {
    "benchmark": ["benchmark", "OUT.json"],
    "demo": ["demo", "OUT", "--experiment", "smoke"],
    "evaluate": ["evaluate", "RUN", "DATA"],
    "experiment": ["experiment", "smoke", "DATA", "OUT", "--workers", "2"],
    "experiment on Ray": ["experiment", "smoke", "DATA", "OUT", "--ray", "local", "--workers", "2"],
    "phantom": ["phantom", "OUT", "--workers", "2"],
    "predict": ["predict", "RUN", "DATA", "OUT", "--workers", "2"],
    "preprocess": ["preprocess", "DATA", "OUT", "--workers", "2"],
    "profile": ["profile", "DATA", "--experiment", "smoke"],
    "report": ["report", "RUN", "--data", "DATA", "--out", "OUT.html"],
    "train": ["train", "DATA", "OUT", "--experiment", "smoke", "--epochs", "200"],
    "train on two": ["train", "DATA", "OUT", "--experiment", "smoke", "--epochs", "200", "--devices", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_with_one_line_and_all_its_processes(name, number, start, cohort, run_folder, tmp_path):
    chance = random.Random(f"{name} {number}")
    run = shutil.copytree(run_folder / "equal" / "fold-0_repeat-0", tmp_path / "run")
    paths = {"RUN": run, "DATA": cohort, "OUT": tmp_path / "out"}
    paths |= {f"OUT.{kind}": tmp_path / f"out.{kind}" for kind in ("json", "html")}
    process = start([paths.get(word, word) for word in COMMANDS[name]])
    end = time.monotonic() + 1 + 14 * chance.random()
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    if process.poll() is not None:  # it was done before
        assert process.returncode == 0, process.stderr.read()
        return
    children = processes.descendants(process.pid)
    if chance.random() < 0.5:
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    assert_stopped(process, number)
    assert_all_gone(process, *children)
