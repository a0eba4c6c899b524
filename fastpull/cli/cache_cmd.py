"""``fastpull cache``: list, measure, verify and clean the cache."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import fastpull
from fastpull.cli.arguments import add_settings
from fastpull.cli.words import age_of, plain, size_of, table
from fastpull.errors import FastpullError, IntegrityError, printable

_EPILOG = """\
examples:
  fastpull cache ls                                  images, most recently used first
  fastpull cache ls --blobs                          layers, configs and manifests
  fastpull cache ls --finished                       squashfs images, and the job steps that use them
  fastpull cache du
  fastpull cache gc --max-size 200G --max-age 30d    as a nightly job
  fastpull cache verify                              read and hash all files
  fastpull cache rm debian:12 2d7a0e3f5c61

All actions are safe while pulls run.
"""


def add_verb(verbs: Any) -> None:
    """Add the verb and its actions to the command."""
    parser = verbs.add_parser(
        "cache",
        help="list, measure, verify and clean the cache",
        description="List, measure, verify and clean the cache.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(name, help=words, description=words.capitalize() + ".")
        add_settings(action, "cache")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run)
        return action

    listing = add("ls", _ls, "list the images in the cache")
    what = listing.add_mutually_exclusive_group()
    what.add_argument("--blobs", action="store_true", help="list blobs instead")
    what.add_argument("--finished", action="store_true", help="list finished squashfs images instead")
    add("du", _du, "show the disk space that the cache takes")
    collecting = add("gc", _gc, "remove orphans, and blobs and images by age and size, least recently used first")
    collecting.add_argument("--max-size", metavar="SIZE", help="keep at most this much, such as 200G")
    collecting.add_argument("--max-age", metavar="AGE", help="remove what was last used longer ago, such as 30d")
    collecting.add_argument("--pin-age", metavar="AGE", help="ignore pins of job steps that are older (30d)")
    verifying = add("verify", _verify, "read and hash all files, and remove damaged ones")
    removing = add("rm", _rm, "remove images by reference, or blobs by digest; a manifest's finished images as well")
    removing.add_argument(
        "names", metavar="NAME", nargs="+", help="a reference, a digest, or the first digits of one, as in cache ls"
    )
    for action in (collecting, verifying, removing):
        action.add_argument(
            "-n", "--dry-run", action="store_true", help="show what would be removed, and remove nothing"
        )
        action.add_argument("-q", "--quiet", action="store_true", help="print only errors and warnings")


def _ls(options: argparse.Namespace) -> int:
    cache = fastpull.cache.CacheManager(options.cache)
    if options.blobs:
        blobs = cache.blobs()
        rows = [(str(blob.digest), size_of(blob.size), age_of(blob.last_used)) for blob in blobs]
        _show(options, blobs, ("DIGEST", "SIZE", "LAST USED"), rows)
        return 0
    if options.finished:
        finished = cache.finished()
        files = [
            (
                image.source,
                image.platform,
                image.manifest.short,
                str(image.recipe.get("compression", "")),
                ", ".join(map(str, image.recipe.get("dialects", ()))) or "all",
                size_of(image.size),
                ", ".join(str(pin.holder) for pin in image.pins) or "-",
                age_of(image.last_used),
                image.path,
            )
            for image in finished
        ]
        head = ("SOURCE", "PLATFORM", "DIGEST", "COMPRESSION", "FOR", "SIZE", "USED BY", "LAST USED", "PATH")
        _show(options, finished, head, files)
        return 0
    images = cache.images()
    lines = [
        (
            image.reference,
            image.platform,
            image.digest.short,
            size_of(image.size),
            "complete" if image.present == image.size else f"{size_of(image.present)} here",
            size_of(image.finished) if image.finished else "no",
            age_of(image.last_used),
        )
        for image in images
    ]
    _show(options, images, ("REFERENCE", "PLATFORM", "DIGEST", "SIZE", "STATE", "FINISHED", "LAST USED"), lines)
    return 0


def _du(options: argparse.Namespace) -> int:
    cache = fastpull.cache.CacheManager(options.cache)
    usage = cache.usage()
    rows = [
        ("blobs", str(usage.blobs), size_of(usage.blob_bytes)),
        ("unfinished blobs", str(usage.partial), size_of(usage.partial_bytes)),
        ("finished images", str(usage.images), size_of(usage.image_bytes)),
        ("indexes", "", size_of(usage.index_bytes)),
        ("trash", "", size_of(usage.trash_bytes)),
        ("total", "", size_of(usage.total_bytes)),
    ]
    _show(options, {"root": cache.root, **plain(usage)}, ("WHAT", "NUMBER", "SIZE"), rows)
    return 0


def _gc(options: argparse.Namespace) -> int:
    removed = fastpull.cache.CacheManager(options.cache).collect(
        max_size=fastpull.config.parse_size(options.max_size) if options.max_size else None,
        max_age_seconds=fastpull.config.parse_age(options.max_age) if options.max_age else None,
        max_pin_seconds=fastpull.config.parse_age(options.pin_age or "30d"),
        dry_run=options.dry_run,
    )
    _tell_removed(options, removed)
    return 0


def _verify(options: argparse.Namespace) -> int:
    found = fastpull.cache.CacheManager(options.cache).verify(dry_run=options.dry_run)
    for digest in found.corrupt:
        print(f"fastpull: damaged: {digest}", file=sys.stderr)
    for kind, digests in (
        ("index", found.corrupt_indexes),
        ("seal", found.corrupt_seals),
        ("unfinished blob", found.corrupt_partials),
    ):
        for digest in digests:
            print(f"fastpull: damaged {kind} of: {digest}", file=sys.stderr)
    for path in found.corrupt_images:
        print(f"fastpull: damaged finished image: {printable(path)}", file=sys.stderr)
    for name in found.corrupt_refs:
        print(f"fastpull: damaged reference: {printable(name)}", file=sys.stderr)
    damaged = found.damaged
    if options.json:
        print(json.dumps(plain(found)))
    elif not options.quiet:
        done = "would be taken out" if options.dry_run else "taken out"
        state = f"{damaged} damaged, {done}" if damaged else "all sound"
        print(f"{found.blobs} blobs, {found.images} finished images, {size_of(found.size)}: {state}")
    return IntegrityError.exit_code if damaged else 0


def _rm(options: argparse.Namespace) -> int:
    cache = fastpull.cache.CacheManager(options.cache)
    removed, failures = fastpull.cache.Removed(), []
    for name in options.names:
        try:
            one = cache.remove(name, dry_run=options.dry_run)
        except FastpullError as error:
            print(f"fastpull: error: {error}", file=sys.stderr)
            failures.append(error.exit_code)
        else:
            removed.add(one)
    _tell_removed(options, removed)
    return failures[0] if failures else 0


def _tell_removed(options: argparse.Namespace, removed: fastpull.cache.Removed) -> None:
    if options.json:
        print(json.dumps(plain(removed)))
        return
    for path in removed.pinned:
        print(f"fastpull: in use, so it stays: {printable(path)}", file=sys.stderr)
    if options.quiet:
        return
    for blob in removed.blobs:
        print(f"{blob.digest}  {size_of(blob.size):>10}")
    for path in removed.stagings:
        print(f"{printable(path)}  left by a killed pull")
    for image in removed.images:
        print(f"{printable(image.path)}  {size_of(image.size):>10}")
    print(f"{'would free' if options.dry_run else 'freed'} {size_of(removed.freed_bytes)}", file=sys.stderr)


def _show(options: argparse.Namespace, value: object, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if options.json:
        print(json.dumps(plain(value)))
        return
    print("\n".join(table(head, rows)))
