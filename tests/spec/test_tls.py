"""TLS: trusted certificates and client certificates of each host, and errors of unusable ones."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import fastpull
from fastpull.config.access import Access
from fastpull.config.settings import Settings
from fastpull.errors import InvalidSetting, TransportError
from fastpull.registry import client as client_module
from fastpull.registry.http import transport as transport_module
from fastpull.registry.http.certificates import Certificates, find_certificates
from fastpull.registry.http.retry import Backoff
from fastpull.registry.http.transport import Transport
from tests.support.layers import file, publish
from tests.support.logins import Authority
from tests.support.registry import FaultyRegistry, redirect
from tests.support.trees import names

pytestmark = pytest.mark.peer("openssl")

CERTS = ".config/containers/certs.d"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("ca"))
    made.issue("server", "IP:127.0.0.1")
    made.issue("client")
    return made


@asynccontextmanager
async def serving(authority: Authority, *, asks_clients: bool = False) -> AsyncIterator[FaultyRegistry]:
    """A registry with https, which may require client certificates."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority.folder / "server.cert", authority.folder / "server.key")
    if asks_clients:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(authority.certificate)
    async with FaultyRegistry(tls) as running:
        publish(running, [file("a")])
        yield running


@pytest.fixture
async def secure_registry(authority: Authority) -> AsyncIterator[FaultyRegistry]:
    async with serving(authority) as running:
        yield running


@pytest.fixture(autouse=True)
def _not_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the loopback registry as any other host."""
    monkeypatch.setattr("fastpull.registry.pool.is_loopback", lambda _: False)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def install(folder: Path, authority: Authority, *files: str) -> Path:
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_bytes((authority.folder / name).read_bytes())
    return folder


async def pull(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    async with fastpull.Client(settings) as client:
        await client.pull(f"{registry.address}/test/image:v1", fastpull.Directory(tmp_path / "out", force=True))
    assert names(tmp_path / "out") == {"a"}


# --- trust


@pytest.mark.case("http", "an unknown certificate")
async def test_unknown_certificate_error_has_advice(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(TransportError, match=r"certificate is not trusted.*certs\.d.*--insecure") as caught:
        await pull(secure_registry, settings, tmp_path)
    assert secure_registry.address in str(caught.value)
    assert caught.value.exit_code == 10
    assert secure_registry.requests == []


@pytest.mark.case("http", "SSL_CERT_FILE")
async def test_ca_from_ssl_cert_file_is_trusted(
    secure_registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    await pull(secure_registry, settings, tmp_path)


@pytest.mark.case("http", "certs.d of containers and Docker")
@pytest.mark.parametrize("place", [CERTS, ".config/docker/certs.d"])
async def test_ca_from_certs_d_is_trusted(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path, authority: Authority, home: Path, place: str
) -> None:
    install(home / place / secure_registry.address, authority, "ca.crt")
    await pull(secure_registry, settings, tmp_path)


@pytest.mark.case("mirrors", "insecure: any certificate, for its endpoint only")
@pytest.mark.parametrize("insecure", [True, False])
async def test_insecure_endpoint_of_registries_conf_may_have_any_certificate(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path, insecure: bool
) -> None:
    reference = publish(secure_registry, [file("a")])
    (tmp_path / "registries.conf").write_text(
        f'[[registry]]\nlocation = "{secure_registry.address}"\ninsecure = {str(insecure).lower()}'
    )
    async with fastpull.Client(replace(settings, registries_conf=str(tmp_path / "registries.conf"))) as client:
        if insecure:
            await client.pull(reference, tmp_path / "out")
        else:
            with pytest.raises(TransportError, match="certificate is not trusted"):
                await client.pull(reference, tmp_path / "out")


@pytest.mark.case("http", "a CA of another host")
async def test_ca_applies_only_to_its_host(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path, authority: Authority, home: Path
) -> None:
    install(home / CERTS / "other.example", authority, "ca.crt")
    install(home / CERTS / "127.0.0.1:1", authority, "ca.crt")
    install(home / CERTS / "127.0.0.1", authority, "ca.crt")  # applies to port 443
    with pytest.raises(TransportError, match="not trusted"):
        await pull(secure_registry, settings, tmp_path)


@pytest.mark.case("http", "--cert-dir")
async def test_cert_dir_applies_to_registry_of_source(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path, authority: Authority
) -> None:
    folder = install(tmp_path / "certs", authority, "ca.crt")
    settings = replace(settings, access=Access(cert_dir=str(folder)))
    async with serving(authority) as elsewhere:
        elsewhere.blobs = secure_registry.blobs
        secure_registry.faults.append(redirect(lambda digest: f"https://{elsewhere.address}/v2/x/blobs/{digest}"))
        with pytest.raises(TransportError, match="not trusted") as caught:
            await pull(secure_registry, settings, tmp_path)
    assert caught.value.host == elsewhere.address
    secure_registry.faults.clear()
    await pull(secure_registry, settings, tmp_path)


@pytest.mark.case("mirrors", "--cert-dir does not apply to mirrors, certs.d does")
@pytest.mark.parametrize("place", ["--cert-dir", "certs.d"])
async def test_cert_dir_does_not_apply_to_mirrors(
    secure_registry: FaultyRegistry,
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    authority: Authority,
    home: Path,
    place: str,
) -> None:
    publish(registry, [file("a")])
    is_given = place == "--cert-dir"
    folder = install(tmp_path / "certs" if is_given else home / CERTS / secure_registry.address, authority, "ca.crt")
    access = Access(cert_dir=str(folder) if is_given else None)
    (tmp_path / "registries.conf").write_text(
        f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n'
        f'[[registry.mirror]]\nlocation = "{secure_registry.address}"'
    )
    changed = replace(settings, access=access, registries_conf=str(tmp_path / "registries.conf"))
    await pull(registry, changed, tmp_path)
    assert bool(secure_registry.requests) != is_given
    assert bool(registry.requests) == is_given


@pytest.mark.parametrize(
    ("allowed", "insecure", "secure"),
    [
        ("r.test", ["r.test", "r.test:5000"], ["s.r.test", "test"]),
        ("r.test:5000", ["r.test:5000"], ["r.test", "r.test:5001"]),
        ("[::1]", ["[::1]", "[::1]:5000"], ["[::2]"]),
        ("[::1]:5000", ["[::1]:5000"], ["[::1]"]),
    ],
)
def test_insecure_port_does_not_extend_to_other_ports(allowed: str, insecure: list[str], secure: list[str]) -> None:
    transport = Transport(Access(insecure_registries=(allowed,)))
    assert [transport.is_insecure(host) for host in insecure + secure] == [True] * len(insecure) + [False] * len(secure)


def test_insecure_applies_to_all_ports_and_to_existing_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    transport = Transport()
    before = transport._context("r.test:5000")
    transport.add_source_host("r.test:5000", is_insecure=True)
    assert transport.is_insecure("r.test")
    assert transport.is_insecure("r.test:5001")
    after = transport._context("r.test:5000")
    assert before is True, "not aiohttp's default context"
    assert isinstance(after, ssl.SSLContext)
    assert after.verify_mode == ssl.CERT_NONE


@pytest.mark.case("http", "--insecure, --insecure-registry")
@pytest.mark.parametrize("how", ["insecure", "host", "host and port"])
async def test_insecure_accepts_any_certificate_of_registry(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path, how: str
) -> None:
    host = secure_registry.address if "port" in how else "127.0.0.1"
    access = Access() if how == "insecure" else Access(insecure_registries=("other.example", host))
    await pull(secure_registry, replace(settings, insecure=how == "insecure", access=access), tmp_path)


@pytest.mark.case("http", "--insecure does not extend to other hosts")
async def test_insecure_does_not_extend_to_other_hosts(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path, authority: Authority
) -> None:
    """It extends neither to hosts that a registry redirects to nor to unnamed ones."""
    with pytest.raises(TransportError, match="not trusted"):
        await pull(secure_registry, replace(settings, access=Access(insecure_registries=("other.example",))), tmp_path)
    async with serving(authority) as elsewhere:
        elsewhere.blobs = secure_registry.blobs
        port = elsewhere.address.rpartition(":")[2]
        secure_registry.faults.append(redirect(lambda digest: f"https://localhost:{port}/v2/x/blobs/{digest}"))
        with pytest.raises(TransportError, match="not trusted") as caught:
            await pull(secure_registry, replace(settings, insecure=True), tmp_path)
    assert caught.value.host == f"localhost:{port}"


@pytest.mark.case("http", "an insecure registry redirects to http")
async def test_only_insecure_registry_may_redirect_to_plain_http(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path, authority: Authority, home: Path
) -> None:
    async with FaultyRegistry() as plain:
        plain.blobs = secure_registry.blobs
        secure_registry.faults.append(redirect(lambda digest: f"http://{plain.address}/v2/x/blobs/{digest}"))
        install(home / CERTS / secure_registry.address, authority, "ca.crt")
        with pytest.raises(fastpull.errors.UnexpectedAnswer, match="plain http.*--insecure-registry 127.0.0.1"):
            await pull(secure_registry, settings, tmp_path)
        assert plain.requests == []
        access = Access(insecure_registries=(secure_registry.address,))
        await pull(secure_registry, replace(settings, access=access), tmp_path)


@pytest.mark.case("http", "http where TLS is expected")
async def test_plain_http_in_place_of_tls_error_has_advice(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    publish(registry, [file("a")])
    with pytest.raises(TransportError, match="plain http, use --insecure"):
        await pull(registry, settings, tmp_path)
    assert registry.requests == []


@pytest.mark.case("http", "an unfinished TLS handshake")
async def test_unfinished_handshake_times_out(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(client_module.RegistryClient, "backoff", Backoff(2, 0.01, 0.01))

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with fastpull.Client(settings) as client:
            with pytest.raises(TransportError) as caught:
                await client.pull(f"{address}/a/b:v1", tmp_path / "out")
    assert address in str(caught.value)


# --- client certificates


@pytest.mark.case("http", "client certificates")
async def test_client_certificate_is_sent_to_its_registry(
    authority: Authority, settings: Settings, tmp_path: Path, home: Path
) -> None:
    async with serving(authority, asks_clients=True) as registry:
        folder = install(home / CERTS / registry.address, authority, "ca.crt")
        with pytest.raises(TransportError) as caught:
            await pull(registry, settings, tmp_path)
        assert registry.address in str(caught.value)
        for name in ("client.cert", "client.key"):
            (folder / name).write_bytes((authority.folder / name).read_bytes())
        await pull(registry, settings, tmp_path)


def test_first_certificate_directory_applies(home: Path) -> None:
    assert find_certificates("registry.example") is None
    for place in ("docker/certs.d/registry.example", "containers/certs.d/registry.example"):
        folder = home / ".config" / place
        folder.mkdir(parents=True)
        (folder / "a.crt").touch()
        (folder / "readme.txt").touch()
        found = find_certificates("registry.example")
        assert found is not None
        assert found.authorities == (str(folder / "a.crt"),)
    (home / CERTS / "registry.example:443").mkdir()
    (home / CERTS / "docker.io").mkdir()
    assert find_certificates("registry-1.docker.io") == Certificates()
    assert find_certificates("registry.example:5000") is None


# --- unusable certificates


def certificates(folder: Path) -> None:
    found = Certificates.in_directory(str(folder))
    assert found is not None
    found.context(verify=True)


@pytest.mark.parametrize("name", ["client.cert", "client.key"])
def test_client_certificate_requires_its_key(authority: Authority, tmp_path: Path, name: str) -> None:
    folder = install(tmp_path / "certs", authority, name)
    with pytest.raises(InvalidSetting, match=rf"{name}") as caught:
        certificates(folder)
    assert caught.value.exit_code == 3


@pytest.mark.case("http", "mismatched certificates and keys")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ca.crt", b""),
        ("ca.crt", b"no certificate"),
        ("ca.crt", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ("client.cert", b"no certificate"),
        ("client.key", b"no key"),
        ("client.key", None),
    ],
    ids=["empty", "text", "broken", "text for a certificate", "text for a key", "another's key"],
)
def test_unusable_certificate_error_names_file(
    authority: Authority, tmp_path: Path, name: str, content: bytes | None
) -> None:
    folder = install(tmp_path / "certs", authority, "ca.crt", "client.cert", "client.key")
    (folder / name).write_bytes((authority.folder / "server.key").read_bytes() if content is None else content)
    with pytest.raises(InvalidSetting, match=str(folder / name).replace(".", r"\.")):
        certificates(folder)


def test_encrypted_key_is_an_error(authority: Authority, tmp_path: Path) -> None:
    folder = install(tmp_path / "certs", authority, "client.cert")
    command = "openssl rsa -aes256 -passout pass:hunter2 -in client.key -out"
    subprocess.run([*command.split(), folder / "client.key"], cwd=authority.folder, check=True, capture_output=True)
    with pytest.raises(InvalidSetting, match="is encrypted"):
        certificates(folder)


async def test_cert_dir_must_exist(secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="no such directory of certificates"):
        await pull(secure_registry, replace(settings, access=Access(cert_dir=str(tmp_path / "none"))), tmp_path)


def test_file_is_not_a_certificate_directory(home: Path) -> None:
    (home / CERTS).mkdir(parents=True)
    (home / CERTS / "registry.example").write_text("x")
    assert find_certificates("registry.example") is None
