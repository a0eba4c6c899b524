from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastpull.config.cpu import available_cores
from fastpull.config.schema import COUNT, DIRECTORY, FILE, HOST, HOSTS, NAME, Setting
from fastpull.config.settings import SETTINGS, Settings, effective_settings
from fastpull.config.units import parse_age, parse_size, show_size
from fastpull.errors import InvalidSetting


def test_arguments_override_environment_and_defaults() -> None:
    environment = {"FASTPULL_WORKERS": "3", "FASTPULL_MEMORY": "300M", "XDG_CACHE_HOME": "/xdg"}
    settings = Settings.load(environment, workers=5)
    assert (settings.workers, settings.memory, settings.connections) == (5, 300 << 20, 16)
    assert settings.cache == "/xdg/fastpull"


def test_text_values_are_parsed_from_every_place() -> None:
    settings = Settings.load({"FASTPULL_SYNC": "yes"}, memory="1.5G", connections="4", insecure=None)
    assert (settings.sync, settings.memory, settings.connections, settings.insecure) == (True, 3 << 29, 4, False)


def test_default_cache_is_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_invalid_value_error_names_the_setting(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=name.lower()) as caught:
        Settings.load({f"FASTPULL_{name}": value})
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("512", 512), ("1k", 1024), ("10 MiB", 10 << 20), ("2GB", 2 << 30), ("1.5t", 3 << 39)]
)
def test_parse_size_reads_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("12h", 43200), ("30d", 2592000), ("1.5w", 907200)])
def test_parse_age_reads_units(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


def test_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="memroy"):
        Settings.load({}, memroy=3)


def test_available_cores_is_at_least_one() -> None:
    assert available_cores() >= 1


# --- configuration files


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site's configuration file."""
    path = tmp_path / "etc/fastpull/config.toml"
    path.parent.mkdir(parents=True)
    monkeypatch.setattr("fastpull.config.paths.SYSTEM_DIRECTORY", str(tmp_path / "etc"))
    return path


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """The user's configuration file, of an environment with `environment`."""
    path = tmp_path / "xdg/fastpull/config.toml"
    path.parent.mkdir(parents=True)
    return path


def environment(user: Path, **variables: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(user.parents[1]), "XDG_CACHE_HOME": "/xdg", **variables}


def origins(user: Path, variables: dict[str, str], **given: object) -> dict[str, tuple[object, str]]:
    found = effective_settings(environment(user, **variables), **given)
    return {one.setting.name: (one.value, one.origin) for one in found}


def test_later_places_override_earlier_ones(site: Path, user: Path) -> None:
    names = ["connections", "memory", "workers", "max_entries"]
    site.write_text("".join(f"{name} = {1 + number + (64 << 20)}\n" for number, name in enumerate(names)))
    user.write_text('# mine\nmemory = "300M"\nworkers = 7\nmax_entries = 8\n')
    found = origins(user, {"FASTPULL_WORKERS": "6", "FASTPULL_MAX_ENTRIES": "5"}, max_entries="4")
    assert found["connections"] == ((64 << 20) + 1, f"{site}:1")
    assert found["memory"] == (300 << 20, f"{user}:2")
    assert found["workers"] == (6, "FASTPULL_WORKERS")
    assert found["max_entries"] == (4, "argument")
    assert found["sync"] == (False, "default")
    assert found["cache"] == ("/xdg/fastpull", "default")
    settings = Settings.load(environment(user))
    assert (settings.memory, settings.limits.max_entries) == (300 << 20, 8)


WRITABLE = {
    # where the default is nothing, which could not be told from no value
    COUNT: 3,
    FILE: "/a/file",
    DIRECTORY: "/a/folder",
    HOST: "a.io",
    HOSTS: ("a.io", "b.io:5000"),
    NAME: "me",
}


@pytest.mark.parametrize(
    "setting", [one for one in SETTINGS.values() if not one.kind.is_secret], ids=lambda one: one.name
)
def test_every_setting_but_a_secret_works_in_every_place(setting: Setting, site: Path, user: Path) -> None:
    value = setting.default({"XDG_CACHE_HOME": "/xdg"})
    if value in (None, "", ()):
        value = WRITABLE[setting.kind]
    text = setting.kind.show(value)
    user.write_text(f"{setting.name} = {json.dumps(text)}\n")
    assert origins(user, {})[setting.name] == (value, f"{user}:1")
    assert origins(user, {setting.variable: text})[setting.name] == (value, setting.variable)
    assert origins(user, {}, **{setting.name: text})[setting.name] == (value, "argument")
    if setting.kind.types:
        user.write_text(f"{setting.name} = {json.dumps(value)}\n")
        assert origins(user, {})[setting.name] == (value, f"{user}:1")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("workers = 2\nmemroy = 3\n", r":2: unknown setting \(did you mean memory\?\): 'memroy'"),
        ("max-entries = 3\n", r":1: unknown setting \(did you mean max_entries\?\)"),
        ("\n\n[zzz]\nx = 1\n", r":3: unknown setting \(`fastpull config` lists all settings\): 'zzz'"),
        ("[memory]\nx = 1\n", r":1: memory: the value has the wrong type"),
        ("memory.x = 1\n", r":1: memory: the value has the wrong type"),
        ("workers = true\n", r":1: workers: the value has the wrong type: 'True'"),
        ('insecure_registries = ["a.io", 3]\n', r":1: insecure_registries: the value has the wrong type"),
        ("private_hosts = true\n", r":1: private_hosts: the value has the wrong type"),
        ("workers = 1.5\n", r":1: workers: the value has the wrong type: '1.5'"),
        ("sync = 1\n", r":1: sync: the value has the wrong type"),
        ("workers = 0\n", r":1: workers: not a whole number above zero: '0'"),
        ("workers = -3\n", r":1: workers: not a whole number above zero"),
        ('memory = "lots"\n', r":1: memory: not a size"),
        ('cache = "here"\n', r":1: cache: a path in a file must be absolute"),
        ('cache = """/a\nsync = 1\n"""\nsync = "perhaps"\n', r":4: sync: not a switch"),
        ('x = """\nworkers = 1\n"""\n"workers" = "x"\n', r":1: unknown setting"),
        ("workers = 1\nworkers = 2\n", r"not a TOML file .*line 2"),
        ("workers\n", r"not a TOML file .*line 1"),
    ],
    ids=lambda text: text.strip().replace("\n", " ")[:30],
)
def test_config_file_errors_name_the_line(content: str, complaint: str, site: Path, user: Path) -> None:
    for path in (site, user):
        path.write_text(content)
        with pytest.raises(InvalidSetting, match=complaint) as caught:
            Settings.load(environment(user))
        assert str(path) in str(caught.value)
        assert caught.value.exit_code == 3
        path.unlink()


@pytest.mark.parametrize("value", ['"hunter2"', '["hunter2"]'])
def test_password_in_a_file_is_refused_without_showing_it(site: Path, user: Path, value: str) -> None:
    user.write_text(f"\npassword = {value}")
    with pytest.raises(
        InvalidSetting, match=f"{user}:2: a configuration file must not hold a secret.*FASTPULL_PASSWORD"
    ) as caught:
        Settings.load(environment(user))
    assert "hunter2" not in str(caught.value) + repr(caught.value)


def test_unreadable_config_file_is_an_error(site: Path, user: Path) -> None:
    site.write_bytes(b"\xff")
    with pytest.raises(InvalidSetting, match="not a TOML file"):
        Settings.load(environment(user))
    site.unlink()
    site.mkdir()
    with pytest.raises(InvalidSetting, match=f"cannot read .*{site}"):
        Settings.load(environment(user))


def test_path_in_a_file_may_begin_with_tilde(site: Path, user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    site.write_text('cache = "~/images"')
    assert Settings.load(environment(user)).cache == "/home/me/images"


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1536, 192 << 20, 256 << 30, 3 << 40])
def test_shown_sizes_parse_to_the_same_value(size: int) -> None:
    assert parse_size(show_size(size)) == size
