"""System calls of unpacking hostile layers: none modifies a file outside the output's folder."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.recipes import ALL, CLASSES
from tests.hostile.running import make_canary, state_of

# strace -y prints the path of each descriptor in <> after it
_AT = r"(?:(?P<fd>AT_FDCWD|\d+)<(?P<base>[^>]*)>, )"
_NAME = r'"(?P<name>(?:[^"\\]|\\.)*)"'
_PLACE = re.compile(_AT + r"?" + _NAME)
_OF_DESCRIPTOR = re.compile(r"\d+<(?P<base>[^>]*)>")
_CALL = re.compile(r"(?:\d+ +)?(?P<call>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
_OF_NAMES = {
    *("mkdir", "mkdirat", "symlink", "symlinkat", "link", "linkat", "rename", "renameat", "renameat2", "unlink"),
    *("unlinkat", "rmdir", "mknod", "mknodat", "chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat"),
    *("truncate", "utimensat", "utime", "utimes", "futimesat", "setxattr", "lsetxattr", "removexattr", "lremovexattr"),
    *("creat", "mount", "umount2", "chroot", "pivot_root", "swapon", "acct", "setxattrat", "removexattrat"),
}
_OF_DESCRIPTORS = {"fchmod", "fchown", "ftruncate", "fsetxattr", "fremovexattr", "fallocate", "pwrite64", "pwritev"}
_OPENING = {"open", "openat", "openat2"}
_WRITING = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_TMPFILE")
_DEVICES = ("/dev/null", "pipe:", "socket:", "anon_inode:", "/dev/urandom")
_DESCRIPTOR_PATH = re.compile(r"/proc/self/fd/(\d+)(/.*)?$")
_SHOWN_DESCRIPTOR = re.compile(r"\b(\d+)<([^>]*)>")


def mutated(line: str) -> Iterator[str]:
    """Yield the absolute paths that a trace line modifies, including failed attempts."""
    match = _CALL.match(line)
    if match is None:
        return
    call, arguments = match["call"], match["arguments"]
    if call in _OPENING and any(flag in arguments for flag in _WRITING):
        yield from _places(arguments)
    elif call in ("symlink", "symlinkat"):
        yield from _places(arguments.split('"', 2)[2])  # the target is plain text
    elif call in _OF_NAMES and "AT_EMPTY_PATH" not in arguments:
        if call == "utimensat" and ", NULL, " in arguments:
            yield _base(arguments)
        else:
            places = _places(arguments)
            yield from (
                itertools.islice(places, 1) if "xattr" in call else places
            )  # the second string is the attribute's name
    elif call in _OF_DESCRIPTORS:
        yield _base(arguments)


def _base(arguments: str) -> str:
    found = _OF_DESCRIPTOR.match(arguments)
    assert found is not None, arguments
    return found["base"]


def _places(arguments: str) -> Iterator[str]:
    found = list(_PLACE.finditer(arguments))
    assert found, arguments
    for place in found:
        name = place["name"].encode().decode("unicode_escape")
        yield os.path.normpath(os.path.join(place["base"] or "/not absolute", name))


def all_mutated(lines: list[str]) -> Iterator[str]:
    """Yield the paths that a trace modifies, with descriptor links in /proc resolved."""
    known: dict[str, str] = {}
    for line in lines:
        for place in mutated(line):
            match = _DESCRIPTOR_PATH.match(place)
            yield known[match[1]] + (match[2] or "") if match else place
        known.update(_SHOWN_DESCRIPTOR.findall(line))


def trace(folder: Path, canary: Path, recipes: list[str]) -> list[str]:
    """Unpack recipes under strace, and return the lines after their start."""
    output = folder / "trace"
    arguments: list[str | Path] = [
        sys.executable,
        "-B",
        "-m",
        "tests.hostile.batch",
        folder / "outputs",
        canary,
        *recipes,
    ]
    calls = ",".join(f"?{call}" for call in sorted(_OF_NAMES | _OF_DESCRIPTORS | _OPENING | {"lstat", "newfstatat"}))
    watched: list[str | Path] = ["strace", "-f", "-y", "-s", "65536", "-e", f"trace={calls}", "-o", output, *arguments]
    done = subprocess.run(watched, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    lines = _joined(output.read_text(errors="backslashreplace").splitlines())
    begun = next(number for number, line in enumerate(lines) if "/outputs/begin" in line)
    return lines[begun:]


def _joined(lines: list[str]) -> list[str]:
    """Return the lines with interrupted calls joined."""
    pending: dict[str, str] = {}
    found = []
    for line in lines:
        thread, _, rest = line.partition(" ")
        if rest.endswith("<unfinished ...>"):
            pending[thread] = line.removesuffix("<unfinished ...>").rstrip()
        elif resumed := re.search(r"<\.\.\. \w+ resumed>(.*)", rest):
            found.append(pending.pop(thread) + resumed[1])
        else:
            found.append(line)
    return found


@pytest.mark.root
@pytest.mark.peer("strace")
def test_no_modifying_call_leaves_the_output_directory(tmp_path: Path) -> None:
    canary = make_canary(tmp_path)
    before = state_of(canary)
    kinds = ("names-", "links-", "metadata-", "whiteouts-")
    attacks = [name for name in ALL if name.startswith(kinds) and "path-max" not in name]  # strace shows no longer ones
    lines = trace(tmp_path, canary, attacks[::2])
    places = list(all_mutated(lines))
    inside = str(tmp_path / "outputs")
    outside = {
        place
        for place in places
        if not (place == inside or place.startswith(f"{inside}/")) and not place.startswith(_DEVICES)
    }
    assert not outside
    assert len(places) > 20 * len(attacks), "the trace was understood"
    assert state_of(canary) == before


@pytest.mark.root
@pytest.mark.peer("strace")
def test_no_path_of_a_layer_is_passed_to_the_kernel_whole(tmp_path: Path) -> None:
    """Names are looked up one by one below open directories: no call that changes something walks a path itself."""
    canary = make_canary(tmp_path)
    recipes = [f"links-{one.name}" for one in CLASSES["links"] if one.name.endswith("-in-two-layers")]
    staged = str(tmp_path / "outputs/.out.fastpull-")
    for line in trace(tmp_path, canary, recipes):
        match = _CALL.match(line)
        if match is not None and match["call"] in _OF_NAMES | _OPENING and staged in match["arguments"]:
            for place in _PLACE.finditer(match["arguments"]):
                if (place["base"] or "").startswith(staged) and not match["call"].startswith("symlink"):
                    assert "/" not in place["name"], line


@pytest.mark.parametrize(
    ("line", "places"),
    [
        ('1 openat(3</a/b>, "c", O_WRONLY|O_CREAT|O_EXCL, 0600) = 4</a/b/c>', ["/a/b/c"]),
        ('1 openat(3</a/b>, "../../etc", O_RDWR) = -1 ENOENT (No such file)', ["/etc"]),
        ('1 openat(AT_FDCWD</a>, "c", O_RDONLY) = 4', []),
        ('1 symlinkat("/etc/passwd", 3</a>, "l") = 0', ["/a/l"]),
        ('1 renameat(3</a>, "x", 4</b>, "y") = 0', ["/a/x", "/b/y"]),
        ("1 fchmod(3</a/b>, 0777) = 0", ["/a/b"]),
        ('1 lsetxattr("/proc/self/fd/3/f", "user.a", "y", 1, 0) = 0', ["/proc/self/fd/3/f"]),
        ("1 utimensat(3</a/b>, NULL, [{tv_sec=0}], 0) = 0", ["/a/b"]),
        ('1 unlink("/etc/x\\n") = 0', ["/etc/x\n"]),
    ],
)
def test_trace_lines_are_parsed(line: str, places: list[str]) -> None:
    assert list(mutated(line)) == places
