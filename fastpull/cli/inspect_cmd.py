"""``fastpull inspect``: show an image's manifest, config and layers."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import fastpull
from fastpull.cli.arguments import SOURCE_HELP, add_client_arguments, add_verbose_argument, settings_of
from fastpull.cli.running import run
from fastpull.cli.words import image_summary, plain, size_of
from fastpull.errors import printable
from fastpull.progress import Event, Warned, ignore

_EPILOG = """\
examples:
  fastpull inspect debian:12
  fastpull inspect --json nvcr.io/nvidia/pytorch:24.01-py3 | jq .layers
  fastpull inspect --digest debian:12                          the digest that the tag means now
  fastpull inspect --raw oci:layout:v1 | sha256sum
  fastpull inspect --auth nvcr.io/nvidia/pytorch               the login that would be used
"""


def add_verb(verbs: Any) -> None:
    """Add the verb to the command."""
    parser = verbs.add_parser(
        "inspect",
        help="show manifest, config and layers",
        description="Show an image's manifest, config and layers. Fetches no layer.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print one JSON object")
    what.add_argument("--digest", action="store_true", help="print only the digest of the manifest")
    what.add_argument("--raw", action="store_true", help="print the bytes of the manifest")
    what.add_argument("--config", action="store_true", help="print the bytes of the config")
    parser.add_argument(
        "--auth",
        action="store_true",
        help="show which login would be used for SOURCE (a registry or an image), and where fastpull looks for one",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print no warnings")
    add_verbose_argument(parser, "-vv: show the debug log on stderr")
    add_client_arguments(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.auth:
        return _show_login(options)
    image = run(_resolve(options, settings_of(options)))
    if options.raw or options.config:
        sys.stdout.buffer.write(image.manifest.raw if options.raw else image.config.raw)
    elif options.digest:
        print(image.digest)
    elif options.json:
        print(json.dumps(image_summary(image), indent=2))
    else:
        print(_words(image))
    return 0


def _show_login(options: argparse.Namespace) -> int:
    registry, repository = _registry_and_repository(options.source)
    keyring = fastpull.registry.Keyring(settings_of(options).access)
    keyring.add_source_registry(registry)
    search = run(keyring.search(registry, repository))
    found = search.found
    if options.json:
        login = {"origin": found.origin, "username": found.username, "kind": found.kind} if found else None
        print(json.dumps({"subject": search.subject, "login": login, "places": plain(search.locations)}, indent=2))
        return 0
    shown = (
        f"{found.username or '(a token)'}, with the {found.kind} of {found.origin}"
        if found
        else "no login, anonymous access"
    )
    print(printable(f"{search.subject}: {shown}"))
    for place in search.locations:
        print(printable(f"  {place.name}: {place.outcome}"))
    return 0


def _registry_and_repository(text: str) -> tuple[str, str]:
    """Return host and repository of ``HOST``, ``HOST/NAMESPACE`` or a reference."""
    text = text.removeprefix("docker://")
    if "/" in text or "#" in text:
        reference = fastpull.Reference.parse(text)
        return reference.registry, reference.repository
    return fastpull.Reference.parse(f"{text}#any/name").registry, ""


async def _resolve(options: argparse.Namespace, settings: fastpull.Settings) -> fastpull.Image:
    on_event = ignore if options.quiet else _show_warning
    async with fastpull.Client(settings, on_event=on_event) as client:
        return await client.resolve(options.source, options.platform)


def _show_warning(event: Event) -> None:
    if isinstance(event, Warned):
        print(f"warning: {printable(event.source)}: {event.message}", file=sys.stderr)


def _words(image: fastpull.Image) -> str:
    config = image.config
    facts = {
        "Source": image.source,
        "Digest": str(image.digest),
        "Platform": str(image.platform),
        "Created": config.created or "",
        "Size": f"{size_of(image.size)} in {len(image.layers)} layers",
        "User": config.user,
        "Working dir": config.working_dir,
        "Entrypoint": " ".join(map(repr, config.entrypoint)),
        "Cmd": " ".join(map(repr, config.cmd)),
    }
    lines = [f"{name + ':':13}{printable(value)}" for name, value in facts.items() if value]
    lines += [f"{'Env:' if not number else '':13}{printable(value)}" for number, value in enumerate(config.env)]
    labels = [printable(f"{key}={value}") for key, value in config.labels]
    lines += [f"{'Labels:' if not number else '':13}{label}" for number, label in enumerate(labels)]
    lines += [
        f"{'Layers:' if not number else '':13}{layer.blob.digest}  {size_of(layer.blob.size):>10}"
        for number, layer in enumerate(image.layers)
    ]
    return "\n".join(lines)
