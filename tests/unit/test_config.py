from __future__ import annotations

import pytest

from fastpull.config import Settings, available_cores, parse_age, parse_size
from fastpull.errors import InvalidSetting


def test_arguments_go_before_the_environment_and_that_before_the_defaults() -> None:
    environment = {"FASTPULL_WORKERS": "3", "FASTPULL_MEMORY": "300M", "XDG_CACHE_HOME": "/xdg"}
    settings = Settings.load(environment, workers=5)
    assert (settings.workers, settings.memory, settings.connections) == (5, 300 << 20, 16)
    assert settings.cache == "/xdg/fastpull"


def test_text_is_read_wherever_it_comes_from() -> None:
    settings = Settings.load({"FASTPULL_SYNC": "yes"}, memory="1.5G", connections="4", insecure=None)
    assert (settings.sync, settings.memory, settings.connections, settings.insecure) == (True, 3 << 29, 4, False)


def test_the_default_cache_is_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert Settings.load({}).cache == "/home/me/.cache/fastpull"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORKERS", "0"),
        ("WORKERS", "-1"),
        ("WORKERS", "two"),
        ("MEMORY", "1M"),
        ("MEMORY", "lots"),
        ("SYNC", "maybe"),
        ("CONNECTIONS", "1.5"),
    ],
)
def test_a_bad_value_is_told_with_its_name(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=name.lower()) as caught:
        Settings.load({f"FASTPULL_{name}": value})
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("512", 512), ("1k", 1024), ("10 MiB", 10 << 20), ("2GB", 2 << 30), ("1.5t", 3 << 39)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("12h", 43200), ("30d", 2592000), ("1.5w", 907200)])
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


def test_there_is_a_core() -> None:
    assert available_cores() >= 1
