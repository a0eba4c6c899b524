"""Fixtures of all tests, and the rule for tests that need root or other programs."""

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

# deadlines would fail on a busy machine
hypothesis_settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("busy")

os.environ["FASTPULL_BENCH_DIR"] = bench_folder()  # share real images with the benchmark
_KEPT = ("FASTPULL_BENCH_DIR", "FASTPULL_NO_EXTENSIONS", "FASTPULL_TESTS_REQUIRE_ALL")

REQUIRE_ALL = os.environ.get("FASTPULL_TESTS_REQUIRE_ALL") == "1"
"""Whether a skipped test is a failure, as in continuous integration."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = [tool for mark in item.iter_markers("peer") for tool in mark.args if shutil.which(tool) is None]
    if item.get_closest_marker("root") and os.geteuid() != 0:
        missing.append("root")
    if missing and REQUIRE_ALL:
        pytest.fail(f"needs {', '.join(missing)}")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name unprintable bytes by their argument, because all test processes need equal names."""
    return argname if isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable()) else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if REQUIRE_ALL and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("a test was skipped, but FASTPULL_TESTS_REQUIRE_ALL=1 requires all tests", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hide the user's credentials, cache, proxies, mirrors and policy from all tests."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in list(os.environ):
        ours = name.startswith(("FASTPULL_", "CONTAINERS_", "DOCKER_", "ENROOT_", "NETRC", "REGISTRY_", "XDG_"))
        if (ours or name.lower().endswith("_proxy")) and name not in _KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setattr(paths, "SYSTEM_DIRECTORY", str(home / "etc"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))  # /run/containers otherwise, whatever HOME is


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with a separate cache for the test."""
    return Settings(cache=str(tmp_path / "cache"), workers=2)


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """Return a directory that other users can enter."""
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        where.chmod(0o755)
        yield where


@pytest.fixture
async def registry() -> AsyncIterator[FaultyRegistry]:
    """Run a loopback registry that can inject faults."""
    async with FaultyRegistry() as running:
        yield running


@pytest.fixture
async def tokens() -> AsyncIterator[FakeTokenServer]:
    """Run a token server."""
    async with FakeTokenServer() as running:
        yield running


@pytest.fixture
async def guarded(tokens: FakeTokenServer) -> AsyncIterator[GuardedRegistry]:
    """Run a registry that requires these tokens, with an image of one file."""
    async with GuardedRegistry(tokens) as running:
        publish(running, [file("a")])
        yield running
