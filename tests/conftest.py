"""Fixtures that all tests share, and the rule for tests that need root or other programs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from fastpull.config import paths
from fastpull.config.settings import Settings
from tests.support.images.store import bench_folder
from tests.support.layers import file, publish
from tests.support.registry import FaultyRegistry
from tests.support.tokens import FakeTokenServer, GuardedRegistry

# a busy machine is no failure
hypothesis_settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("busy")

os.environ["FASTPULL_BENCH_DIR"] = bench_folder()  # real images are shared with the benchmark
_KEPT = ("FASTPULL_BENCH_DIR", "FASTPULL_NO_EXTENSIONS", "FASTPULL_TESTS_REQUIRE_ALL")

REQUIRE_ALL = os.environ.get("FASTPULL_TESTS_REQUIRE_ALL") == "1"
"""Set by continuous integration: a test that cannot run there is a failure, not a skip."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = [tool for mark in item.iter_markers("peer") for tool in mark.args if shutil.which(tool) is None]
    if item.get_closest_marker("root") and os.geteuid() != 0:
        missing.append("root")
    if missing and REQUIRE_ALL:
        pytest.fail(f"needs {', '.join(missing)}")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes that are no text have no name: all processes that share the tests have to find the same ones."""
    return argname if isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable()) else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if REQUIRE_ALL and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("a test was skipped where all have to run", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads the user's credentials, cache, proxies, mirrors or policy."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in list(os.environ):
        ours = name.startswith(("FASTPULL_", "CONTAINERS_", "DOCKER_", "ENROOT_", "NETRC", "REGISTRY_", "XDG_"))
        if (ours or name.lower().endswith("_proxy")) and name not in _KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setattr(paths, "SYSTEM_FOLDER", str(home / "etc"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))  # /run/containers otherwise, whatever HOME is


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a cache of the test's own."""
    return Settings(cache=str(tmp_path / "cache"), workers=2)


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A directory that other users can enter."""
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        where.chmod(0o755)
        yield where


@pytest.fixture
async def registry() -> AsyncIterator[FaultyRegistry]:
    """A loopback registry that does what it is told, also wrong things."""
    async with FaultyRegistry() as running:
        yield running


@pytest.fixture
async def tokens() -> AsyncIterator[FakeTokenServer]:
    """A server that gives tokens away."""
    async with FakeTokenServer() as running:
        yield running


@pytest.fixture
async def guarded(tokens: FakeTokenServer) -> AsyncIterator[GuardedRegistry]:
    """A registry that wants those tokens, and has an image of one file."""
    async with GuardedRegistry(tokens) as running:
        publish(running, [file("a")])
        yield running
