"""registries.conf: which places a name leads to, beside skopeo's own reading of the same files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from fastpull.config import paths
from fastpull.errors import Forbidden, InvalidInput, InvalidReference, InvalidSetting
from fastpull.oci.reference import Reference
from fastpull.registry.conf.load import load_registries_conf
from fastpull.registry.conf.model import RegistriesConf

if TYPE_CHECKING:
    from collections.abc import Callable

DIGEST = "sha256:" + "c" * 64


def parse(text: str) -> RegistriesConf:
    return RegistriesConf.parse(text.encode(), "test.conf")


def places(text: str, reference: str) -> list[str]:
    return [str(source.reference) for source in parse(text).pull_sources(Reference.parse(reference))]


MIRRORED = """
[[registry]]
prefix = "example.com"
location = "HOST/own"
[[registry.mirror]]
location = "HOST/one"
[[registry.mirror]]
location = "HOST/two"
[[registry]]
prefix = "example.com/special"
location = "HOST/elsewhere/"
"""
BY_DIGEST = """
[[registry]]
prefix = "example.com"
location = "HOST/own"
mirror-by-digest-only = true
[[registry.mirror]]
location = "HOST/one"
"""
EACH_MIRROR = """
[[registry]]
prefix = "example.com"
location = "HOST/own"
[[registry.mirror]]
location = "HOST/all"
pull-from-mirror = "all"
[[registry.mirror]]
location = "HOST/digests"
pull-from-mirror = "digest-only"
[[registry.mirror]]
location = "HOST/tags"
pull-from-mirror = "tag-only"
"""
WILDCARD = """
[[registry]]
prefix = "*.example.com"
location = "HOST/wild"
[[registry]]
prefix = "*.deep.example.com"
location = "HOST/deep"
"""
HUB = """
[[registry]]
prefix = "docker.io"
location = "HOST/hub"
[[registry]]
prefix = "docker.io/library/debian"
location = "HOST/debian"
"""
CASES = [
    (MIRRORED, "example.com/a/b:v1", ["one/a/b:v1", "two/a/b:v1", "own/a/b:v1"]),
    (MIRRORED, f"example.com/a@{DIGEST}", [f"one/a@{DIGEST}", f"two/a@{DIGEST}", f"own/a@{DIGEST}"]),
    (MIRRORED, "example.com/special/x:v1", ["elsewhere/x:v1"]),
    (MIRRORED, "example.com/special:v1", ["elsewhere:v1"]),
    (MIRRORED, "example.com/specially:v1", ["one/specially:v1", "two/specially:v1", "own/specially:v1"]),
    (BY_DIGEST, "example.com/a:v1", ["own/a:v1"]),
    (BY_DIGEST, f"example.com/a@{DIGEST}", [f"one/a@{DIGEST}", f"own/a@{DIGEST}"]),
    (EACH_MIRROR, "example.com/a:v1", ["all/a:v1", "tags/a:v1", "own/a:v1"]),
    (EACH_MIRROR, f"example.com/a@{DIGEST}", [f"all/a@{DIGEST}", f"digests/a@{DIGEST}", f"own/a@{DIGEST}"]),
    (WILDCARD, "x.example.com/a:v1", ["wild/a:v1"]),
    (WILDCARD, "x.y.example.com/a:v1", ["wild/a:v1"]),
    (WILDCARD, "x.deep.example.com/a:v1", ["deep/a:v1"]),
    (HUB, "docker.io/library/alpine:3", ["hub/library/alpine:3"]),
    (HUB, "alpine:3", ["hub/library/alpine:3"]),
    (HUB, "debian:12", ["debian:12"]),
    (HUB, "docker.io/someone/debian:12", ["hub/someone/debian:12"]),
]
IDS = [f"{number}-{reference[:30]}" for number, (_, reference, _) in enumerate(CASES)]


@pytest.mark.case("mirrors", "prefixes, longest match, rewriting, wildcards, by digest, by tag")
@pytest.mark.parametrize(("conf", "reference", "expected"), CASES, ids=IDS)
def test_pull_sources_are_mirrors_then_location(conf: str, reference: str, expected: list[str]) -> None:
    assert places(conf.replace("HOST", "h:1"), reference) == [f"h:1/{one}" for one in expected]


@pytest.fixture
async def asked() -> AsyncIterator[tuple[str, list[str]]]:
    """Run a host without images, and yield the requested repositories."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        name, manifests, version = request.path.removeprefix("/v2/").rpartition("/manifests/")
        if manifests:
            seen.append(name + ("@" if ":" in version else ":") + version)
        return web.json_response({}) if request.path == "/v2/" else web.json_response({"errors": []}, status=404)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"{host}:{port}", seen
    await runner.cleanup()


@pytest.mark.peer("skopeo")
@pytest.mark.case("mirrors", "the same endpoints in the same order as skopeo")
@pytest.mark.parametrize(("conf", "reference", "expected"), CASES, ids=IDS)
async def test_pull_sources_equal_those_of_skopeo(
    asked: tuple[str, list[str]], tmp_path: Path, conf: str, reference: str, expected: list[str]
) -> None:
    host, seen = asked
    (tmp_path / "registries.conf").write_text(conf.replace("HOST", host))
    command = ["--registries-conf", str(tmp_path / "registries.conf"), "inspect", "--tls-verify=false", "--raw"]
    process = await asyncio.create_subprocess_exec(
        "skopeo", *command, f"docker://{reference}", stderr=asyncio.subprocess.DEVNULL
    )
    assert await asyncio.wait_for(process.wait(), 30) != 0
    assert list(dict.fromkeys(seen)) == expected


@pytest.mark.case("mirrors", "a blocked image")
@pytest.mark.parametrize(
    ("conf", "reference", "is_blocked"),
    [
        ('prefix = "example.com"\nlocation = "h/own"', "example.com/a:v1", True),
        ('location = "example.com"', "example.com/a:v1", True),
        ('location = "example.com"', "example.com:5000/a:v1", True),
        ('location = "example.com"', "example.community/a:v1", False),
        ('location = "example.com/a"', "example.com/b:v1", False),
        ('location = "example.com/a:bad"', "example.com/a:bad", True),
        ('location = "example.com/a:bad"', "example.com/a:good", False),
        (f'location = "example.com/a@{DIGEST}"', f"example.com/a@{DIGEST}", True),
        ('prefix = "*.example.com"', "a.example.com/b:v1", True),
        ('prefix = "*.example.com"', "a.example.com:5000/b:v1", True),
        ('prefix = "*.example.com"', "example.com/b:v1", False),
        ('prefix = "*.example.com"', "a.example.com.org/b:v1", False),
        ('prefix = "*.example.com"', "evil.org/x.example.com:v1", False),
    ],
)
def test_blocked_image_error_names_table(conf: str, reference: str, is_blocked: bool) -> None:
    conf = f"[[registry]]\n{conf}\nblocked = true"
    if not is_blocked:
        assert places(conf, reference) == [reference]
        return
    with pytest.raises(Forbidden, match=r"test.conf, \[\[registry\]\]") as caught:
        places(conf, reference)
    assert caught.value.exit_code == 13


def test_longer_prefix_overrides_blocked_shorter_one() -> None:
    conf = """
    [[registry]]
    location = "example.com"
    blocked = true
    [[registry]]
    location = "example.com/ours"
    """
    assert places(conf, "example.com/ours/a:v1") == ["example.com/ours/a:v1"]


def test_blocked_mirror_is_left_out() -> None:
    conf = """
    [[registry]]
    prefix = "example.com"
    location = "one.local"
    [[registry.mirror]]
    location = "two.local"
    [[registry]]
    location = "{}.local/a"
    blocked = true
    """
    assert places(conf.format("one"), "example.com/a:v1") == ["two.local/a:v1"]
    assert places(conf.format("two"), "example.com/a:v1") == ["one.local/a:v1"]
    with pytest.raises(Forbidden, match="gone.local"):
        places(
            '[[registry]]\nprefix = "e.com"\nlocation = "gone.local"\n[[registry]]\nlocation = "gone.local/a"\n'
            "blocked = true",
            "e.com/a:v1",
        )


def test_insecure_applies_to_single_pull_sources() -> None:
    conf = parse(MIRRORED.replace('"HOST/one"', '"HOST/one"\ninsecure = true').replace("HOST", "h:1"))
    sources = conf.pull_sources(Reference.parse("example.com/a:v1"))
    assert [(source.is_mirror, source.is_insecure) for source in sources] == [
        (True, True),
        (True, False),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        ("x = ", r"not TOML \("),
        ("\n\n[[registry]\n", "line 3"),
        ("[registries.search]\nregistries = ['docker.io']", "version 1"),
        ("[[registry]]", "neither prefix nor location"),
        ("[[registry]]\nprefix = 'a.com'", "no location"),
        ("[[registry]]\nprefix = '*.a.com/b'\nlocation = 'c'", "wildcard"),
        ("[[registry]]\nprefix = 'a.*.com'\nlocation = 'c'", "wildcard"),
        ("[[registry]]\nlocation = 'https://a.com'", "scheme"),
        ("[[registry]]\nlocation = 1", "location is not a string"),
        ("[[registry]]\nlocation = 'a.com'\nblocked = 'yes'", "blocked is not true or false"),
        ("[registry]\nlocation = 'a.com'", "registry is not a list of tables"),
        ("[[registry]]\nlocation = 'a.com'\npull-from-mirror = 'all'", r"belongs into \[\[registry.mirror\]\]"),
        ("[[registry]]\nlocation = 'a.com'\n[[registry.mirror]]", "without location"),
        (
            "[[registry]]\nlocation = 'a.com'\n[[registry.mirror]]\nlocation='b'\npull-from-mirror='some'",
            "not one of all",
        ),
        (
            (
                "[[registry]]\nlocation = 'a.com'\nmirror-by-digest-only = true\n"
                "[[registry.mirror]]\nlocation='b'\npull-from-mirror='all'"
            ),
            "exclude each other",
        ),
        (
            "[[registry]]\nlocation = 'a.com'\n[[registry]]\nprefix = 'b.com'\nlocation = 'a.com'\nblocked = true",
            "disagree",
        ),
        ("unqualified-search-registries = 'docker.io'", "a list of strings"),
        ("aliases = 5", "aliases is not a table"),
        ("[aliases]\n'a.com/b' = 'a.com/c'", "not a short name"),
        ("[aliases]\n'b:v1' = 'a.com/c'", "not a short name"),
        ("[aliases]\n'b' = 'a.com/c:v1'", "without tag"),
        ("[aliases]\n'b' = 'c'", "a full name"),
        ("[aliases]\n'b' = 'a.com/C'", "not for an image name"),
    ],
)
def test_invalid_conf_error_names_file_and_table(conf: str, reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason) as caught:
        parse(conf)
    assert "test.conf" in str(caught.value)
    assert caught.value.exit_code == 3


def test_options_of_other_tools_are_ignored() -> None:
    conf = 'credential-helpers = ["x"]\nshort-name-mode = "enforcing"\n[[registry]]\nlocation = "a.com"\nnew = 5'
    assert places(conf, "a.com/b:v1") == ["a.com/b:v1"]


def test_location_must_form_a_valid_reference() -> None:
    with pytest.raises(InvalidSetting, match=r"rewrites example.com/a:v1 to an invalid reference"):
        places('[[registry]]\nprefix = "example.com"\nlocation = "h/UPPER"', "example.com/a:v1")


# --- short names


ALIASES = """
[aliases]
"fedora" = "registry.fedoraproject.org/fedora"
"opensuse/leap" = "registry.opensuse.org/opensuse/leap"
"alpine" = "docker.io/library/alpine"
"gone" = ""
"""


@pytest.mark.case("mirrors", "short-name aliases")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fedora", "registry.fedoraproject.org/fedora:latest"),
        ("fedora:41", "registry.fedoraproject.org/fedora:41"),
        (f"fedora@{DIGEST}", f"registry.fedoraproject.org/fedora@{DIGEST}"),
        ("opensuse/leap:15", "registry.opensuse.org/opensuse/leap:15"),
        ("alpine", "docker.io/library/alpine:latest"),
        ("gone", "docker.io/library/gone:latest"),
        ("docker.io/library/fedora", "docker.io/library/fedora:latest"),
        ("quay.io/fedora", "quay.io/fedora:latest"),
        ("localhost/fedora", "localhost/fedora:latest"),
        ("quay.io#fedora", "quay.io/fedora:latest"),
        ("someone/fedora", "docker.io/someone/fedora:latest"),
    ],
)
def test_short_name_resolves_by_alias(text: str, expected: str) -> None:
    assert str(parse(ALIASES).qualified(text)) == expected


@pytest.mark.case("mirrors", "short names are never searched")
@pytest.mark.parametrize("search", ['["quay.io"]', '["quay.io", "ghcr.io"]', "[]"])
def test_short_name_is_rejected_if_search_excludes_docker_hub(search: str) -> None:
    conf = parse(f"unqualified-search-registries = {search}\n{ALIASES}")
    assert str(conf.qualified("fedora")) == "registry.fedoraproject.org/fedora:latest"
    with pytest.raises(InvalidReference, match="test.conf excludes Docker Hub; give the full name") as caught:
        conf.qualified("debian:12")
    assert ("quay.io/debian:12" in str(caught.value)) == ("quay" in search)
    with_hub = parse('unqualified-search-registries = ["quay.io", "docker.io"]')
    assert str(with_hub.qualified("debian:12")) == "docker.io/library/debian:12"


# --- files


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write the files of ``/etc/containers`` or of the user, each with a location that identifies it."""
    monkeypatch.setattr(paths, "SYSTEM_DIRECTORY", str(tmp_path / "etc"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def write(path: str, location: str) -> str:
        full = tmp_path / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(f'[[registry]]\nprefix = "p.com"\nlocation = "{location}.local"\n')
        return str(full)

    return write


def where() -> str:
    (source,) = load_registries_conf().pull_sources(Reference.parse("p.com/a:v1"))
    return source.reference.registry.removesuffix(".local")


@pytest.mark.case("mirrors", "the standard paths and drop-ins")
def test_conf_paths_equal_those_of_other_tools(
    system: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert where() == "p.com"
    system("etc/containers/registries.conf", "system")
    assert where() == "system"
    system("etc/containers/registries.conf.d/10-site.conf", "drop-in")
    system("etc/containers/registries.conf.d/20-note.txt", "note")
    assert where() == "drop-in"
    system("home/.config/containers/registries.conf.d/05.conf", "own-drop-in")
    assert where() == "own-drop-in"
    os.unlink(system("home/.config/containers/registries.conf.d/05.conf", "x"))
    system("home/.config/containers/registries.conf", "own")
    assert where() == "own", "the user's file did not replace the system's and its drop-ins"
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", system("given.conf", "given"))
    assert where() == "given"
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", "/nonexistent")
    with pytest.raises(InvalidSetting, match="/nonexistent"):
        where()


def test_equal_prefixes_first_in_file_and_last_file_apply() -> None:
    one = parse('[[registry]]\nprefix="p.com"\nlocation="a"\n[[registry]]\nprefix="p.com"\nlocation="b"')
    other = parse('[[registry]]\nprefix="p.com"\nlocation="c"\n[aliases]\nx = "a.com/x"')
    name = Reference.parse("p.com/n:v1")
    assert one.pull_sources(name)[0].reference.registry == "a"
    assert one.merged(other).pull_sources(name)[0].reference.registry == "c"
    assert str(one.merged(other).merged(parse('[aliases]\nx = ""')).qualified("x")) == "docker.io/library/x:latest"


hosts = st.sampled_from(["a.com", "b.a.com", "c.b.a.com", "localhost:5000", "docker.io", "a.com.org"])
names = st.lists(st.sampled_from(["x", "y", "library", "xy"]), min_size=1, max_size=3).map("/".join)
prefixes = st.builds("/".join, st.tuples(hosts, names)) | hosts | st.sampled_from(["*.a.com", "*.com", "*.b.a.com"])


@given(st.lists(prefixes, max_size=5, unique=True), hosts, names, st.sampled_from(["v1", "v2"]))
def test_longest_prefix_at_component_boundary_applies(found: list[str], host: str, name: str, tag: str) -> None:
    """Compare with a direct implementation of the rule."""
    conf = "".join(f'[[registry]]\nprefix = "{one}"\nlocation = "l{n}.local"\n' for n, one in enumerate(found))
    full = f"{host}/{name}:{tag}"
    try:
        (source,) = parse(conf).pull_sources(Reference.parse(full))
    except InvalidInput:
        return  # a prefix may cover the whole name
    full = str(Reference.parse(full))
    fitting = [
        one
        for one in found
        if (one.startswith("*.") and full.split("/")[0].split(":")[0].endswith(one[1:]))
        or (full.startswith(one) and full[len(one)] in ":/@")
    ]
    best = max(fitting, key=len, default=None)
    assert source.reference.registry.startswith("l" if best else full.split("/")[0])
    if best:
        assert source.reference.registry.split(":")[0] == f"l{found.index(best)}.local"
