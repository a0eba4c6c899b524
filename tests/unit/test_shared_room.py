"""Import rules between the tests, the benchmark and the support modules that both use."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = {
    "tests.support.docker_registry",
    "tests.support.folders",
    "tests.support.images",
    "tests.support.programs",
    "tests.support.setup_errors",
    "tests.support.slow_link",
}
"""The modules of `tests.support` that the benchmark may import, with all below them."""


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, at any level and for type checking."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_shared(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in SHARED)


def files_of(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", ["tests", "fastpull", "examples"])
def test_bench_is_imported_by_bench_alone(folder: str) -> None:
    found = {
        module_of(path): name for path in files_of(folder) for name in imports(path) if name.split(".")[0] == "bench"
    }
    assert found == {}


def test_bench_imports_only_shared_test_modules() -> None:
    wanted = {name for path in files_of("bench") for name in imports(path) if name.startswith("tests.")}
    assert {name for name in wanted if not is_shared(name)} - {"tests.support"} == set()


def test_shared_modules_import_only_shared_test_modules() -> None:
    shared = [path for path in files_of("tests/support") if is_shared(module_of(path))]
    assert len(shared) > len(SHARED)
    wanted = {name for path in shared for name in imports(path)}
    assert not {name for name in wanted if name.split(".")[0] in ("tests", "pytest") and not is_shared(name)}
