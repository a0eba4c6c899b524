"""The store of images: ``python -m tests.support.images.store small full`` builds the missing ones.

Images stay as OCI layouts below `bench_folder`. `tests.support.images.recipes` lists them.
"""

from __future__ import annotations

import os
import sys

from tests.support.folders import make_folder, spread, temporary_folder
from tests.support.images.generated import Shape
from tests.support.images.image_builder import ImageBuilder
from tests.support.images.layouts import TAG, Layout, write_layout
from tests.support.images.recipes import IMAGES, Image, ImageRecipe, Recoding
from tests.support.programs import require, require_root, run
from tests.support.setup_errors import SetupError


def bench_folder() -> str:
    """Return the folder of images and runs: ``FASTPULL_BENCH_DIR``, or ``~/.cache/fastpull-bench``."""
    default = os.path.join(os.path.expanduser("~"), ".cache", "fastpull-bench")
    return os.path.abspath(os.environ.get("FASTPULL_BENCH_DIR") or default)


def find_image(text: str) -> Layout:
    """Return an image by name: one of `IMAGES`, built if missing, or ``oci:PATH:TAG``.

    Raises:
        SetupError: The name is unknown, or the build failed.
    """
    if text in IMAGES:
        return build(IMAGES[text])
    scheme, _, rest = text.partition(":")
    path, _, tag = rest.rpartition(":")
    if scheme != "oci" or not path or not tag:
        raise SetupError(f"unknown image {text!r}; use {', '.join(IMAGES)} or oci:PATH:TAG")
    return Layout(text, os.path.abspath(path), tag)


def build(image: Image) -> Layout:
    """Build an image and its base, unless they exist.

    Raises:
        SetupError: The process is not root, a program is missing, or the build failed. Only the log remains then.
    """
    folder = os.path.join(bench_folder(), "images")
    layout = Layout(image.name, os.path.join(folder, f"{image.name}-{image.version}"), TAG)
    if os.path.isdir(layout.path):
        return layout
    base = "" if isinstance(image, Shape) or not image.base else str(build(IMAGES[image.base]))
    spread(make_folder(folder))
    with temporary_folder(folder, "building-") as scratch:
        built, log_path = os.path.join(scratch, "layout"), layout.path + ".log"
        print(f"building the {image.name} image (once)", file=sys.stderr)
        match image:
            case Shape():
                write_layout(built, map(image.members, range(image.layers)))
            case Recoding():
                _recode(base, built, image.compression)
            case ImageRecipe():
                _build_recipe(image, base, built, log_path)
        os.rename(built, layout.path)
    return layout


def _recode(source: str, path: str, compression: str) -> None:
    require(("skopeo",))
    copy = ["skopeo", "--insecure-policy", "copy", "-q", "--dest-compress-format", compression]
    run([*copy, source, f"oci:{path}:{TAG}"])


def _build_recipe(recipe: ImageRecipe, base: str, path: str, log_path: str) -> None:
    require_root()
    require(("debootstrap", "buildah", "skopeo", "unshare"))
    print(f"log in {log_path}", file=sys.stderr)
    with open(log_path, "w", encoding="utf-8") as log:
        ImageBuilder(os.path.dirname(path), log).build(base, recipe.scripts, f"oci:{path}:{TAG}")


def main() -> int:
    """Build the images named on the command line."""
    try:
        for name in sys.argv[1:]:
            print(find_image(name))
    except SetupError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
