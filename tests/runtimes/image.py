"""The image that runtimes start: a real image with its own user, directory, environment and entrypoint."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from fastpull.layers.archive import archive
from tests.support.images.layouts import Layout
from tests.support.layers import Member, file, folder

REPORT = b"""\
#!/bin/sh
# prints what a process in the container sees
echo "arguments:$*"
echo "user:$(id -u):$(id -g)"
echo "groups:$(id -G)"
echo "directory:$(pwd)"
echo "GREETING:$GREETING"
echo "QUOTES:$QUOTES"
echo "PATH:$PATH"
echo "volume:$(cat /srv/volume/seed)"
echo "system:$(. /etc/os-release && echo $ID)"
"""
ENV = [
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/tools",
    "GREETING=hello world",
    'QUOTES=it\'s "quoted" = so',
]
USER, UID, GID, GROUPS = "app", 4321, 4322, (4322, 4400)
DIRECTORY = "/srv/work dir"
ENTRYPOINT = ["/usr/local/bin/report", "from entrypoint"]
CMD = ["from", "cmd"]
VOLUME = "/srv/volume"


def layer() -> list[Member]:
    """Return the top layer: the program, a user in existing files, and no working directory."""
    passwd = b"root:x:0:0:root:/root:/bin/sh\napp:x:4321:4322:An app:/home/app:/bin/sh\n"
    group = b"root:x:0:\ntty:x:5:\napp:x:4322:\nshared:x:4400:root,app\n"
    return [
        folder("usr/local/bin"),
        file("usr/local/bin/report", REPORT, mode=0o755),
        file("etc/passwd", passwd),
        file("etc/group", group),
        file("srv/volume/seed", b"of the image\n"),
    ]


def derive(base: Layout, members: list[Member], target: Path, **config: Any) -> str:
    """Write a layout with an image of another image's base layer and one more; return the name of the source.

    Args:
        base: the image below.
        members: of the layer on top.
        target: the layout, which is made.
        config: fields of the config's ``config``.
    """
    blobs = target / "blobs/sha256"
    blobs.mkdir(parents=True)
    lowest = base.blobs()[0]
    shutil.copyfile(lowest, blobs / os.path.basename(lowest))
    tar = archive(members)
    manifest = _read(base, base.facts()["manifest"])
    below = _read(base, manifest["config"]["digest"])
    layer = _put(blobs, gzip.compress(tar, 1, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip")
    diff_ids = [below["rootfs"]["diff_ids"][0], "sha256:" + hashlib.sha256(tar).hexdigest()]
    below["rootfs"]["diff_ids"] = diff_ids
    below.pop("history", None)
    below["config"] = config
    manifest["layers"] = [manifest["layers"][0], layer]
    manifest["config"] = _put(blobs, json.dumps(below).encode(), manifest["config"]["mediaType"])
    entry = _put(blobs, json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": "v1"}
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (target / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return f"oci:{target}:v1"


def _read(base: Layout, digest: str) -> Any:
    return json.loads(Path(base.path, "blobs", *digest.split(":")).read_bytes())


def _put(blobs: Path, content: bytes, media_type: str) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}
