"""Logins of the real programs with the real registry, over TLS."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

import fastpull
from fastpull.config.access import Access
from fastpull.config.settings import Settings
from fastpull.demo import check_tree, make_image
from fastpull.errors import AccessDenied
from tests.support.docker_registry import free_port
from tests.support.layers import file, publish, stored
from tests.support.logins import Authority, encoded, helper
from tests.support.registry import Account, FaultyRegistry
from tests.support.services import docker_registry, nginx

pytestmark = pytest.mark.peer("docker-registry", "htpasswd", "skopeo", "podman", "openssl", "nginx")

IS_ROOT = os.geteuid() == 0
USER, PASSWORD = "user", "hunter2: a b$c"
IMAGE = make_image(4)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("ca"))
    made.issue("server", "IP:127.0.0.1")
    return made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[str]:
    """Debian's registry with one image and one user, over TLS with the CA of the test."""
    folder = tmp_path_factory.mktemp("guarded")
    with docker_registry(folder / "registry", authority, USER, PASSWORD) as address:
        asyncio.run(push(address, folder))
        yield address


async def push(address: str, folder: Path) -> None:
    async with FaultyRegistry() as source:
        source.add_image("demo", "v1", IMAGE.layers, IMAGE.diff_ids)
        command = ["skopeo", "--insecure-policy", "copy", "--src-tls-verify=false", "--dest-tls-verify=false"]
        command += [f"--dest-creds={USER}:{PASSWORD}", f"docker://{source.address}/demo:v1"]
        process = await asyncio.create_subprocess_exec(*command, f"docker://{address}/demo:v1", stdout=-3)
        assert await process.wait() == 0


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, guarded: str, authority: Authority) -> Path:
    """Return the home of a user with the site's CA in podman's directory."""
    home = tmp_path / "home"
    certificates = home / ".config/containers/certs.d" / guarded
    certificates.mkdir(parents=True)
    (certificates / "ca.crt").write_bytes(authority.certificate.read_bytes())
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    (home / "run").mkdir(mode=0o700)
    monkeypatch.setattr("fastpull.registry.pool.is_loopback", lambda _: False)
    return home


def log_in(program: str, address: str, *options: str, password: str = PASSWORD) -> None:
    subprocess.run(
        [program, "login", f"--username={USER}", "--password-stdin", "--tls-verify=false", *options, address],
        input=password.encode(),
        check=True,
        capture_output=True,
    )


async def pull(address: str, settings: Settings, tmp_path: Path) -> None:
    async with fastpull.Client(settings) as client:
        await client.pull(f"{address}/demo:v1", fastpull.Directory(tmp_path / "out", force=True))
    assert check_tree(str(tmp_path / "out"), IMAGE, owners_kept=IS_ROOT) == []


FILES = {
    "podman's own place": ("podman", []),
    "skopeo's own place": ("skopeo", []),
    "podman, in a file": ("podman", ["--authfile={home}/auth.json"]),
    "skopeo, in a file": ("skopeo", ["--authfile={home}/auth.json"]),
    "skopeo, in Docker's file": ("skopeo", ["--authfile={home}/.docker/config.json"]),
}


@pytest.mark.case("credentials", "files written by podman login and skopeo login")
@pytest.mark.parametrize("case", FILES)
async def test_login_of_real_program_is_used(
    guarded: str, home: Path, settings: Settings, tmp_path: Path, case: str
) -> None:
    with pytest.raises(AccessDenied, match="without credentials"):
        await pull(guarded, settings, tmp_path)
    program, options = FILES[case]
    (home / ".docker").mkdir()
    await asyncio.to_thread(log_in, program, guarded, *(option.format(home=home) for option in options))
    named = str(home / "auth.json") if "auth.json" in str(options) else ""
    await pull(guarded, replace(settings, access=Access(authfile=named)), tmp_path)


@pytest.mark.case("credentials", "podman login HOST/NAMESPACE")
async def test_namespace_login_applies_only_to_namespace(
    guarded: str, home: Path, settings: Settings, tmp_path: Path
) -> None:
    """The entry is in podman's format."""
    await asyncio.to_thread(log_in, "podman", f"{guarded}/demo")
    await pull(guarded, settings, tmp_path)
    async with fastpull.Client(settings) as client:
        with pytest.raises(AccessDenied, match="without credentials"):
            await client.resolve(f"{guarded}/other:v1")


@pytest.mark.case("credentials", "podman logout")
async def test_pull_after_logout_is_anonymous(guarded: str, home: Path, settings: Settings, tmp_path: Path) -> None:
    for verb in ("login", "logout"):
        if verb == "login":
            await asyncio.to_thread(log_in, "podman", guarded)
        else:
            await asyncio.to_thread(subprocess.run, ["podman", verb, guarded], check=True, capture_output=True)
    with pytest.raises(AccessDenied, match="without credentials"):
        await pull(guarded, settings, tmp_path)


@pytest.mark.case("credentials", "an outdated login")
async def test_outdated_password_error_names_its_file(
    guarded: str, home: Path, settings: Settings, tmp_path: Path
) -> None:
    await asyncio.to_thread(log_in, "podman", guarded)
    path = home / "run/containers/auth.json"
    path.write_text(path.read_text().replace(encoded(USER, PASSWORD), encoded(USER, "hunter2-old")))
    with pytest.raises(AccessDenied) as caught:
        await pull(guarded, settings, tmp_path)
    assert str(path) in str(caught.value)
    assert "'user'" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.case("credentials", "a helper filled by skopeo login")
async def test_helper_filled_by_skopeo_login_is_used(
    guarded: str, home: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper stores a login of the real program."""
    monkeypatch.setenv("PATH", f"{home}/bin:{os.environ['PATH']}")
    script = """case "$1" in
store) cat > "$0.store" ;;
get) [ -s "$0.store" ] && cat "$0.store" || { echo "credentials not found in native keychain"; exit 1; } ;;
list) echo '{}' ;;
esac"""
    path = helper(home / "bin", "vault", script)
    config = home / "auth.json"
    config.write_text(f'{{"credHelpers": {{"{guarded}": "vault"}}}}')
    settings = replace(settings, access=Access(authfile=str(config)))
    with pytest.raises(AccessDenied, match="without credentials"):
        await pull(guarded, settings, tmp_path)
    await asyncio.to_thread(log_in, "skopeo", guarded, f"--authfile={config}")
    assert PASSWORD in Path(f"{path}.store").read_text()
    assert PASSWORD not in config.read_text()
    await pull(guarded, settings, tmp_path)


@pytest.mark.case("http", "nginx over TLS as blob store: ranges, no credentials")
async def test_nginx_blob_store_gets_ranges_and_no_credentials(
    authority: Authority, home: Path, settings: Settings, tmp_path: Path
) -> None:
    content = os.urandom(30 << 20)
    (tmp_path / "blobs").mkdir()
    async with FaultyRegistry() as registry:
        reference = publish(registry, stored([file("f", content)], bytes))
        registry.account = Account(USER, PASSWORD)
        for digest, blob in registry.blobs.items():
            (tmp_path / "blobs" / digest.partition(":")[2]).write_bytes(blob)
        store = f"127.0.0.1:{free_port()}"
        certificate, key = authority.folder / "server.cert", authority.folder / "server.key"
        server = f"listen {store} ssl; ssl_certificate {certificate}; ssl_certificate_key {key}; root {tmp_path}/blobs;"
        with nginx(tmp_path / "nginx", store, f"server {{ {server} }}") as log:
            folder = home / ".config/containers/certs.d" / store
            folder.mkdir()
            (folder / "ca.crt").write_bytes(authority.certificate.read_bytes())

            async def away(_: FaultyRegistry, __: web.Request, digest: str) -> web.Response:
                location = f"https://{store}/{digest.partition(':')[2]}?sig=abc"
                return web.Response(status=307, headers={"Location": location})

            registry.faults.append(away)
            access = Access(username=USER, password=fastpull.config.Secret(PASSWORD))
            async with fastpull.Client(replace(settings, access=access, insecure=True)) as client:
                await client.pull(reference, tmp_path / "out")
        requests = log.read_text().splitlines()
    assert (tmp_path / "out/f").read_bytes() == content
    assert len(requests) > 1
    for line in requests:
        _, authorization, cookie, requested_range, status = line.split("|")
        assert (authorization, cookie, status) == ("-", "-", "206")
        assert requested_range.startswith("bytes=")
    assert len([one for one in registry.blob_requests() if one.range]) == 1


@pytest.mark.case("credentials", "--creds, --password-stdin, FASTPULL_USERNAME and FASTPULL_PASSWORD")
@pytest.mark.parametrize("how", ["--creds", "--password-stdin", "environment"])
async def test_command_line_takes_and_shows_login(guarded: str, home: Path, tmp_path: Path, how: str) -> None:
    options = {
        "--creds": ["--creds", f"{USER}:{PASSWORD}"],
        "--password-stdin": ["--creds", USER, "--password-stdin"],
        "environment": [],
    }[how]
    environment = {"FASTPULL_USERNAME": USER, "FASTPULL_PASSWORD": PASSWORD} if how == "environment" else {}
    for verb in (["inspect", "--auth", guarded], ["pull", f"{guarded}/demo:v1", "-o", f"{tmp_path}/out/"]):
        # 127.0.0.1 may use http, but only without https
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fastpull", *verb, "--cache", f"{tmp_path}/cache", *options),
            stdin=-1,
            stdout=-1,
            stderr=-1,
            env={**os.environ, **environment},
        )
        output, errors = await process.communicate(f"{PASSWORD}\n".encode())
        assert process.returncode == 0, errors
        assert b"hunter2" not in output + errors
        if verb[0] == "inspect":
            assert f"{guarded}: user, with the password of --creds or FASTPULL_USERNAME" in output.decode()
    assert check_tree(f"{tmp_path}/out", IMAGE, owners_kept=IS_ROOT) == []
