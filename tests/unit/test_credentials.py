"""The search for credentials: sources, order, and errors of invalid files."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.config.access import Access
from fastpull.config.secret import Secret
from fastpull.config.settings import Settings
from fastpull.errors import InvalidSetting
from fastpull.registry.auth import credential_helpers
from fastpull.registry.auth.auth_file import AuthFile
from fastpull.registry.auth.credentials import Credentials
from fastpull.registry.auth.keyring import CredentialSearch, Keyring
from fastpull.registry.auth.netrc import find_machine, parse_netrc
from tests.support.logins import answering, encoded, helper, login, write


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


async def search(registry: str, repository: str = "", access: Access | None = None) -> CredentialSearch:
    keyring = Keyring(access or Access())
    keyring.add_source_registry(registry)
    return await keyring.search(registry, repository)


async def user(registry: str, repository: str = "", access: Access | None = None) -> str | None:
    found = (await search(registry, repository, access)).found
    return found.username if found else None


# --- auth files


@pytest.mark.case("credentials", "auths entries by host and by URL")
@pytest.mark.parametrize(
    ("key", "registry"),
    [
        ("quay.io", "quay.io"),
        ("https://quay.io", "quay.io"),
        ("http://quay.io", "quay.io"),
        ("https://quay.io/", "quay.io"),
        ("https://quay.io/v1/", "quay.io"),
        ("https://quay.io/v2/", "quay.io"),
        ("https://index.docker.io/v1/", "docker.io"),
        ("index.docker.io", "docker.io"),
        ("registry-1.docker.io", "docker.io"),
        ("docker.io", "docker.io"),
        ("localhost:5000", "localhost:5000"),
        ("[::1]:5000", "[::1]:5000"),
    ],
)
async def test_login_is_found_by_registry(home: Path, key: str, registry: str) -> None:
    write(home / ".docker/config.json", {"auths": {key: login("user", "pass:word"), "other.io": login("a")}})
    found = (await search(registry)).found
    assert found is not None
    assert (found.username, found.password) == ("user", Secret("pass:word"))
    assert found.basic == "Basic " + encoded("user", "pass:word")
    assert key in found.origin


@pytest.mark.case("credentials", "auths entries of another host or port")
@pytest.mark.parametrize(
    "registry", ["quay.io.evil.org", "uay.io", "quay.io:443", "docker.io", "evil.org", "QUAY.IO.evil.org"]
)
async def test_login_of_another_registry_is_ignored(home: Path, registry: str) -> None:
    write(home / ".docker/config.json", {"auths": {"quay.io": login("a"), "quay.io:5000": login("b")}})
    assert await user(registry) is None


@pytest.mark.case("credentials", "namespace keys: the longest match applies")
@pytest.mark.parametrize(
    ("registry", "repository", "expected"),
    [
        ("quay.io", "ml/pytorch", "exact"),
        ("quay.io", "ml/other", "namespace"),
        ("quay.io", "ml/deep/er", "namespace"),
        ("quay.io", "mlx/other", "host"),
        ("quay.io", "", "host"),
        ("docker.io", "library/debian", "hub"),
        ("docker.io", "site/app", "site"),
        ("only.io", "ns/app", "ns"),
        ("only.io", "other/app", None),
        ("only.io", "ns", "ns"),
        ("only.io", "nsx/app", None),
    ],
)
async def test_longest_matching_key_applies(home: Path, registry: str, repository: str, expected: str | None) -> None:
    auths = {
        "quay.io": login("host"),
        "quay.io/ml": login("namespace"),
        "quay.io/ml/pytorch": login("exact"),
        "docker.io": login("hub"),
        "docker.io/site": login("site"),
        "only.io/ns": login("ns"),
    }
    write(home / "run/containers/auth.json", {"auths": auths})
    assert await user(registry, repository) == expected


@pytest.mark.case("credentials", "passwords, identity tokens, registry tokens")
@pytest.mark.parametrize(
    ("entry", "kind", "shown"),
    [
        ({"auth": encoded("u", "p")}, "password", "u"),
        ({"auth": encoded("u", "p") + "", "email": "x"}, "password", "u"),
        ({"username": "u", "password": "p"}, "password", "u"),
        ({"auth": encoded("00000000-0000-0000-0000-000000000000", ""), "identitytoken": "t"}, "identity token", "0000"),
        ({"identitytoken": "t"}, "identity token", ""),
        ({"registrytoken": "t"}, "registry token", ""),
    ],
)
async def test_entry_holds_password_or_token(home: Path, entry: dict[str, str], kind: str, shown: str) -> None:
    write(home / ".docker/config.json", {"auths": {"q.io": entry}})
    found = (await search("q.io")).found
    assert found is not None
    assert found.kind == kind
    assert found.username.startswith(shown)


@pytest.mark.case("credentials", "malformed auth files")
@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", "line 1"),
        ('{\n "auths": {\n  "q.io": {"auth": }\n }\n}', "line 3"),
        ("[]", ""),
        ('{"auths": []}', ""),
        ('{"auths": {\n\n"q.io": []}}', "line 3"),
        ('{"auths": {\n"q.io": {"auth": "%%%"}}}', "line 2"),
        ('{"auths": {\n"q.io": {"auth": 5}}}', "line 2"),
        (json.dumps({"auths": {"q.io": {"auth": encoded("no", "colon").replace("bm86", "bm8h")}}}), "line 1"),
        (json.dumps({"auths": {"q.io": login("line\nfeed")}}), "line 1"),
        (json.dumps({"auths": {"q.io": {"username": "a:b", "password": "p"}}}), "line 1"),
        (json.dumps({"auths": {"q.io": {"identitytoken": "line\r\nfeed"}}}), "line 1"),
        ('{"credHelpers": {"q.io": 5}}', ""),
        ('{"credHelpers": {"q.io": "../../bin/sh"}}', ""),
        ('{"credsStore": 5}', ""),
        ('{"auths": {}, "auths": {}}', ""),
        ("\xff\xfe", ""),
    ],
)
async def test_malformed_auth_file_error_names_path_and_line(home: Path, content: str, line: str) -> None:
    write(home / ".docker/config.json", "").write_bytes(content.encode("latin-1"))
    with pytest.raises(InvalidSetting, match=r"\.docker/config\.json") as caught:
        await search("q.io")
    assert line in str(caught.value)
    assert caught.value.exit_code == 3


async def test_malformed_entry_of_another_registry_is_ignored(home: Path) -> None:
    write(home / ".docker/config.json", {"auths": {"bad.io": {"auth": "%%%"}, "q.io": login("u")}})
    assert await user("q.io") == "u"


async def test_empty_entry_is_ignored(home: Path) -> None:
    write(home / ".docker/config.json", {"auths": {"q.io": {}}})
    assert await user("q.io") is None


@given(st.binary(max_size=200))
def test_any_bytes_parse_as_auth_file_or_raise_typed_error(body: bytes) -> None:
    try:
        AuthFile(body, "file").entry("q.io", "a/b")
    except InvalidSetting as error:
        assert "file" in str(error)


# --- order


ORDER = [
    ("run/containers/auth.json", "runtime"),
    (".config/containers/auth.json", "config"),
    (".docker/config.json", "docker"),
    (".config/enroot/.credentials", "enroot"),
    (".netrc", "netrc"),
]


@pytest.mark.case("credentials", "the order of locations")
@pytest.mark.parametrize("first", range(len(ORDER)), ids=[name for _, name in ORDER])
async def test_first_location_with_an_entry_applies(home: Path, first: int) -> None:
    for path, name in ORDER[first:]:
        netrc = f"machine q.io login {name} password p\n"
        write(home / path, netrc if name in ("enroot", "netrc") else {"auths": {"q.io": login(name)}})
    found = await search("q.io", access=Access(netrc=True))
    assert found.found is not None
    assert found.found.username == ORDER[first][1]
    assert [location.outcome for location in found.locations[:-1]] == ["does not exist"] * first


@pytest.mark.case("credentials", "--authfile and REGISTRY_AUTH_FILE")
async def test_settings_precede_files_and_named_file_replaces_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, name in ORDER[:3]:
        write(home / path, {"auths": {"q.io": login(name), "only.io": login("x")}})
    write(home / "env.json", {"auths": {"q.io": login("environment")}})
    write(home / "given.json", {"auths": {"q.io": login("authfile")}})
    access = Access(authfile=str(home / "given.json"))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(home / "env.json"))
    assert await user("q.io", access=replace(access, username="creds", password=Secret("p"))) == "creds"
    assert await user("q.io", access=access) == "authfile"
    assert await user("q.io") == "environment"
    assert await user("only.io") is None


@pytest.mark.parametrize("name", ["no/such/file", "."])
async def test_named_file_must_exist(home: Path, name: str) -> None:
    with pytest.raises(InvalidSetting, match="cannot read the auth file"):
        await search("q.io", access=Access(authfile=str(home / name)))


async def test_directories_come_from_environment_variables(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, path in [
        ("ENROOT_CONFIG_PATH", ".credentials"),
        ("DOCKER_CONFIG", "config.json"),
        ("XDG_CONFIG_HOME", "containers/auth.json"),
        ("XDG_RUNTIME_DIR", "containers/auth.json"),
    ]:
        content = f"machine q.io login {variable} password p"
        write(home / variable / path, content if path == ".credentials" else {"auths": {"q.io": login(variable)}})
        monkeypatch.setenv(variable, str(home / variable))
        assert await user("q.io") == variable


@pytest.mark.case("credentials", "netrc on request")
async def test_netrc_is_read_only_on_request(home: Path) -> None:
    write(home / ".netrc", "machine q.io login netrc password p")
    assert await user("q.io") is None
    assert await user("q.io", access=Access(netrc=True)) == "netrc"


@pytest.mark.case("credentials", "user name and password for one of several registries")
async def test_user_name_and_password_apply_only_to_registry_of_sources() -> None:
    access = Access(username="u", password=Secret("p"))
    keyring = Keyring(access)
    assert await keyring.find("q.io") is None, "credentials for a registry that no source names"
    keyring.add_source_registry("q.io")
    assert await Keyring(access).find("mirror.example") is None
    with pytest.raises(InvalidSetting, match="which of them"):
        keyring.add_source_registry("other.io")
    keyring = Keyring(replace(access, registry="q.io"))
    keyring.add_source_registry("other.io")
    assert await keyring.find("other.io") is None
    assert await keyring.find("q.io") is not None


@pytest.mark.parametrize("given_values", [{"username": "u"}, {"password": "p"}])
def test_user_name_requires_password(given_values: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting, match="go together"):
        Settings.load({}, **given_values)


def test_access_settings_are_read_from_environment() -> None:
    environment = {
        "FASTPULL_USERNAME": "u",
        "FASTPULL_PASSWORD": "hunter2",
        "FASTPULL_NETRC": "yes",
        "FASTPULL_INSECURE_REGISTRIES": "a.io, b.io:5000",
        "FASTPULL_SITE_CONNECTIONS": "32",
    }
    settings = Settings.load(environment)
    assert settings.access == Access(
        username="u", password=Secret("hunter2"), netrc=True, insecure_registries=("a.io", "b.io:5000")
    )
    assert settings.site_connections == 32
    assert "hunter2" not in repr(settings)


# --- helpers


@pytest.mark.case("credentials", "credHelpers before credsStore before auths")
async def test_registry_helper_precedes_store_and_store_precedes_file(home: Path) -> None:
    helper(home / "bin", "one", answering(q=("one", "p")))
    helper(home / "bin", "all", answering(q=("all", "p"), other=("all", "p")))
    auths = {"q.io": login("file"), "other.io": login("file"), "third.io": login("file")}
    write(home / ".docker/config.json", {"auths": auths, "credHelpers": {"q.io": "one"}, "credsStore": "all"})
    assert await user("q.io") == "one"
    assert await user("other.io") == "all"
    assert await user("third.io") == "file"


async def test_helper_gets_legacy_name_of_docker_hub(home: Path) -> None:
    path = helper(home / "bin", "hub", 'read -r server; printf %s "$server" > "$0.server"; exit 1')
    write(home / ".docker/config.json", {"credHelpers": {"https://index.docker.io/v1/": "hub"}})
    with pytest.raises(InvalidSetting, match="failed with status 1"):
        await search("docker.io")
    assert Path(f"{path}.server").read_text() == "https://index.docker.io/v1/"


async def test_helper_runs_once_per_registry_and_again_to_renew(home: Path) -> None:
    path = helper(home / "bin", "one", answering(q=("u", "p")))
    write(home / ".docker/config.json", {"credHelpers": {"q.io": "one"}})
    keyring = Keyring()
    for repository in ("a", "b", "a"):
        found = await keyring.find("q.io", repository)
        assert found is not None
        assert found.is_renewable
    assert Path(f"{path}.calls").read_text() == "get\n"
    await keyring.find("q.io", "a", renew=True)
    assert Path(f"{path}.calls").read_text() == "get\nget\n"


async def test_helper_may_return_identity_token(home: Path) -> None:
    helper(home / "bin", "one", answering(q=("<token>", "refresh")))
    write(home / ".docker/config.json", {"credHelpers": {"q.io": "one"}})
    found = (await search("q.io")).found
    assert found is not None
    assert found.identity_token == Secret("refresh")


@pytest.mark.case("credentials", "failing helpers and invalid helper output")
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "failed with status 3"),
        ("echo 'the vault is sealed'; exit 1", "failed with status 1: the vault is sealed"),
        ("""echo '{"Secret": "hunter2"}'; exit 1""", "failed with status 1"),
        ("echo hunter2", "is not valid"),
        ("""echo '["hunter2"]'""", "is not valid"),
        ("""echo '{"Username": 5, "Secret": "hunter2"}'""", "is not valid"),
        ("kill -9 $$", "failed with status -9"),
        ("cat /dev/zero", "wrote more than"),
        ("""printf '{"Username": "u", "Secret": "hunter2\\\\nX: y"}'""", "control characters"),
    ],
)
async def test_failed_helper_error_omits_its_output(home: Path, script: str, words: str) -> None:
    helper(home / "bin", "bad", script)
    write(home / ".docker/config.json", {"credHelpers": {"q.io": "bad"}})
    with pytest.raises(InvalidSetting, match=words) as caught:
        await search("q.io")
    assert "docker-credential-bad" in str(caught.value)
    assert "config.json" in str(caught.value)
    assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.case("credentials", "a hanging helper")
async def test_hanging_helper_is_killed_with_its_children(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_helpers, "HELPER_SECONDS", 0.5)
    path = helper(home / "bin", "slow", 'sleep 1000 & echo $! > "$0.pid"; sleep 1000')
    write(home / ".docker/config.json", {"credHelpers": {"q.io": "slow"}})
    with pytest.raises(InvalidSetting, match="'docker-credential-slow' gave no answer in 0 s"):
        await search("q.io")
    child = int(Path(f"{path}.pid").read_text())
    async with asyncio.timeout(10):
        while is_alive(child):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_process_that_left_helper_session_is_not_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child keeps the output of the helper open."""
    monkeypatch.setattr(credential_helpers, "HELPER_SECONDS", 0.5)
    path = helper(home / "bin", "leak", 'setsid sleep 5 & echo $! > "$0.pid"; exit 0')
    write(home / ".docker/config.json", {"credHelpers": {"q.io": "leak"}})
    with pytest.raises(InvalidSetting, match="gave no answer"):
        await search("q.io")
    os.kill(int(Path(f"{path}.pid").read_text()), 9)


@pytest.mark.case("credentials", "a missing credential store")
@pytest.mark.parametrize("listed", [True, False])
async def test_missing_store_fails_only_listed_registries(home: Path, listed: bool) -> None:
    """Docker writes an empty entry for each registry whose secret is in the store."""
    auths: dict[str, object] = {"q.io": {}} if listed else {}
    write(home / ".docker/config.json", {"auths": auths, "credsStore": "desktop"})
    warnings: list[str] = []
    keyring = Keyring(on_warning=lambda _, text: warnings.append(text))
    if listed:
        with pytest.raises(InvalidSetting, match="docker-credential-desktop.*not in PATH"):
            await keyring.find("q.io")
    else:
        assert await keyring.find("q.io") is None
        assert "docker-credential-desktop" in warnings[0]


async def test_unusable_helper_error_names_program(home: Path) -> None:
    helper(home / "bin", "odd", "").chmod(stat.S_IRUSR)
    write(home / "bin/docker-credential-binary", "no program").chmod(0o755)
    for name in ("missing", "binary"):
        write(home / ".docker/config.json", {"credHelpers": {"q.io": name}})
        with pytest.raises(InvalidSetting, match=f"docker-credential-{name}"):
            await search("q.io")


async def test_helpers_do_not_inherit_fastpull_password(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTPULL_PASSWORD", "hunter2")
    path = helper(home / "bin", "spy", 'env > "$0.env"; echo "credentials not found"; exit 1')
    write(home / ".docker/config.json", {"credHelpers": {"q.io": "spy"}})
    assert await user("q.io") is None
    assert "hunter2" not in Path(f"{path}.env").read_text()


# --- netrc and enroot


@pytest.mark.case("credentials", "netrc syntax")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("machine q.io login u password p", ("u", "p", 1)),
        ("machine q.io\n  login u\n  password p\n", ("u", "p", 1)),
        ("machine\nq.io login\nu password\np", ("u", "p", 2)),
        ("# machine q.io login no password no\nmachine q.io login u password p # more", ("u", "p", 2)),
        ('machine q.io login "u v" password "p\\"q"', ("u v", 'p"q', 1)),
        ("machine other login a password b\nmachine q.io user u account x password p", ("u", "p", 2)),
        ("machine q.io login u password #notacomment", ("u", "#notacomment", 1)),
        ("machine q.io login $oauthtoken password nvapi-x", ("$oauthtoken", "nvapi-x", 1)),
        ("macdef init\nmachine q.io login no password no\n\nmachine q.io login u password p", ("u", "p", 4)),
        ("machine Q.IO login u password p", ("u", "p", 1)),
        ("machine q.io login u\nmachine q.io login v password p", ("v", "p", 2)),
        ("default login u password p", None),
        ("machine q.io.evil login u password p", None),
        ("", None),
    ],
)
def test_netrc_syntax(text: str, expected: tuple[str, str, int] | None) -> None:
    machine = find_machine(parse_netrc(text, "file"), "q.io")
    assert (machine and (machine.login, machine.password.reveal(), machine.line)) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("machine q.io\nlogn u password hunter2", 2),
        ("login u password hunter2", 1),
        ("machine q.io login u password two hunter2", 1),
        ("\n\nmachine", 3),
        ("machine q.io login u password", 1),
    ],
)
def test_malformed_netrc_error_names_line(text: str, line: int) -> None:
    with pytest.raises(InvalidSetting, match=f"file, line {line}") as caught:
        parse_netrc(text, "file")
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=200), st.booleans())
def test_any_text_parses_as_netrc_or_raises_typed_error(text: str, expressions: bool) -> None:
    try:
        parse_netrc(text, "file", expressions=expressions)
    except InvalidSetting as error:
        assert "line" in str(error)


@pytest.mark.case("credentials", "enroot's .credentials")
@pytest.mark.parametrize("port", ["", ":5000"])
async def test_enroot_credentials_are_read(home: Path, port: str) -> None:
    write(home / ".config/enroot/.credentials", "machine nvcr.io login $oauthtoken password nvapi")
    found = (await search(f"nvcr.io{port}")).found
    assert found is not None
    assert (found.username, found.password) == ("$oauthtoken", Secret("nvapi"))


async def test_enroot_credentials_may_name_token_server(home: Path) -> None:
    text = "machine auth.docker.io login hub password p\nmachine gitlab.com login git password p"
    write(home / ".config/enroot/.credentials", text)
    assert await user("docker.io") == "hub"
    assert await user("registry.gitlab.com") is None
    found = await Keyring().find_machine("gitlab.com")
    assert found is not None
    assert found.username == "git"


EXPRESSION = "machine q.io login u password $(printf 'a b%s' \"$SUFFIX\")"


@pytest.mark.case("credentials", "a shell expression as password")
async def test_shell_expression_needs_permission(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = home / "was-run"
    write(home / ".config/enroot/.credentials", f"machine q.io login u password $(touch {marker})")
    with pytest.raises(InvalidSetting, match="line 1.*--credential-commands|--credential-commands.*line 1"):
        await search("q.io")
    assert not marker.exists()


async def test_shell_expression_runs_with_permission(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFIX", "-c")
    write(home / ".config/enroot/.credentials", EXPRESSION)
    found = (await search("q.io", access=Access(credential_commands=True))).found
    assert found is not None
    assert found.password == Secret("a b-c")
    assert found.is_renewable


@pytest.mark.parametrize("expression", ["$(exit 3)", "$(", "$UNSET_VARIABLE"])
async def test_failing_shell_expression_is_an_error(home: Path, expression: str) -> None:
    write(home / ".config/enroot/.credentials", f"machine q.io login u password {expression}")
    with pytest.raises(InvalidSetting, match="shell expression failed"):
        await search("q.io", access=Access(credential_commands=True))


# --- secrets


@pytest.mark.case("credentials", "secrets in dumps and messages")
def test_secret_is_hidden_in_repr_and_pickle() -> None:
    credentials = Credentials("user", Secret("hunter2"), "file", Secret("hunter2-i"), Secret("hunter2-r"))
    shown = f"{credentials!r} {credentials} {credentials.password} {[credentials.password]} {credentials.kind}"
    assert "hunter2" not in shown
    assert b"hunter2" not in pickle.dumps(credentials.password)
    assert Secret("a") != "a"
    assert not Secret()
