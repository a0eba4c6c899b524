"""TLS: which certificates are believed, and what is said of those that are not."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import fastpull
from fastpull.config import Settings
from fastpull.errors import TransportError
from tests.support.layers import file, publish
from tests.support.registry import FaultyRegistry
from tests.support.trees import names

pytestmark = pytest.mark.peer("openssl")


def make_certificate(folder: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem -subj /CN=test"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], cwd=folder, check=True, stderr=subprocess.DEVNULL
    )


@pytest.fixture
async def secure_registry(tmp_path: Path) -> AsyncIterator[FaultyRegistry]:
    """A registry that speaks https with a certificate that nobody else knows."""
    await asyncio.to_thread(make_certificate, tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with FaultyRegistry(tls) as running:
        yield running


@pytest.fixture
def _not_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the registry be treated as any other host."""
    monkeypatch.setattr("fastpull.client.is_loopback", lambda _: False)


@pytest.mark.usefixtures("_not_loopback")
async def test_an_unknown_certificate_is_refused_with_advice(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(secure_registry, [file("a")])
    async with fastpull.Client(settings) as client:
        with pytest.raises(TransportError, match="certificate is not trusted.*SSL_CERT_FILE.*--insecure"):
            await client.pull(reference, tmp_path / "out")
    assert secure_registry.asked == []


@pytest.mark.usefixtures("_not_loopback")
async def test_a_site_s_ca_comes_from_the_environment(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    async with fastpull.Client(settings) as client:
        await client.pull(publish(secure_registry, [file("a")]), tmp_path / "out")
    assert names(tmp_path / "out") == {"a"}


@pytest.mark.usefixtures("_not_loopback")
async def test_insecure_believes_any_certificate(
    secure_registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    async with fastpull.Client(replace(settings, insecure=True)) as client:
        await client.pull(publish(secure_registry, [file("a")]), tmp_path / "out")
    assert names(tmp_path / "out") == {"a"}


@pytest.mark.usefixtures("_not_loopback")
@pytest.mark.case("mirrors", "insecure: any certificate, for the place that says so")
@pytest.mark.parametrize("insecure", [True, False])
async def test_a_place_of_registries_conf_may_have_any_certificate(
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


@pytest.mark.usefixtures("_not_loopback")
async def test_plain_http_where_tls_was_expected_is_explained(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    async with fastpull.Client(settings) as client:
        with pytest.raises(TransportError, match="plain http, use --insecure"):
            await client.pull(publish(registry, [file("a")]), tmp_path / "out")
    assert registry.asked == []
