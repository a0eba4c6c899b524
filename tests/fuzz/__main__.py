"""``make fuzz``: fuzz each target in a separate process, and keep the findings."""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz import build

_NAMES = ("archive", "reference", "manifest", "content-range")


def main() -> int:
    parser = argparse.ArgumentParser("make fuzz", description="Fuzz the native extension and the parsers by coverage.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(_NAMES)} (default: all)")
    parser.add_argument("--seconds", type=float, default=60, help="time for each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="seed of the choices (default: a new seed)")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with its own seed (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="write new inputs to tests/fuzz/corpus")
    parser.add_argument("--input", metavar="FILE", help="run only this input, such as a finding")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if set(options.names) - set(_NAMES):
        parser.error(f"unknown target; use {', '.join(_NAMES)}")
    if options.jobs < 1 or (options.jobs > 1 and (options.keep or options.input)):
        parser.error("--jobs has to be at least 1, and exactly 1 with --keep or --input")
    if options.child:
        return _child(options)
    build.build()
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    return max([_fuzz(name, seed, options) for name in options.names or _NAMES])


def _fuzz(name: str, seed: int, options: argparse.Namespace) -> int:
    with ThreadPoolExecutor(options.jobs) as pool:
        return max(pool.map(lambda job: _run(name, seed + job, options), range(options.jobs)))


def _run(name: str, seed: int, options: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "tests.fuzz", "--child", name, "--seed", str(seed)]
    command += ["--seconds", str(options.seconds)]
    command += ["--keep"] * options.keep + (["--input", options.input] if options.input else [])
    environment = build.environment() if name == "archive" else dict(os.environ)
    current = build.current_input(name, seed)
    hangs = False
    try:
        failed = subprocess.run(command, env=environment, timeout=options.seconds + 120, check=False).returncode
    except subprocess.TimeoutExpired:
        failed = hangs = True
    if failed and not options.input and current.exists():
        found = build.FOLDER / f"{name}-{hashlib.sha256(current.read_bytes()).hexdigest()[:12]}"
        current.rename(found)
        end = "hangs" if hangs else "fails"
        print(f"{name}: 1 finding (seed {seed}), {end}: make fuzz ARGS='{name} --input {found}'", flush=True)
    return 1 if failed else 0


def _child(options: argparse.Namespace) -> int:
    (name,) = options.names
    if name == "archive":
        build.load()
    from tests.fuzz import loop, targets  # noqa: PLC0415  # imported after the sanitized extension is loaded

    if options.input:
        with open(options.input, "rb") as file:
            targets.TARGETS[name].check(file.read())
        print(f"{name}: nothing found")
    else:
        print(loop.fuzz(name, options.seed, options.seconds, options.keep), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
