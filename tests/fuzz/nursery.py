"""Runs cases in processes of their own, each forked from one that has imported everything: milliseconds, not seconds.

A case that crashes, hangs or takes memory harms nobody else. What it printed, how it ended and what it left running is
its `Ending`.
"""

import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from fuzz.fault_point import FaultPoint

SECONDS = 180.0
"""A case that takes longer hangs; a slow machine with many users takes ten times as long as an idle one."""
MEMORY = 4 << 30
"""Bytes of address space that a case may take beyond what the imports took."""

_ORPHANS = 5.0  # seconds within which all processes of a command must have followed it
_PRELOADED = (
    *("steelyard.cli", "steelyard.imaging.predict", "steelyard.imaging.preprocess", "steelyard.imaging.phantom"),
    *("steelyard.imaging.train.launch", "steelyard.imaging.evaluate.evaluation"),
    *(
        "steelyard.imaging.networks.export",
        "steelyard.imaging.anatomy.ventricles",
    ),
    *("steelyard.experiments.local_executor", "steelyard.experiments.estimate", "steelyard.experiments.compared_votes"),
    *(
        "steelyard.benchmark.epoch_profile",
        "steelyard.report.html.experiment_report",
        "steelyard.report.tables.agreement",
    ),
    *("steelyard.report.html.page", "lightning.fabric", "matplotlib.pyplot", "fuzz.headers"),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One process.

    Args:
        command: Arguments of `steelyard`, or of the function.
        call: `module:function` to call with the arguments instead of the command line; it returns what JSON can hold.
        folder: The working directory.
        seconds: How long it may take.
        memory: How many bytes it may take.
        fault: Where it is to end.
        forked_workers: Whether its worker processes are forked, too; otherwise they are what a user's would be.
    """

    command: tuple[str, ...]
    folder: Path
    call: str | None = None
    seconds: float = SECONDS
    memory: int = MEMORY
    fault: FaultPoint | None = None
    forked_workers: bool = True


@dataclass(frozen=True)
class Ending:
    """How a case ended.

    Args:
        code: Its exit code; negative for a signal.
        out: What it printed.
        err: What it printed on standard error.
        hung: Whether it had to be ended.
        orphans: How many of its processes outlived it.
        peak: The most memory that it took, in bytes.
        seconds: How long it took.
        result: What the function returned.
    """

    code: int
    out: str
    err: str
    hung: bool
    orphans: int
    peak: int
    seconds: float
    result: Any = None
    command: tuple[str, ...] = field(default=(), compare=False)


class Nursery:
    """A process that forks others; use it in a `with` statement."""

    def __enter__(self) -> "Nursery":
        self._scratch = TemporaryDirectory(prefix="steelyard-nursery-")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "PYTHONPATH": _tests()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.nursery", self._scratch.name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._scratch.cleanup()

    def run(self, case: Case) -> Ending:
        """Run a case to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(case), default=os.fspath) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the nursery died; what it printed is above.")
        return Ending(**json.loads(answer), command=case.command)

    def steelyard(self, *command: str | Path, folder: Path, **options: Any) -> Ending:
        """Run a command to its end."""
        return self.run(Case(command=tuple(map(os.fspath, command)), folder=folder, **options))


def fresh(*command: str | Path, folder: Path, seconds: float = 2 * SECONDS) -> Ending:
    """Run a command as a user's shell would, imports and all."""
    start = time.monotonic()
    program = Path(sys.executable).with_name("steelyard")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    hung = False
    # Bytes throughout: a name need not be UTF-8.
    with subprocess.Popen(
        [program, *map(os.fspath, command)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            hung = True
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
    orphans = _end_orphans(process.pid)
    spent = time.monotonic() - start
    code = process.returncode
    return Ending(code, _text(out), _text(err), hung, orphans, 0, spent, command=tuple(map(os.fspath, command)))


def _text(printed: bytes) -> str:
    return printed.decode(errors="surrogateescape")


def _tests() -> str:
    return os.fspath(Path(__file__).parents[1])


def _serve(scratch: Path) -> None:
    """Fork a case for every line that comes in, and answer with its ending."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    _prepare()
    for line in sys.stdin:
        order = json.loads(line)
        if "phantom" in order["command"][:1]:
            _simulate_once()
        answers.write(json.dumps(_ending(order, scratch)) + "\n")
        answers.flush()


def _prepare() -> None:
    """Import and compute what every case would need, on one thread: threads do not survive a fork."""
    import torch

    torch.set_num_threads(1)
    for name in _PRELOADED:
        importlib.import_module(name)
    # These take seconds of every prediction, and what they make of a scan is tested elsewhere.
    importlib.import_module("steelyard.imaging.predict.pipeline").find_ventricles = lambda scan, brain: None
    importlib.import_module("steelyard.imaging.predict.cohort").draw_mosaic = lambda prediction, row: b"a picture"


@functools.cache
def _simulate_once() -> None:
    """Keep the first two heads: a case is about how they are written, and simulating one takes seconds."""
    from steelyard.imaging.phantom import dataset
    from steelyard.imaging.phantom.scanner import scanner_named

    real = dataset.simulate
    scanner = scanner_named("standard-3t")
    heads = {number: real(0, number, scanner) for number in (1, 2)}

    def simulate(seed: int, number: int, device: Any) -> Any:
        if seed == 0 and device == scanner and number in heads:
            return heads[number]
        return real(seed, number, device)

    dataset.simulate = simulate


def _ending(order: dict[str, Any], scratch: Path) -> dict[str, Any]:
    files = {name: scratch / name for name in ("out", "err", "result")}
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            code = _be_the_case(order, files)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    status, usage, hung = _wait(pid, order["seconds"])
    orphans = _end_orphans(pid)
    result = files["result"].read_text() if files["result"].exists() else "null"
    ending = Ending(
        code=os.waitstatus_to_exitcode(status),
        out=_text(files["out"].read_bytes()),
        err=_text(files["err"].read_bytes()),
        hung=hung,
        orphans=orphans,
        peak=usage.ru_maxrss * 1024,
        seconds=time.monotonic() - start,
        result=json.loads(result) if result else None,
    )
    for file in files.values():
        file.unlink(missing_ok=True)
    answer = asdict(ending)
    del answer["command"]
    return answer


def _be_the_case(order: dict[str, Any], files: dict[str, Path]) -> int:
    """Run the command in this process, which ends with it."""
    os.setsid()
    for handle, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(files[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), handle)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(order["folder"])
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + order["memory"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if order["forked_workers"]:
        _fork_workers()
    if order["fault"] is not None:
        fault = order["fault"]
        FaultPoint(**fault | {name: Path(fault[name]) for name in ("out", "counter")}).install()
    if order["call"] is None:
        from steelyard.__main__ import main

        sys.argv = ["steelyard", *order["command"]]
        return main()
    module, _, function = order["call"].partition(":")
    result = getattr(importlib.import_module(module), function)(*order["command"])
    files["result"].write_text(json.dumps(result))
    return 0


def _fork_workers() -> None:
    """Have worker processes begin where this one is, with its imports and its fault point."""
    real = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: real("fork" if method == "spawn" else method)  # type: ignore
    os.register_at_fork(after_in_child=_reset_signals)


def _reset_signals() -> None:
    """Handle signals as a process does that was not forked."""
    signal.set_wakeup_fd(-1)  # the command's own, which must not hear of signals to a worker
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _wait(pid: int, seconds: float) -> tuple[int, resource.struct_rusage, bool]:
    end = time.monotonic() + seconds
    pause = 0.001
    while time.monotonic() < end:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return status, usage, False
        time.sleep(pause)
        pause = min(0.05, 1.5 * pause)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return status, usage, True


def _end_orphans(session: int) -> int:
    """Return how many processes of a session are still there after some seconds of grace, and end them."""
    end = time.monotonic() + _ORPHANS
    while list(_members(session)) and time.monotonic() < end:
        time.sleep(0.02)
    left = list(_members(session))
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(left)


def _members(session: int) -> Iterator[int]:
    """Yield the living processes of a session."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # pid (name) state parent group session …; the name may hold anything, so it is cut off
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                yield int(folder.name)


def main(arguments: Sequence[str]) -> int:
    """Serve until nobody asks."""
    with contextlib.suppress(BrokenPipeError):  # whoever asked was killed
        _serve(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
