"""What processes do: which there are below one, what they listen on, and modules that nobody must import."""

from pathlib import Path

PROCESSES = Path("/proc")
NAMES = ("pickle", "random", "torch", "sitecustomize", "usercustomize", "multiprocessing", "json", "numpy", "steelyard")
LISTENS = "0A"
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def plant(folder, mark):
    """Put modules into a folder that take the names of others and leave a mark when they are imported.

    Beside them are settings for matplotlib that let every figure fail or start LaTeX.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('{name}\\n')\nraise SystemExit('{name}')\n")
    (folder / "matplotlibrc").write_text("text.usetex: True\n")
    return folder


def descendants(ancestor):
    """Return the processes below one."""
    children = {}
    for folder in PROCESSES.glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(folder.name))
    below = list(children.get(ancestor, ()))
    for process in below:  # the list grows while the loop goes through it
        below += children.get(process, ())
    return below


def running(process):
    try:
        return (PROCESSES / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def group(leader):
    """Return the running processes of a group or a session."""
    members = []
    for folder in PROCESSES.glob("[0-9]*"):
        try:
            state, _, pgrp, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if leader in (int(pgrp), int(session)) and state != "Z":
            members.append(int(folder.name))
    return members


def open_ports(processes):
    """Return the addresses other than loopback on which some of the processes listen, and how many they listen on."""
    sockets = set()
    for process in processes:
        try:
            sockets |= {link.readlink().name for link in (PROCESSES / str(process) / "fd").iterdir()}
        except OSError:
            continue
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in (PROCESSES / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                addresses.append(fields[1].partition(":")[0])
    return [address for address in addresses if address not in LOOPBACK], len(addresses)
