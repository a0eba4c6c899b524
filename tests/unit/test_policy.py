"""policy.json: which scope speaks for an image, and what fastpull makes of it, beside skopeo's judgement."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.config import paths
from fastpull.config.policy import Identity, Policy, load_policy
from fastpull.errors import Forbidden, InvalidSetting
from fastpull.oci.reference import Reference

DIGEST = "sha256:" + "c" * 64
ACCEPT = [{"type": "insecureAcceptAnything"}]
REJECT = [{"type": "reject"}]
SIGNED = [{"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/etc/pki/key.gpg"}]
SIGSTORE = [{"type": "sigstoreSigned", "keyPath": "/etc/pki/cosign.pub", "signedIdentity": {"type": "matchRepository"}}]


def parse(document: Any) -> Policy:
    return Policy.parse(document if isinstance(document, bytes) else json.dumps(document).encode(), "test.json")


def docker(reference: str) -> Identity:
    return Identity.of_reference(Reference.parse(reference))


def lets_in(policy: Policy, identity: Identity) -> bool:
    try:
        policy.check(identity)
    except Forbidden as error:
        assert error.exit_code == 13
        assert "test.json" in str(error)
        assert identity.name in str(error)
        return False
    return True


SCOPES = [
    ("example.com/team/app:v1", "example.com/team/app:v1", True),
    ("example.com/team/app:v1", "example.com/team/app:v2", False),
    ("example.com/team/app", "example.com/team/app:v1", True),
    ("example.com/team/app", "example.com/team/app2:v1", False),
    ("example.com/team", "example.com/team/app:v1", True),
    ("example.com/team", "example.com/teams/app:v1", False),
    ("example.com", "example.com/team/app:v1", True),
    ("example.com", "example.com:5000/team/app:v1", False),
    ("example.com:5000", "example.com:5000/team/app:v1", True),
    ("example.com", "a.example.com/app:v1", False),
    ("*.example.com", "a.example.com/app:v1", True),
    ("*.example.com", "b.a.example.com/app:v1", True),
    ("*.example.com", "a.example.com:5000/app:v1", True),
    ("*.example.com", "example.com/app:v1", False),
    ("*.com", "a.example.com/app:v1", True),
    ("*.com", "example.org/app:v1", False),
    ("docker.io/library/debian", "debian:12", True),
    ("docker.io", "debian:12", True),
    ("debian", "debian:12", False),
    ("", "example.com/app:v1", True),
    (f"example.com/app@{DIGEST}", f"example.com/app@{DIGEST}", True),
    (f"example.com/app@{DIGEST}", "example.com/app:v1", False),
    ("example.com/app", f"example.com/app@{DIGEST}", True),
]


@pytest.mark.case("signatures", "scopes of policy.json")
@pytest.mark.parametrize(("scope", "reference", "is_meant"), SCOPES)
def test_scope_matches_its_images(scope: str, reference: str, is_meant: bool) -> None:
    policy = parse({"default": REJECT, "transports": {"docker": {scope: ACCEPT}}})
    assert lets_in(policy, docker(reference)) == is_meant
    opposite = parse({"default": ACCEPT, "transports": {"docker": {scope: REJECT}}})
    assert lets_in(opposite, docker(reference)) != is_meant


@pytest.mark.peer("skopeo")
@pytest.mark.case("signatures", "the same decision as skopeo")
def test_policy_decision_equals_that_of_skopeo(tmp_path: Path) -> None:
    """skopeo looks at the policy only once it has the manifest: from a layout, then, with its paths as scopes."""
    layout = tmp_path / "images/layout"
    layout.parent.mkdir()
    empty = tmp_path / "empty.tar"
    subprocess.run(["tar", "-cf", empty, "-T", "/dev/null"], check=True)
    subprocess.run(["skopeo", "--insecure-policy", "copy", f"tarball:{empty}", f"oci:{layout}:v1"], check=True)
    found = []
    for scope, transport, is_meant in (
        (f"{layout}:v1", "oci", False),
        (f"{layout}:v2", "oci", False),
        (str(layout), "oci", True),
        (str(tmp_path / "images"), "oci", True),
        (str(tmp_path / "image"), "oci", False),
        (str(tmp_path), "oci", True),
        ("", "oci", True),
        ("", "docker", False),
    ):
        document = {"default": ACCEPT, "transports": {transport: {scope: REJECT}}}
        (tmp_path / "test.json").write_text(json.dumps(document))
        judged = subprocess.run(
            ["skopeo", "--policy", tmp_path / "test.json", "copy", f"oci:{layout}:v1", f"dir:{tmp_path / 'copy'}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert judged.returncode == 0 or "rejected by policy" in judged.stderr
        ours = lets_in(parse(document), Identity.of_path("oci", f"oci:{layout}:v1", str(layout)))
        assert ours == (judged.returncode == 0) == (not is_meant), scope
        found.append(ours)
    assert len(set(found)) == 2


@pytest.mark.case("signatures", "only the most specific scope applies")
def test_only_most_specific_scope_applies() -> None:
    scopes = {
        "": REJECT,
        "*.example.com": ACCEPT,
        "a.example.com": REJECT,
        "a.example.com/x": ACCEPT,
        "a.example.com/x:bad": REJECT,
    }
    policy = parse({"default": ACCEPT, "transports": {"docker": scopes}})
    assert [
        lets_in(policy, docker(reference))
        for reference in (
            "other.org/x:v1",
            "b.example.com/x:v1",
            "a.example.com/y:v1",
            "a.example.com/x:v1",
            "a.example.com/x:bad",
        )
    ] == [False, True, False, True, False]


@pytest.mark.case("signatures", "reject and insecureAcceptAnything")
def test_all_requirements_must_be_met() -> None:
    assert lets_in(parse({"default": ACCEPT + ACCEPT}), docker("a.com/b"))
    assert not lets_in(parse({"default": ACCEPT + REJECT}), docker("a.com/b"))


@pytest.mark.case("signatures", "a required signature fails closed and names the tool to verify it")
@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        (SIGNED, ["signedBy by /etc/pki/key.gpg", "skopeo copy docker://a.com/b:v1 oci:", "--policy"]),
        (SIGSTORE, ["sigstoreSigned by /etc/pki/cosign.pub", "cosign verify --key /etc/pki/cosign.pub a.com/b:v1"]),
        ([{"type": "signedBy", "keyType": "GPGKeys", "keyPaths": ["/k1", "/k2"]}], ["/k1 or /k2"]),
        (ACCEPT + SIGNED, ["signedBy"]),
    ],
)
def test_required_signature_fails_closed(requirements: Any, words: list[str]) -> None:
    with pytest.raises(Forbidden, match="fastpull does not verify") as caught:
        parse({"default": requirements}).check(docker("a.com/b:v1"))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_required_signature_of_layout_names_skopeo() -> None:
    with pytest.raises(Forbidden, match="skopeo copy"):
        parse({"default": SIGNED}).check(Identity.of_path("oci", "oci:x", "x"))


@pytest.mark.case("signatures", "a malformed policy rejects all images")
@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "no JSON"),
        (b'{"default": [{"type": "reject"}], "default": []}', "twice"),
        ({}, "'default'"),
        ({"default": []}, "no requirement"),
        ({"default": REJECT[0]}, "not a list"),
        ({"default": [{"type": "accept"}]}, "unknown requirement 'accept'"),
        ({"default": [{}]}, "'type' is missing"),
        ({"default": ACCEPT, "transport": {}}, "unknown name 'transport'"),
        ({"default": [{"type": "reject", "why": "x"}]}, "unknown name 'why'"),
        ({"default": [{"type": "insecureAcceptAnything", "keyPath": "x"}]}, "unknown name 'keyPath'"),
        ({"default": ACCEPT, "transports": {"docker": []}}, "not an object"),
        ({"default": ACCEPT, "transports": {"docker": {"a.com": []}}}, "no requirement for 'a.com'"),
    ],
)
def test_malformed_policy_rejects_all_images(document: Any, reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason) as caught:
        parse(document)
    assert "test.json" in str(caught.value)


@pytest.mark.case("signatures", "without a policy file all images are accepted")
def test_user_policy_replaces_system_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "SYSTEM_DIRECTORY", str(tmp_path / "etc"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    load_policy().check(docker("a.com/b"))
    for path, requirements, is_in in (
        (tmp_path / "etc/containers/policy.json", REJECT, False),
        (tmp_path / "home/.config/containers/policy.json", ACCEPT, True),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"default": requirements}))
        if is_in:
            load_policy().check(docker("a.com/b"))
        else:
            with pytest.raises(Forbidden):
                load_policy().check(docker("a.com/b"))
    with pytest.raises(Forbidden):
        load_policy(str(tmp_path / "etc/containers/policy.json")).check(docker("a.com/b"))
    with pytest.raises(InvalidSetting, match="nonexistent"):
        load_policy("/nonexistent")


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.sampled_from(["reject", "insecureAcceptAnything", "signedBy", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["default", "transports", "docker", "type", "", "a.com"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_any_document_parses_as_policy_or_raises_typed_error(document: Any) -> None:
    try:
        policy = parse(document)
    except InvalidSetting:
        return
    lets_in(policy, docker("a.com/b"))
