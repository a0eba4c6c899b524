"""The policy in a pull: a rejected image causes no request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fastpull
from fastpull.cli import main
from fastpull.config.settings import Settings
from fastpull.errors import Forbidden
from tests.support.layers import file, publish
from tests.support.registry import FaultyRegistry


def policy(tmp_path: Path, kind: str) -> str:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"default": [{"type": kind}]}))
    return str(path)


@pytest.mark.case("signatures", "a rejected image causes no request")
@pytest.mark.parametrize("kind", ["reject", "signedBy", "sigstoreSigned"])
async def test_rejected_image_causes_no_request(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, kind: str
) -> None:
    reference = publish(registry, [file("a")])
    strict = replace(settings, policy=policy(tmp_path, kind))
    async with fastpull.Client(strict) as client:
        with pytest.raises(Forbidden, match=reference):
            await client.pull(reference, tmp_path / "out")
        (report,) = await client.warm([reference])
        assert isinstance(report.error, Forbidden)
        with pytest.raises(Forbidden):
            await client.pull("oci:layout", tmp_path / "out")
        with pytest.raises(Forbidden):
            await client.ensure_squashfs(reference)
    assert registry.requests == []
    assert not (tmp_path / "out").exists()


@pytest.mark.case("signatures", "a rejected image may be inspected to verify its digest")
async def test_rejected_image_may_be_inspected_but_not_pulled(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a")])
    async with fastpull.Client(replace(settings, policy=policy(tmp_path, "signedBy"))) as client:
        image = await client.resolve(reference)
        with pytest.raises(Forbidden):
            await client.pull(image, tmp_path / "out")
        with pytest.raises(Forbidden):
            await client.ensure_squashfs(image)


async def test_policy_applies_to_cached_images(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("a")])
    async with fastpull.Client(replace(settings, policy=policy(tmp_path, "insecureAcceptAnything"))) as client:
        await client.pull(reference, tmp_path / "one")
        await client.ensure_squashfs(reference)
    async with fastpull.Client(replace(settings, policy=policy(tmp_path, "reject"))) as client:
        with pytest.raises(Forbidden):
            await client.pull(reference, tmp_path / "two")
        with pytest.raises(Forbidden):
            await client.ensure_squashfs(reference)


def test_command_line_names_policy_file_and_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["pull", "example.test/app:v1", "--cache", str(tmp_path / "cache"), "-o", str(tmp_path / "out")]
    assert main([*arguments, "--policy", policy(tmp_path, "reject")]) == 13
    assert "policy.json, default: reject, forbids: example.test/app:v1" in capsys.readouterr().err
    (tmp_path / "registries.conf").write_text('[[registry]]\nlocation = "example.test"\nblocked = true\n')
    assert main([*arguments, "--registries-conf", str(tmp_path / "registries.conf")]) == 13
    assert "'example.test', blocked = true, forbids: example.test/app:v1" in capsys.readouterr().err
    (tmp_path / "registries.conf").write_text("[[registry]\n")
    assert main([*arguments, "--registries-conf", str(tmp_path / "registries.conf")]) == 3
    assert "line 1" in capsys.readouterr().err
