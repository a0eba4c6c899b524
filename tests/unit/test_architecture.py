"""The rules of the architecture: rooms, imports, names and sizes of modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fastpull

ROOT = Path(fastpull.__file__).parent
ROOMS = [
    # each may import from those above it, and from itself
    "_lazy",
    "errors",
    "concurrency",
    "telemetry",
    "progress",
    "oci",
    "config",
    "layers",
    "native",
    "registry",
    "cache",
    "runtimes",
    "sources",
    "sinks",
    "cluster",
    "pipeline",
    "client",
    "importer",
    "metrics",
    "demo",
    "cli",
    "__main__",
]
LOOSE = {"__init__", "__main__", "_lazy", "_version", "client", "importer", "metrics", "progress"}
PUBLIC = {"fastpull", "fastpull.errors", "fastpull.progress", "fastpull.metrics", "fastpull.demo"}
"""What the command line imports; it reaches the faces of packages as attributes of ``fastpull``."""


def imports(path: Path) -> set[str]:
    """Return the modules of fastpull that a file imports, except for type checking."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.If)
            and "TYPE_CHECKING" in ast.unparse(node.test)
            and "or" not in ast.unparse(node.test)
        ):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fastpull":
            names = {f"fastpull.{alias.name}" for alias in node.names if alias.name in ROOMS}
            found.update(names if node.module == "fastpull" and names else {node.module})
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.split(".")[0] == "fastpull")
    return found


def modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def room_of(module: str) -> str:
    return module.removeprefix("fastpull.").split(".")[0]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_from_rooms_above_them(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    room = room_of(name)
    for imported in imports(path):
        target = imported.removeprefix("fastpull.")
        if imported in ("fastpull", "fastpull._version") or room_of(target) == room:
            continue
        assert ROOMS.index(room_of(target)) < ROOMS.index(room), f"{name} imports {target}"


def test_every_room_is_listed_and_at_most_eight_modules_are_loose() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    loose = {path.stem for path in ROOT.glob("*.py")}
    assert loose == LOOSE
    assert len(loose) <= 8
    assert packages | loose - {"__init__", "_version"} == set(ROOMS)


def test_architecture_page_lists_every_room() -> None:
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)(?:/|\.py)`", page.partition("## Rooms")[2].partition("Outside the package")[0], re.MULTILINE
    )
    assert rows == [room for room in ROOMS if room not in ("_lazy", "progress", "__main__")]


def test_modules_over_400_lines_have_a_reason_in_the_architecture_page() -> None:
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    reasons = page.partition("### Long modules")[2].partition("\n## ")[0]
    sources = [*ROOT.rglob("*.py"), *(ROOT.parent / "native").glob("*.p*")]
    long = [str(path.relative_to(ROOT.parent)) for path in sources if len(path.read_text().splitlines()) > 400]
    assert [name for name in long if f"`{name.removeprefix('fastpull/')}`" not in reasons] == []


def test_class_names_are_unique() -> None:
    found: dict[str, list[Path]] = {}
    for folder in (ROOT, ROOT.parent / "bench", ROOT.parent / "tests"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("path", sorted((ROOT / "cli").glob("*.py")), ids=lambda path: path.name)
def test_command_line_uses_public_names_only(path: Path) -> None:
    assert {name for name in imports(path) if not name.startswith("fastpull.cli")} <= PUBLIC


def test_profiles_know_neither_the_network_nor_the_cache_nor_sinks() -> None:
    for path in (ROOT / "runtimes").glob("*.py"):
        rooms = {room_of(name) for name in imports(path)}
        assert rooms <= {"_lazy", "errors", "oci", "layers", "runtimes"}, path


def test_oci_modules_do_no_io() -> None:
    for path in (ROOT / "oci").glob("*.py"):
        text = path.read_text()
        assert not any(f"import {name}\n" in text for name in ("os", "io", "asyncio", "socket", "aiohttp")), path


def test_no_module_reads_tar_with_a_library() -> None:
    for path in modules():
        names = {
            name.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            for name in node.names
        }
        assert not names & {"tarfile", "subprocess", "requests"}, path


PROGRAMS = {"registry/auth/credential_helpers.py": "*command", "sources/podman.py": "'podman'"}
"""The modules that start programs, and the program; neither an image nor a registry chooses its name.

The command of ``registry/auth/credential_helpers.py`` comes from the user's own authentication files.
"""


def test_only_listed_modules_start_programs_and_none_uses_a_shell() -> None:
    for path in modules():
        called = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {ast.unparse(call.func) for call in called}
        assert not {
            name for name in names if re.search(r"shell|os\.(system|popen|exec|spawn|posix_spawn|fork)", name)
        }, path
        for call in called:
            if "subprocess" in ast.unparse(call.func):
                assert PROGRAMS.get(str(path.relative_to(ROOT))) == ast.unparse(call.args[0]), path


def test_finish_is_an_alias_of_ensure_squashfs() -> None:
    assert fastpull.Client.finish is fastpull.Client.ensure_squashfs
