"""The native extension under AddressSanitizer and UndefinedBehaviorSanitizer, with coverage."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "fuzz"
LIBRARY = FOLDER / "_native.so"
_SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def build() -> None:
    """Build the extension for `load`, with gcc and the environment's Cython."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    common = ("gcc", "-c", "-fPIC", "-g", f"-I{sysconfig.get_path('include')}")
    traced = (*_SANITIZE, "-O1", "-fno-omit-frame-pointer", "-fsanitize-coverage=trace-pc", "-Wno-unused-function")
    for command in (
        (sys.executable, "-m", "cython", str(ROOT / "native/_native.pyx"), "-o", "_native.c"),
        (*common, *traced, "_native.c", "-o", "_native.o"),
        (*common, "-O2", str(Path(__file__).with_name("coverage.c")), "-o", "coverage.o"),
        ("gcc", "-shared", *_SANITIZE, "_native.o", "coverage.o", "-o", LIBRARY.name),
    ):
        subprocess.run(command, cwd=FOLDER, check=True)


def current_input(name: str, seed: int) -> Path:
    """Return the file with a target's current input, which survives a crash of the process."""
    return FOLDER / f"{name}-{seed}.input"


def environment() -> dict[str, str]:
    """Return environment variables for Python under the sanitizers, whose allocator also serves Python objects."""
    runtime = subprocess.run(("gcc", "-print-file-name=libasan.so"), capture_output=True, text=True, check=True)
    return {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:hard_rss_limit_mb=3072:quarantine_size_mb=16",  # Python leaks at exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def load() -> None:
    """Load the extension as `fastpull.native._native`; call it before the first import of that module."""
    spec = importlib.util.spec_from_file_location("fastpull.native._native", LIBRARY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fastpull.native._native"] = module
    spec.loader.exec_module(module)
