"""Pulls through real caches and storage services: Debian's docker-registry as a pull-through cache, and nginx."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

import fastpull
from fastpull.config.settings import Settings
from fastpull.oci.digest import Digest
from fastpull.telemetry.events import Warned
from tests.support.docker_registry import free_port, running
from tests.support.layers import file, publish, stored
from tests.support.registry import FaultyRegistry
from tests.support.services import nginx

SIZE = 30 << 20
CONTENT = os.urandom(SIZE)


@asynccontextmanager
async def pull_through_cache(folder: Path, upstream: str) -> AsyncIterator[str]:
    """Run Debian's registry as a pull-through cache of another, which it contacts at start; yield its address."""
    cache = running(str(folder), upstream=f"http://{upstream}")
    address = await asyncio.to_thread(cache.__enter__)
    try:
        yield address
    finally:
        await asyncio.to_thread(cache.__exit__, None, None, None)


def conf(path: Path, mirror: str, registry: str) -> str:
    path.write_text(
        f'[[registry]]\nprefix = "example.test"\nlocation = "{registry}"\n[[registry.mirror]]\nlocation = "{mirror}"\n'
    )
    return str(path)


async def pull(settings: Settings, out: Path) -> list[str]:
    told: list[str] = []
    async with fastpull.Client(
        settings, on_event=lambda e: told.append(e.message) if isinstance(e, Warned) else None
    ) as c:
        await c.pull("example.test/team/image:v1", out, "linux/amd64")
    assert (out / "f").read_bytes() == CONTENT
    return told


@pytest.mark.peer("docker-registry")
@pytest.mark.case("mirrors", "a pull-through cache (distribution): cold without ranges, warm with ranges")
async def test_a_pull_through_cache_is_a_mirror_like_any_other(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    """For a blob not yet cached, it responds to every range with the whole blob."""
    layer = stored([file("f", CONTENT)], bytes)
    publish(registry, layer, name="team/image")
    digest = str(Digest.of(layer.blob))
    async with pull_through_cache(tmp_path, registry.address) as cache:
        cold = replace(settings, registries_conf=conf(tmp_path / "registries.conf", cache, "127.0.0.1:9"))
        assert await pull(cold, tmp_path / "cold") == []
        whole = [one for one in registry.blob_requests() if one.path.endswith(digest) and one.method == "GET"]
        assert len(whole) <= 2, "one that is passed on, one that the cache keeps, whatever the number of connections"
        await asyncio.sleep(0.5)  # it stores the blob
        asked = len(registry.blob_requests())
        warm = replace(cold, cache=settings.cache + "-2")
        assert await pull(warm, tmp_path / "warm") == []
        assert len(registry.blob_requests()) == asked, "now the cache has it"


@pytest.mark.peer("docker-registry")
@pytest.mark.case("mirrors", "a pull-through cache without its upstream")
async def test_a_pull_through_cache_without_its_upstream_is_skipped(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    publish(registry, stored([file("f", CONTENT)], bytes), name="team/image")
    async with pull_through_cache(tmp_path, registry.address) as cache:
        changed = replace(settings, registries_conf=conf(tmp_path / "registries.conf", cache, registry.address))
        down = registry._handle
        from_cache: list[str] = []

        async def refuse(request: web.Request) -> web.StreamResponse:
            if "fastpull" in request.headers.get("User-Agent", ""):
                return await down(request)
            from_cache.append(request.path)
            return registry.refusal(503, "DOWN")

        registry._handle = refuse  # type: ignore[method-assign]
        told = await pull(changed, tmp_path / "out")
    assert any(f"mirror {cache}/team/image failed" in message for message in told)
    assert from_cache


SERVERS = """
server {{
    listen {address};
    location ~ ^/v2/.+/blobs/(?<digest>sha256:[0-9a-f]+)$ {{ return 307 http://{storage}/blobs/$digest?sig=x; }}
    location / {{ proxy_pass http://{registry}; }}
}}
server {{
    listen {storage};
    root {folder};
    location /blobs/ {{ if ($http_authorization) {{ return 400; }} }}
}}
"""


@pytest.mark.peer("nginx")
@pytest.mark.case("http", "nginx as blob store after a redirect")
async def test_blobs_are_fetched_in_ranges_from_the_target_of_a_redirect_by_nginx(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    publish(registry, stored([file("f", CONTENT)], bytes), name="team/image")
    (tmp_path / "blobs").mkdir()
    for digest, content in registry.blobs.items():
        (tmp_path / "blobs" / digest).write_bytes(content)
    address, storage = (f"127.0.0.1:{free_port()}" for _ in range(2))
    servers = SERVERS.format(folder=tmp_path, address=address, storage=storage, registry=registry.address)
    with nginx(tmp_path / "nginx", storage, servers) as requests:
        async with fastpull.Client(settings) as client:
            await client.pull(f"{address}/team/image:v1", tmp_path / "out", "linux/amd64")
    assert (tmp_path / "out/f").read_bytes() == CONTENT
    lines = requests.read_text().splitlines()
    ranges = [line for line in lines if "/blobs/" in line and line.endswith("|206")]
    redirects = [line for line in lines if line.endswith("|307")]
    assert len(ranges) > 2
    assert len(redirects) == 2, "one for the config, one for the layer: its ranges go straight to the storage"
