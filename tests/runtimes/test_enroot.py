"""Files for enroot: golden texts from its contract, and ``/etc/rc`` run by real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.errors import InvalidReference, InvalidSetting, MalformedDocument
from fastpull.runtimes.base import AddedFile
from fastpull.runtimes.enroot import Enroot, quote
from fastpull.runtimes.enroot_command import EnrootSettings, EnrootUri
from tests.runtimes.configs import image_of
from tests.support.layers import file, folder, publish, symlink
from tests.support.peers import unsquash
from tests.support.processes import run
from tests.support.registry import FaultyRegistry
from tests.support.squashfs import superblock

RC_LOCAL = """\
# This file is sourced by /etc/rc when the container starts.
# It can be used to manipulate the entrypoint or the command of the container.
"""


def texts(**config: Any) -> dict[str, str]:
    additions = Enroot().additions(image_of(**config), {})
    return {one.path.decode(): one.content.decode() for one in additions.inside if isinstance(one, AddedFile)}


def test_golden_texts_of_full_config() -> None:
    assert texts(
        Env=["PATH=/usr/bin:/bin", "A=two words", "EMPTY="],
        Entrypoint=["/opt/entry point.sh", "--flag=it's"],
        Cmd=["serve", "", "$HOME", "a\\b"],
        WorkingDir="/srv/space",
        Labels={"maintainer": "somebody", "description": "two\nlines", "a.b": ""},
        Volumes={"/var/data": {}, "/a": {}},
    ) == {
        "etc/fstab": (
            "${ENROOT_ROOTFS}/a /a none x-create=dir,bind,rw,nosuid,nodev\n"
            "${ENROOT_ROOTFS}/var/data /var/data none x-create=dir,bind,rw,nosuid,nodev\n"
        ),
        "etc/environment": "PATH=/usr/bin:/bin\nA=two words\nEMPTY=\n",
        "etc/rc.local": RC_LOCAL,
        "etc/rc": (
            "# enroot-provenance: docker://registry.example.org#ml/app:v1\n"
            "# maintainer somebody\n"
            "# description two lines\n"
            "# a.b \n"
            "\n"
            'mkdir -p "/srv/space" 2> /dev/null\n'
            'cd "/srv/space" && unset OLDPWD || exit 1\n'
            "\n"
            "if [ -s /etc/rc.local ]; then\n"
            "    . /etc/rc.local\n"
            "fi\n"
            "\n"
            "if [ $# -gt 0 ]; then\n"
            "    exec '/opt/entry point.sh' '--flag=it'\\''s' \"$@\"\n"
            "else\n"
            "    exec '/opt/entry point.sh' '--flag=it'\\''s' 'serve' '' '$HOME' 'a\\b'\n"
            "fi\n"
        ),
    }


def test_golden_texts_of_empty_config() -> None:
    found = texts()
    assert (found["etc/fstab"], found["etc/environment"], found["etc/rc.local"]) == ("", "", RC_LOCAL)
    assert found["etc/rc"] == (
        "# enroot-provenance: docker://registry.example.org#ml/app:v1\n"
        "\n"
        'mkdir -p "/" 2> /dev/null\n'
        'cd "/" && unset OLDPWD || exit 1\n'
        "\n"
        "if [ -s /etc/rc.local ]; then\n"
        "    . /etc/rc.local\n"
        "fi\n"
        "\n"
        "if [ $# -gt 0 ]; then\n"
        '    exec  "$@"\n'
        "else\n"
        "    exec  '/bin/sh'\n"
        "fi\n"
    )


# --- /etc/rc by a real shell

AWKWARD = [
    "plain",
    "two words",
    "",
    "it's",
    "'",
    "''",
    '"double"',
    "$HOME",
    "`id`",
    "$(id)",
    "a\\b\\",
    "*",
    "~",
    "!!",
    "#",
    "-n",
    ";exit 3",
    "a\tb",
    "\x1b[31m",
    "é€😀",
    "&& false || true",
    "%s\\n",
]
SHOW = [sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))"]
MATRIX = {
    "entrypoint": ([*SHOW, *AWKWARD], [], [], AWKWARD),
    "cmd": ([], [*SHOW, *AWKWARD], [], AWKWARD),
    "both": ([*SHOW, *AWKWARD], ["cmd", *AWKWARD], [], [*AWKWARD, "cmd", *AWKWARD]),
    "entrypoint and arguments": ([*SHOW, "e"], ["not this"], AWKWARD, ["e", *AWKWARD]),
    "arguments alone": ([], ["not this"], [*SHOW, *AWKWARD], AWKWARD),
    "a word of several lines": ([*SHOW, "one\ntwo"], ["three\n"], [], ["one", "two", "three", ""]),
}


def evaluate(
    shell: str, rc: str, arguments: list[str], folder: Path, rc_local: str = RC_LOCAL
) -> subprocess.CompletedProcess[str]:
    """Run ``/etc/rc`` as ``enroot start`` does, but with ``/etc`` in a directory of the test."""
    (folder / "rc").write_text(rc.replace("/etc/rc.local", str(folder / "rc.local")))
    (folder / "rc.local").write_text(rc_local)
    command = [shell, str(folder / "rc"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("name", MATRIX)
def test_rc_passes_every_word_unchanged(shell: str, name: str, tmp_path: Path) -> None:
    entrypoint, cmd, arguments, expected = MATRIX[name]
    ended = evaluate(shell, texts(Entrypoint=entrypoint, Cmd=cmd)["etc/rc"], arguments, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == ascii(expected)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_rc_local_can_remove_entrypoint_as_pyxis_does(shell: str, tmp_path: Path) -> None:
    rc = texts(Entrypoint=["/no/such/program"])["etc/rc"]
    ended = evaluate(shell, rc, ["echo", "two words"], tmp_path, rc_local='exec "$@"\n')
    assert (ended.returncode, ended.stdout) == (0, "two words\n")


@pytest.mark.parametrize("name", ["plain", "two words", "$HOME", "`id`", "$(touch x)", '"; touch x; "', "a\\b", "it's"])
def test_rc_starts_in_working_directory_of_any_name(name: str, tmp_path: Path) -> None:
    directory = str(tmp_path / "work" / name)
    rc = texts(
        WorkingDir=directory, Cmd=[sys.executable, "-c", "import os; print(os.getcwd(), os.environ.get('OLDPWD'))"]
    )
    ended = evaluate("sh", rc["etc/rc"], [], tmp_path)
    assert (ended.returncode, ended.stdout) == (0, f"{directory} None\n"), ended.stderr
    assert not list(tmp_path.rglob("x"))


def test_rc_exits_with_1_without_working_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = evaluate("sh", texts(WorkingDir=f"{tmp_path}/file/below")["etc/rc"], ["true"], tmp_path)
    assert ended.returncode == 1


def test_labels_never_become_commands(tmp_path: Path) -> None:
    labels = {"a\ntouch x": "b\ntouch x", "c": "d\r\ntouch x"}
    ended = evaluate("sh", texts(Labels=labels)["etc/rc"], ["pwd"], tmp_path)
    assert ended.returncode == 0
    assert not Path("/x").exists()
    assert all(line.startswith("#") for line in texts(Labels=labels)["etc/rc"].split("\n\n")[0].splitlines())


@pytest.mark.peer("bash")
def test_words_are_quoted_as_in_bash() -> None:
    words = [word for word in AWKWARD if word.isprintable()]
    script = 'for word in "$@"; do printf "%s\\n" "${word@Q}"; done'
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    theirs = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, check=True, env=environment)
    assert theirs.stdout.decode().splitlines() == [quote(word) for word in words]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"Cmd": ["a\nb"]}, "several lines"),
        ({"Env": ["A=1\n2"]}, "and are left out: 'A'"),
        ({"Volumes": {"/a b": {}}}, "no plain absolute paths are left out: '/a b'"),
    ],
)
def test_warning_names_what_enroot_cannot_express(config: dict[str, Any], words: str) -> None:
    assert words in " ".join(Enroot().additions(image_of(**config), {}).warnings)


@pytest.mark.parametrize(
    "config",
    [{"WorkingDir": "relative"}, {"Cmd": ["a\0b"]}, {"Env": ["=x"]}, {"User": "\ud800"}],
)
def test_config_that_no_process_can_be_given_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(MalformedDocument):
        Enroot().required_files(image_of(**config))


# --- the image


@pytest.mark.peer("unsquashfs")
@pytest.mark.root
async def test_squashfs_for_enroot_has_one_owner_added_files_and_no_devices(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(
        registry,
        [
            folder("", 0o700),
            folder("etc", 0o700, uid=5),
            file("etc/rc", b"the image's own", uid=7, gid=8, mode=0o700),
            file("dev/leftover", b"1"),
            folder("closed", 0o111, uid=1000),
            file("closed/secret", b"2", mode=0o000, uid=1000),
            symlink("app", "srv/app"),
        ],
        config={"WorkingDir": "/app/deep", "Env": ["A=b"]},
    )
    async with fastpull.Client(settings) as client:
        await client.pull(reference, tmp_path / "image.sqsh", runtimes=["enroot"])
    tree = unsquash(tmp_path / "image.sqsh", tmp_path / "tree")
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in tree.rglob("*")} == {(0, 0)}
    assert os.listdir(tree / "dev") == []
    assert (tree / "srv/app/deep").is_dir()
    assert (tree / "app").is_symlink()
    assert (tree / "etc/environment").read_text() == "A=b\n"
    assert (tree / "etc/rc").read_text().startswith("# enroot-provenance: ")
    modes = {name: oct((tree / name).stat().st_mode & 0o7777) for name in ("etc/rc", "closed", "closed/secret")}
    assert modes == {"etc/rc": "0o644", "closed": "0o711", "closed/secret": "0o600"}
    assert {(tree / name).stat().st_mode & 0o7777 for name in ("etc/fstab", "etc/environment", "etc/rc.local")} == {
        0o644
    }


# --- enroot's command line

HEX = "a" * 64
URIS = {
    "docker://debian": ("docker.io/library/debian:latest", "", "debian.sqsh"),
    "docker://debian:12": ("docker.io/library/debian:12", "", "debian+12.sqsh"),
    "docker://library/debian:12": ("docker.io/library/debian:12", "", "debian+12.sqsh"),
    "docker://nvcr.io#nvidia/cuda:12.4": ("nvcr.io/nvidia/cuda:12.4", "", "nvidia+cuda+12.4.sqsh"),
    "docker://nvcr.io/nvidia/cuda:12.4": ("nvcr.io/nvidia/cuda:12.4", "", "nvidia+cuda+12.4.sqsh"),
    "docker://$oauthtoken@nvcr.io#nvidia/cuda": ("nvcr.io/nvidia/cuda:latest", "$oauthtoken", "nvidia+cuda.sqsh"),
    "docker://me@example.org@host:5000#a/b:c": ("host:5000/a/b:c", "me@example.org", "a+b+c.sqsh"),
    "docker://me@debian:12": ("docker.io/library/debian:12", "me", "debian+12.sqsh"),
    f"docker://debian@sha256:{HEX}": (f"docker.io/library/debian@sha256:{HEX}", "", f"debian+sha256+{HEX}.sqsh"),
    f"docker://host:5000#a:b@sha256:{HEX}": (f"host:5000/a:b@sha256:{HEX}", "", f"a+sha256+{HEX}.sqsh"),
}


@pytest.mark.parametrize("uri", URIS)
def test_enroot_uris_are_parsed(uri: str) -> None:
    found = EnrootUri.parse(uri)
    assert (str(found.reference), found.user, found.filename) == URIS[uri]


@pytest.mark.parametrize(
    "uri", ["debian", "dockerd://debian", "podman://debian", "docker://", "docker://A:b", "docker://#a"]
)
def test_invalid_enroot_uri_is_refused(uri: str) -> None:
    with pytest.raises(InvalidReference):
        EnrootUri.parse(uri)


def test_environment_overrides_settings_of_files(tmp_path: Path) -> None:
    (tmp_path / "enroot.conf").write_text(
        "#ENROOT_MAX_PROCESSORS 1\n"
        "ENROOT_CACHE_PATH /raid/user-$(id -u)/${NOTHING:-cache}\n"
        "ENROOT_MAX_CONNECTIONS=7\n"
        'ENROOT_SQUASH_OPTIONS "-comp zstd -Xcompression-level 3 -b 1M -no-fragments -weird"\n'
        "ENROOT_ALLOW_HTTP no\n"
        "https_proxy http://proxy:3128\n"
        "PATH /evil\n"
    )
    (tmp_path / "enroot.conf.d").mkdir()
    (tmp_path / "enroot.conf.d/site.conf").write_text("ENROOT_MAX_CONNECTIONS 9\nENROOT_MAX_PROCESSORS 3\n")
    found = EnrootSettings.load({"ENROOT_SYSCONF_PATH": str(tmp_path), "ENROOT_MAX_PROCESSORS": "5"})
    assert found.cache == f"/raid/user-{os.geteuid()}/cache/fastpull"
    assert (found.workers, found.connections, found.insecure) == ("5", "7", None)
    assert (found.compression, found.block_size, found.fragments) == ("zstd:3", "1M", False)
    assert found.environment == (("https_proxy", "http://proxy:3128"),)
    assert found.notes == ("ENROOT_SQUASH_OPTIONS: -weird has no equivalent and is ignored",)


@pytest.mark.parametrize(
    ("options", "compression", "notes"),
    [
        ("", None, 0),
        ("-comp lzo -noI -noF -noX -no-duplicates", None, 1),
        ("-comp lzo -noD -exit-on-error", "none", 0),
        ("-comp gzip -Xcompression-level 9", "gzip:9", 0),
        ("-comp lz4 -Xhc", "lz4", 1),
        ("-comp xz -processors 4", "xz", 0),
    ],
)
def test_squash_options_are_translated(options: str, compression: str | None, notes: int, tmp_path: Path) -> None:
    found = EnrootSettings.load({"ENROOT_SYSCONF_PATH": str(tmp_path), "ENROOT_SQUASH_OPTIONS": options})
    assert (found.compression, len(found.notes)) == (compression, notes)


@pytest.mark.parametrize("value", ["$(curl evil)", "`id`", "'unclosed"])
def test_no_shell_is_run_for_a_setting(value: str, tmp_path: Path) -> None:
    (tmp_path / "enroot.conf").write_text(f"ENROOT_CACHE_PATH {value}\n")
    with pytest.raises(InvalidSetting, match="line 1"):
        EnrootSettings.load({"ENROOT_SYSCONF_PATH": str(tmp_path)})


@pytest.mark.parametrize("off", ["n", "no", "N", "NO", "No", "f", "false", "F", "False", "FALSE"])
def test_false_values_are_those_of_enroot(off: str, tmp_path: Path) -> None:
    found = EnrootSettings.load({"ENROOT_SYSCONF_PATH": str(tmp_path), "ENROOT_ALLOW_HTTP": off})
    assert found.insecure is None


async def test_import_and_digest_behave_as_in_enroot(registry: FaultyRegistry, tmp_path: Path) -> None:
    reference = publish(registry, [file("a", b"1")], name="team/app", config={"Cmd": ["true"]})
    uri = "docker://" + reference.replace("/", "#", 1)
    cache, where = str(tmp_path / "cache"), tmp_path / "where"
    where.mkdir()
    under = [
        "env",
        "-C",
        str(where),
        f"ENROOT_SYSCONF_PATH={tmp_path}",
        "ENROOT_SQUASH_OPTIONS=-comp lzo",
    ]
    ended = await run("enroot", "import", "-a", "x86_64", "--", uri, cache=cache, under=under)
    assert (ended.code, ended.out) == (0, ""), ended.err
    assert os.listdir(where) == ["team+app+v1.sqsh"]
    assert all(line.startswith(("[INFO]", "[WARN]")) for line in ended.err.splitlines())
    assert "[WARN]" in ended.err
    again = await run("enroot", "import", uri, cache=cache, under=under)
    assert again.code == 31
    assert again.err.splitlines()[-1] == f"[ERROR] File already exists: {where}/team+app+v1.sqsh"
    named = await run("enroot", "import", f"--output={tmp_path}/named.sqsh", uri, cache=cache, under=under)
    assert (named.code, (tmp_path / "named.sqsh").exists()) == (0, True)
    digest = await run("enroot", "digest", uri, cache=cache, under=under)
    async with fastpull.Client(Settings.load(cache=cache)) as client:
        assert digest.out.strip() == str((await client.resolve(reference)).digest)
    elsewhere = tmp_path / "elsewhere"
    theirs = [*under, f"ENROOT_CACHE_PATH={elsewhere}"]
    assert (await run("enroot", "digest", uri, cache=cache, under=theirs)).code == 0
    assert not elsewhere.exists()  # FASTPULL_CACHE counts more
    assert (await run("enroot", "digest", uri, cache="", under=theirs)).code == 0
    assert os.listdir(elsewhere) == ["fastpull"]
    wrong = await run("enroot", "import", "--arch", "riscv64", uri, cache=cache, under=under)
    assert (wrong.code, "[ERROR]" in wrong.err) == (3, True)


async def test_settings_of_fastpull_override_those_of_enroot(registry: FaultyRegistry, tmp_path: Path) -> None:
    uri = "docker://" + publish(registry, [file("a", b"1")]).replace("/", "#", 1)
    (tmp_path / "fastpull").mkdir()
    (tmp_path / "fastpull/config.toml").write_text('block_size = "64K"\n')
    enroot = [f"ENROOT_SYSCONF_PATH={tmp_path}", "ENROOT_SQUASH_OPTIONS=-comp gzip -b 256K"]
    for number, (more, found) in enumerate(
        [
            ([], (1, 256 << 10)),
            ([f"XDG_CONFIG_HOME={tmp_path}"], (1, 64 << 10)),
            (["FASTPULL_COMPRESSION=xz"], (4, 256 << 10)),
        ]
    ):
        output, under = tmp_path / f"{number}.sqsh", ["env", *enroot, *more]
        ended = await run("enroot", "import", "-o", output, uri, cache=str(tmp_path / "cache"), under=under)
        assert ended.code == 0, ended.err
        made = superblock(output.read_bytes())
        assert (made["compressor"], made["block_size"]) == found


@pytest.mark.root
async def test_rootfs_for_enroot_starts_by_its_rc(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    """Run ``$SHELL /etc/rc`` in the root filesystem, as ``enroot start`` does, with the host's programs."""
    bash = Path(shutil.which("bash") or "")

    def run_it(*command: str | Path) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    libraries = run_it("ldd", bash).split()
    paths = {bash, *(Path(word) for word in libraries if word.startswith("/"))}
    members = [file(str(path).lstrip("/"), path.read_bytes(), mode=0o755) for path in sorted(paths)]
    config = {"Entrypoint": [str(bash), "-c", 'echo "$PWD: $*"', "entry"], "Cmd": ["it's", "cmd"], "WorkingDir": "/a b"}
    reference = publish(registry, members, config=config)
    async with fastpull.Client(settings) as client:
        await client.pull(reference, tmp_path / "rootfs", runtimes=["enroot"])
    start: list[str | Path] = ["unshare", "--mount", "chroot", tmp_path / "rootfs", bash, "/etc/rc"]
    assert run_it(*start) == "/a b: it's cmd\n"
    assert run_it(*start, "x y") == "/a b: x y\n"
