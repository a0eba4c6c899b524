from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from fastpull.errors import InvalidSetting, RateLimited, SizeMismatch, TransportError, UnexpectedAnswer
from fastpull.oci.digest import Digest
from fastpull.registry.auth.challenges import parse_challenges
from fastpull.registry.causes import REPEATED_SECONDS, FailureCauses
from fastpull.registry.download.throughput import LAG_SECONDS, HostThroughput, RangeThroughput
from fastpull.registry.http.addresses import AddressScope, address_scope
from fastpull.registry.http.locations import MAX_LOCATIONS, Locations
from fastpull.registry.http.proxies import Proxies
from fastpull.registry.http.rate_limit import RateLimit
from fastpull.registry.http.retry import Attempts, Backoff, contradicts_descriptor, is_transient, retry_after_seconds
from fastpull.registry.http.urls import host_of, parse_untrusted_url, redacted

# --- challenges


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('Bearer realm="https://auth/token",service="r",scope="repository:a/b:pull,push"',
         [("bearer", {"realm": "https://auth/token", "service": "r", "scope": "repository:a/b:pull,push"})]),
        ('Basic realm="site"', [("basic", {"realm": "site"})]),
        ('Negotiate, Bearer realm="a"', [("negotiate", {}), ("bearer", {"realm": "a"})]),
        ('Negotiate YII+/-~==, Bearer realm="a"', [("negotiate", {}), ("bearer", {"realm": "a"})]),
        ('Bearer realm="a",error="insufficient_scope",scope="x y"',
         [("bearer", {"realm": "a", "error": "insufficient_scope", "scope": "x y"})]),
        ("bearer REALM=https", [("bearer", {"realm": "https"})]),
        ('Basic realm="a, b", Bearer realm="c",service=d',
         [("basic", {"realm": "a, b"}), ("bearer", {"realm": "c", "service": "d"})]),
        (r'Bearer realm="with \"quotes\" and \\"', [("bearer", {"realm": 'with "quotes" and \\'})]),
        ("Negotiate", [("negotiate", {})]),
        ("", []),
        ('="x"', []),
    ],
)  # fmt: skip
def test_challenges_are_parsed(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert [(found.scheme, found.parameters) for found in parse_challenges(header)] == expected


@given(st.text(max_size=100))
def test_any_challenge_header_is_parsed_in_bounded_time(header: str) -> None:
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
def test_retry_after_accepts_seconds_and_dates(value: str, expected: float | None) -> None:
    now = datetime(2026, 10, 21, 7, 28, 0, tzinfo=UTC)
    assert retry_after_seconds({"Retry-After": value} if value else {}, now) == expected


def test_pauses_double_up_to_maximum_with_jitter() -> None:
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
def test_only_transient_errors_are_retried(error: BaseException, expected: bool) -> None:
    assert is_transient(error) is expected


# --- URLs


def test_redacted_urls_omit_secrets() -> None:
    url = URL("https://user:secret@host:8443/blob?X-Amz-Signature=abc#f")
    assert redacted(url) == "https://host:8443/blob"
    assert host_of(url) == "host:8443"
    assert host_of(URL("http://[::1]:5000/x")) == "[::1]:5000"
    assert host_of(URL("https://host/x")) == "host"


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        ("https://quay.io/v2/", {"https_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://quay.io/v2/", {"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://quay.io/v2/", {"HTTPS_PROXY": "http://other:1", "https_proxy": "http://proxy:2"}, "http://proxy:2"),
        ("https://quay.io/v2/", {"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        ("https://quay.io/v2/", {"all_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://quay.io/v2/", {"https_proxy": ""}, None),
        ("http://quay.io/v2/", {"https_proxy": "http://proxy:3128"}, None),
        ("http://quay.io/v2/", {"http_proxy": "http://user:secret@proxy:3128"}, "http://user:secret@proxy:3128"),
        ("https://localhost:5000/", {"all_proxy": "http://proxy:3128"}, None),
        ("https://127.0.0.7/", {"all_proxy": "http://proxy:3128"}, None),
        ("https://[::1]:5000/", {"all_proxy": "http://proxy:3128"}, None),
    ],
)
def test_proxies_are_read_from_environment(url: str, environment: dict[str, str], expected: str | None) -> None:
    found = Proxies.from_environment(environment).find(URL(url))
    assert (found and str(found)) == expected


@pytest.mark.case("http", "no_proxy")
@pytest.mark.parametrize(
    ("no_proxy", "host", "is_direct"),
    [
        ("internal.example,10.0.0.1", "registry.internal.example", True),
        ("internal.example", "internal.example", True),
        (".internal.example", "registry.internal.example", True),
        ("*.internal.example", "registry.internal.example", True),
        ("internal.example", "notinternal.example", False),
        ("INTERNAL.example", "registry.internal.example", True),
        ("quay.io:443", "quay.io", True),
        ("quay.io:5000", "quay.io", False),
        ("*", "quay.io", True),
        ("10.0.0.0/8", "10.200.3.4", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.0/8", "ten.example", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("fd00::/8", "[fd12::1]", True),
        ("[fd12::1]", "[fd12::1]", True),
        (" , ,", "quay.io", False),
    ],
)
def test_no_proxy_matches_hosts_domains_and_networks(no_proxy: str, host: str, is_direct: bool) -> None:
    proxies = Proxies.from_environment({"all_proxy": "http://proxy:3128", "no_proxy": no_proxy})
    assert (proxies.find(URL(f"https://{host}/v2/")) is None) is is_direct


@pytest.mark.parametrize("value", ["socks5://user:hunter2@proxy:1080", "http://", "http://u:hunter2@[x"])
def test_invalid_proxy_error_names_only_its_variable(value: str) -> None:
    with pytest.raises(InvalidSetting, match="https_proxy") as caught:
        Proxies.from_environment({"https_proxy": value})
    assert "hunter2" not in str(caught.value)


# --- addresses


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", AddressScope.PUBLIC),
        ("2606:4700::1111", AddressScope.PUBLIC),
        ("10.1.2.3", AddressScope.SITE),
        ("172.16.0.1", AddressScope.SITE),
        ("192.168.1.1", AddressScope.SITE),
        ("100.64.0.1", AddressScope.SITE),
        ("fd00:ec2::254", AddressScope.SITE),
        ("127.0.0.1", AddressScope.MACHINE),
        ("127.255.0.9", AddressScope.MACHINE),
        ("::1", AddressScope.MACHINE),
        ("0.0.0.0", AddressScope.MACHINE),
        ("::", AddressScope.MACHINE),
        ("169.254.169.254", AddressScope.LINK),
        ("fe80::1%eth0", AddressScope.LINK),
        ("224.0.0.1", AddressScope.LINK),
        ("255.255.255.255", AddressScope.LINK),
        ("::ffff:10.0.0.1", AddressScope.SITE),
        ("::ffff:169.254.169.254", AddressScope.LINK),
        ("::ffff:127.0.0.1", AddressScope.MACHINE),
        ("2002:a9fe:a9fe::1", AddressScope.LINK),
        ("64:ff9b::a9fe:a9fe", AddressScope.LINK),
        ("64:ff9b::808:808", AddressScope.PUBLIC),
    ],
)
def test_address_scope_of_literal_addresses(address: str, expected: AddressScope) -> None:
    assert address_scope(address) is expected


@pytest.mark.parametrize("text", ["localhost", "", "10.0.0", "1.2.3.4.5", "0x7f000001", "2130706433"])
def test_address_scope_rejects_names(text: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        address_scope(text)


# --- rate limits


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"RateLimit-Limit": "100;w=21600", "RateLimit-Remaining": "7;w=21600"}, "7 of 100 requests in 6 h are left"),
        ({"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "0"}, "0 of 60 requests are left"),
        ({"RateLimit-Limit": "100;w=21600", "RateLimit-Remaining": "93;w=21600"}, None),
        ({"RateLimit-Limit": "100", "RateLimit-Remaining": "many"}, None),
        ({"RateLimit-Remaining": "1"}, None),
        ({"RateLimit-Limit": "-1", "RateLimit-Remaining": "-1"}, None),
        ({"RateLimit-Limit": "3", "RateLimit-Remaining": "3"}, None),
        ({}, None),
    ],
)
def test_low_rate_limit_is_reported(headers: dict[str, str], words: str | None) -> None:
    limit = RateLimit.parse(headers)
    assert (str(limit) if limit and limit.is_low else None) == words


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "/",
            "blob",
            "ftp://host/x",
            "file:///etc/passwd",
            "http://",
            "http:///x",
            "http://h:99999/",
            "http://h:0/",
        ),
        *(
            "http://h:port/",
            "http://h:-1/",
            "http://[::1",
            "http://[zz]/",
            "http://a b/",
            "//h:99999/x",
        ),
        *("http://[]@", "http://\0/", "http://h:1:2/", "https://user:pass@:80/"),
    ],
)
def test_unusable_url_of_a_host_is_rejected(text: str) -> None:
    assert parse_untrusted_url(text) is None


@given(st.text(st.sampled_from("htps:/@[]%0919a.-?# \n\0é\\"), max_size=20))
def test_any_url_of_a_host_is_usable_or_rejected(text: str) -> None:
    for found in (
        parse_untrusted_url(f"http://{text}"),
        parse_untrusted_url(text, URL("https://registry.example/v2/")),
    ):
        if found is not None:
            assert host_of(found)
            assert redacted(found)
            assert found.origin()
            assert found.port


# --- attempts


def test_attempts_are_limited_by_number() -> None:
    attempts, error = Attempts(Backoff(attempts=3)), TransportError("h", "reset")
    for _ in range(2):
        attempts.failed(error)
    with pytest.raises(TransportError):
        attempts.failed(error)


def test_progress_resets_attempts() -> None:
    attempts, error = Attempts(Backoff(attempts=2)), TransportError("h", "reset")
    for _ in range(10):
        attempts.failed(error)
        attempts.reset()


def test_attempts_are_limited_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fastpull.registry.http.retry.time.monotonic", lambda: now)
    attempts, error = Attempts(Backoff(attempts=1000, total_seconds=300)), TransportError("h", "reset")
    now = 299.0
    attempts.failed(error)
    now = 300.0
    with pytest.raises(TransportError):
        attempts.failed(error)


@pytest.mark.parametrize("error", [SizeMismatch("s", 1, 2), UnexpectedAnswer("u", "r", 416)])
def test_contradicting_response_is_retried_twice(error: SizeMismatch | UnexpectedAnswer) -> None:
    assert contradicts_descriptor(error)
    attempts = Attempts(Backoff(attempts=100))
    attempts.failed(error)
    attempts.failed(error)
    with pytest.raises(type(error)):
        attempts.failed(error)


def test_half_of_each_pause_is_random() -> None:
    pauses = [Backoff().pause_seconds(1) for _ in range(1000)]
    assert 0.25 <= min(pauses) < 0.3
    assert 0.45 < max(pauses) <= 0.5


# --- causes


def test_cause_counts_as_repeated_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fastpull.registry.causes.time.monotonic", lambda: now)
    causes = FailureCauses()
    assert not causes.is_repeated("h", TransportError("h", "ended after 10 of 20 bytes"), 0.3)
    assert causes.is_repeated("h", TransportError("h", "ended after 11 of 30 bytes"), 0.3)
    assert not causes.is_repeated("h", TransportError("h", "reset"), 0.3)
    assert not causes.is_repeated("other", TransportError("h", "reset"), 0.3)
    now = REPEATED_SECONDS + 1
    assert not causes.is_repeated("h", TransportError("h", "reset"), 0.3)
    for number in range(3):
        error = UnexpectedAnswer(f"http://h/blobs/sha256:{number:064x}", "no explanation", 502)
        assert causes.is_repeated("h", error, 0.3) == (number > 0)
    assert not causes.is_repeated("h", TransportError("h", "reset"), 2), (
        "a long pause after short ones counts as repeated"
    )
    assert causes.is_repeated("h", TransportError("h", "reset"), 4)


# --- locations


def test_locations_are_bounded_and_keep_the_latest() -> None:
    locations, digests = Locations(), [Digest.of(bytes([n % 256, n // 256])) for n in range(2 * MAX_LOCATIONS)]
    for digest in digests:
        locations.of(digest).url = URL("http://h/")
        locations.of(digests[0])
    assert len(locations) == MAX_LOCATIONS
    assert locations.of(digests[0]).url
    assert locations.of(digests[-1]).url
    assert locations.of(digests[1]).url is None


# --- throughput


class _SimulatedRanges:
    """Ranges of given rates with a simulated clock."""

    def __init__(self, *rates: float) -> None:
        self.now, self.throughput = 0.0, HostThroughput()
        self.streams = [(RangeThroughput(0.0), rate) for rate in rates]
        self.throughput._ranges |= {flow for flow, _ in self.streams}

    def run(self, seconds: float) -> list[bool]:
        """Return which ranges lag after a time."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            for flow, rate in self.streams:
                flow.add(int(rate / 2))
                flow.sample(self.now)
        return [self.throughput.lags(flow, self.now) for flow, _ in self.streams]

    def end_one(self, rate: float) -> None:
        flow = RangeThroughput(self.now - 1)
        flow.add(int(rate))
        self.throughput.completed(flow, self.now)


def test_stalled_range_lags_behind_the_others() -> None:
    streams = _SimulatedRanges(1e6, 1e6, 0, 2e4)
    streams.end_one(1e6)
    assert streams.run(LAG_SECONDS - 1) == [False] * 4
    assert streams.run(2) == [False, False, True, True]


def test_no_range_lags_while_all_stall() -> None:
    streams = _SimulatedRanges(0, 0, 0)
    streams.end_one(1e6)
    assert streams.run(60) == [False] * 3


def test_single_range_is_compared_with_earlier_ones() -> None:
    alone = _SimulatedRanges(0)
    assert alone.run(60) == [False]
    alone.end_one(1e6)
    assert alone.run(1) == [True]


def test_range_at_half_speed_does_not_lag() -> None:
    streams = _SimulatedRanges(1e6, 5e5, 2e5)
    streams.end_one(1e6)
    assert streams.run(30) == [False] * 3


def test_requested_pause_does_not_count_as_lag() -> None:
    streams = _SimulatedRanges(1e6, 0)
    streams.end_one(1e6)
    streams.run(LAG_SECONDS + 1)
    streams.streams[1][0].restart(streams.now)
    assert streams.run(LAG_SECONDS - 1) == [False, False]
    assert streams.run(2) == [False, True]
