"""Real programs that tests compare with."""

from __future__ import annotations

import subprocess
from pathlib import Path


def skopeo(*arguments: str | Path) -> None:
    """Runs skopeo."""
    subprocess.run(["skopeo", "--insecure-policy", *arguments], check=True, stdout=subprocess.DEVNULL)


def umoci_unpack(layout: Path, tag: str, bundle: Path) -> Path:
    """Unpacks with umoci, and returns the root filesystem."""
    subprocess.run(["umoci", "unpack", "--image", f"{layout}:{tag}", bundle], check=True, stdout=subprocess.DEVNULL)
    return bundle / "rootfs"
