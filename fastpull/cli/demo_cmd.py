"""``fastpull demo``: pull a generated image from a registry in this process."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from typing import Any

import fastpull
from fastpull.cli.arguments import add_output_arguments
from fastpull.cli.console import console_for
from fastpull.cli.running import run
from fastpull.cli.words import plain, size_of
from fastpull.errors import OutputError

_EPILOG = """\
examples:
  fastpull demo
  fastpull demo --size 256 -o rootfs/      keep the result
"""


def add_verb(verbs: Any) -> None:
    """Add the verb to the command."""
    parser = verbs.add_parser(
        "demo",
        help="pull a generated image, without a network",
        description="Generate an image, serve it on a loopback address, pull it twice into a directory (cold, then "
        "from the cache), check every file, and print the times. Needs neither root nor a network.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", metavar="DIR/", help="directory for the root filesystem, which is kept")
    parser.add_argument("--size", metavar="MIB", type=int, default=64, help="size of the image's files (64)")
    add_output_arguments(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    return run(_demo(options))


async def _demo(options: argparse.Namespace) -> int:
    from fastpull import demo  # noqa: PLC0415  # loads a web server

    def say(words: str) -> None:
        if not options.quiet:
            print(words, file=sys.stderr, flush=True)

    started = time.monotonic()
    image = demo.make_image(options.size)
    stored = sum(map(len, image.layers))
    say(
        f"generated an image: {len(image.layers)} layers, {size_of(stored)}, {size_of(image.unpacked)} unpacked, "
        f"in {time.monotonic() - started:.1f} s"
    )
    say(f"  with {', '.join(image.features)}")
    with tempfile.TemporaryDirectory(prefix="fastpull-demo-") as folder:
        output = options.output or os.path.join(folder, "rootfs")
        async with demo.LoopbackRegistry() as registry:
            platform = fastpull.Platform.of_host()
            registry.add_image("fastpull/demo", "v1", image.layers, image.diff_ids, architecture=platform.architecture)
            reference = f"{registry.address}/fastpull/demo:v1"
            say(f"serving it as {reference}")
            settings = fastpull.Settings.load(cache=os.path.join(folder, "cache"))
            reports: list[fastpull.PullReport] = []
            console = console_for(options)
            for _ in ("cold", "cached"):
                if reports:
                    demo.remove_tree(output)  # outside the measured time
                with console:
                    async with fastpull.Client(settings, on_event=console.on_event) as client:
                        sink = fastpull.sink_for(output, form="dir")
                        reports.append(await client.pull(reference, sink))
        wrong = demo.check_tree(output, image, owners_kept=os.geteuid() == 0)
    for line in wrong:
        print(f"fastpull: wrong: {line}", file=sys.stderr)
    if wrong:
        raise OutputError(output, f"{len(wrong)} paths differ from the generated image")
    cold, cached = reports
    say(f"checked {len(image.expected)} paths and {cold.output.inodes} inodes: all correct")
    for name, report in (("cold", cold), ("cached", cached)):
        say(
            f"  {name:7} {report.seconds:6.2f} s   layers {report.layers_seconds:.2f}  merge {report.merge_seconds:.2f}"
            f"  commit {report.commit_seconds:.2f}   {size_of(report.unpacked / report.seconds)}/s unpacked"
        )
    console.result({"cold": plain(cold), "cached": plain(cached)}, "", str(cold.image.digest))
    return 0
