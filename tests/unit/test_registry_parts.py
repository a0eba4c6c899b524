from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from fastpull.errors import InvalidSetting, RateLimited, TransportError, UnexpectedAnswer
from fastpull.registry.auth import parse_challenges
from fastpull.registry.credentials import Credentials, find_credentials
from fastpull.registry.retry import Backoff, is_transient, retry_after_seconds
from fastpull.registry.transport import host_of, proxy_of, shown

# --- challenges


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('Bearer realm="https://auth/token",service="r",scope="repository:a/b:pull,push"',
         [("bearer", {"realm": "https://auth/token", "service": "r", "scope": "repository:a/b:pull,push"})]),
        ('Basic realm="site"', [("basic", {"realm": "site"})]),
        ("bearer REALM=https", [("bearer", {"realm": "https"})]),
        ('Basic realm="a, b", Bearer realm="c",service=d',
         [("basic", {"realm": "a, b"}), ("bearer", {"realm": "c", "service": "d"})]),
        (r'Bearer realm="with \"quotes\" and \\"', [("bearer", {"realm": 'with "quotes" and \\'})]),
        ("Negotiate", [("negotiate", {})]),
        ("", []),
        ('="x"', []),
    ],
)  # fmt: skip
def test_challenges_are_read(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert [(found.scheme, found.parameters) for found in parse_challenges(header)] == expected


@given(st.text(max_size=100))
def test_any_challenge_header_is_read_in_bounded_time(header: str) -> None:
    parse_challenges(header)


# --- retries


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, expected: float | None) -> None:
    now = datetime(2026, 10, 21, 7, 28, 0, tzinfo=UTC)
    assert retry_after_seconds({"Retry-After": value} if value else {}, now) == expected


def test_pauses_double_up_to_a_bound_with_jitter() -> None:
    backoff = Backoff(first_seconds=1, max_seconds=5)
    for attempt, ceiling in ((1, 1), (2, 2), (3, 4), (4, 5), (9, 5)):
        assert all(ceiling / 2 <= backoff.pause_seconds(attempt) <= ceiling for _ in range(50))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TransportError("h", "reset"), True),
        (TransportError("h", "certificate", is_transient=False), False),
        (UnexpectedAnswer("u", "r", 503), True),
        (UnexpectedAnswer("u", "r", 206), True),
        (UnexpectedAnswer("u", "r", 416), False),
        (UnexpectedAnswer("u", "r"), False),
        (RateLimited("h", 5), True),
        (RateLimited("h", None), True),
        (RateLimited("h", 10_000), False),
        (ValueError(), False),
    ],
)
def test_only_what_may_pass_is_repeated(error: BaseException, expected: bool) -> None:
    assert is_transient(error) is expected


# --- credentials


def config(home: Path, content: object) -> None:
    (home / ".docker").mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (home / ".docker/config.json").write_text(text)


def encoded(pair: str) -> str:
    return base64.b64encode(pair.encode()).decode()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_without_a_config_there_are_no_credentials(home: Path) -> None:
    assert find_credentials("quay.io") is None


@pytest.mark.parametrize(
    ("key", "registry"),
    [
        ("quay.io", "quay.io"),
        ("https://quay.io", "quay.io"),
        ("https://quay.io/v2/", "quay.io"),
        ("https://index.docker.io/v1/", "docker.io"),
        ("docker.io", "docker.io"),
        ("localhost:5000", "localhost:5000"),
    ],
)
def test_auths_are_found_by_registry(home: Path, key: str, registry: str) -> None:
    config(home, {"auths": {key: {"auth": encoded("user:pass:word")}, "other.io": {"auth": encoded("a:b")}}})
    found = find_credentials(registry)
    assert found is not None
    assert (found.username, found.password) == ("user", "pass:word")
    assert found.basic == "Basic " + encoded("user:pass:word")
    assert key in found.origin


def test_credentials_are_for_their_registry_only(home: Path) -> None:
    config(home, {"auths": {"quay.io": {"auth": encoded("a:b")}}})
    for registry in ("quay.io.evil.org", "uay.io", "quay.io:443", "docker.io"):
        assert find_credentials(registry) is None


def test_docker_config_names_the_directory(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps({"auths": {"q.io": {"username": "u", "password": "p"}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "other"))
    found = find_credentials("q.io")
    assert found is not None
    assert found.username == "u"


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        {"auths": []},
        {"auths": {"q.io": []}},
        {"auths": {"q.io": {"auth": "%%%"}}},
        {"auths": {"q.io": {"auth": encoded("nocolon")}}},
    ],
)
def test_a_malformed_config_is_told_with_its_path(home: Path, content: object) -> None:
    config(home, content)
    with pytest.raises(InvalidSetting, match=r"\.docker/config\.json"):
        find_credentials("q.io")


def test_an_entry_without_a_secret_is_none(home: Path) -> None:
    config(home, {"auths": {"q.io": {}}, "credsStore": "desktop"})
    assert find_credentials("q.io") is None


def test_the_secret_is_not_shown() -> None:
    assert "hunter2" not in repr(Credentials("user", "hunter2", "file"))


# --- URLs


def test_urls_are_shown_without_their_secrets() -> None:
    url = URL("https://user:secret@host:8443/blob?X-Amz-Signature=abc#f")
    assert shown(url) == "https://host:8443/blob"
    assert host_of(url) == "host:8443"
    assert host_of(URL("http://[::1]:5000/x")) == "[::1]:5000"
    assert host_of(URL("https://host/x")) == "host"


def test_proxies_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "internal.example,10.0.0.1")
    assert str(proxy_of(URL("https://quay.io/v2/"))) == "http://proxy:3128"
    assert proxy_of(URL("http://quay.io/v2/")) is None
    assert proxy_of(URL("https://registry.internal.example/")) is None
    assert proxy_of(URL("https://10.0.0.1:5000/")) is None
