"""Other programs that tests compare with."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


def skopeo(*arguments: str | Path) -> None:
    """Run skopeo."""
    subprocess.run(["skopeo", "--insecure-policy", *arguments], check=True, stdout=subprocess.DEVNULL)


def umoci_unpack(layout: Path, tag: str, bundle: Path) -> Path:
    """Unpack with umoci, and return the root filesystem."""
    subprocess.run(["umoci", "unpack", "--image", f"{layout}:{tag}", bundle], check=True, stdout=subprocess.DEVNULL)
    return bundle / "rootfs"


def unsquash(image: Path, tree: Path) -> Path:
    """Extract a squashfs image with unsquashfs."""
    subprocess.run(
        ["unsquashfs", "-no-progress", "-quiet", "-dest", tree, image], check=True, stdout=subprocess.DEVNULL
    )
    return tree


@contextlib.contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    """Mount a squashfs image with the kernel."""
    place.mkdir()
    subprocess.run(["mount", "-t", "squashfs", "-o", "loop,ro", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def on_xfs(folder: Path) -> Iterator[Path]:
    """Mount an XFS filesystem, whose files can share blocks."""
    disk, place = folder / "xfs.img", folder / "xfs"
    place.mkdir()
    with disk.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", disk], check=True)
    subprocess.run(["mount", "-o", "loop", disk, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def mounted_by_user(image: Path, place: Path) -> Iterator[Path]:
    """Mount a squashfs image with squashfuse."""
    place.mkdir()
    process = subprocess.Popen(["squashfuse", "-f", image, place])
    try:
        while not place.is_mount():
            assert process.poll() is None, "squashfuse ended"
            time.sleep(0.01)
        yield place
    finally:
        subprocess.run(["umount", place], check=False)
        process.wait(30)
