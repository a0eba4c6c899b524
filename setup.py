"""Builds the native stage; everything else stands in pyproject.toml."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

native = Extension(
    "fastpull.native._native",
    ["native/_native.pyx"],
    depends=[str(part) for part in Path("native").glob("*.px[di]")],
    extra_compile_args=["-O3", "-g1", "-Wall", "-Wno-unused-function"],
)

setup(ext_modules=cythonize([native], build_dir="build/cython"))
