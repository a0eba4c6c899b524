"""The public names: which there are, where they are loaded from, and what importing them costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fastpull

ROOT = Path(fastpull.__file__).parent
PACKAGES = ["cache", "cluster", "config", "oci", "pipeline", "registry", "runtimes", "sinks", "telemetry"]
FACES = ["fastpull", *(f"fastpull.{name}" for name in PACKAGES)]
FORMER = (
    "ACCESS LIMITS METRICS RUNTIMES SETTINGS Access Additions Bottleneck Cache CacheManager CachedImage Client Cluster "
    "ClusterReport ClusterTerms CredentialLocation CredentialSearch Descriptor Dialect Digest Directory Effective "
    "EnrootSettings EnrootUri EnvironmentFile File FinishedImage Folder Frame Holder Image ImageConfig Importer "
    "Keyring Layer Limits ListedImage Manifest Metrics MpiFabric NodeReport OutputShape Place Platform PullReport "
    "Recipe Reference Removed RemovedImage RuntimeProfile Search Secret Setting Settings Sink SinkReport Squashfs "
    "SquashfsReport StageTime StoredBlob Tar Trace TraceFile Usage Verified WarmReport __version__ check_settings "
    "effective_settings open_mpi parse_age parse_size pull sink_for"
)
"""Every name that ``fastpull`` itself has had."""


def checked_imports(module: str) -> set[str]:
    """Return the public names that a face imports for type checkers; internal names have an alias."""
    tree = ast.parse((ROOT.parent / module.replace(".", "/") / "__init__.py").read_text())
    found = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    imports = [node for node in found if isinstance(node, ast.ImportFrom) and node.module != "fastpull"]
    return {alias.name for node in imports for alias in node.names if alias.asname is None}


def modules_after(code: str) -> set[str]:
    """Return the modules of fastpull that a new interpreter has loaded after some code."""
    listed = f"{code}\nimport sys\nprint(*(name for name in sys.modules if name.startswith('fastpull.')))"
    return set(
        subprocess.run([sys.executable, "-c", listed], check=True, capture_output=True, text=True).stdout.split()
    )


def test_the_face_is_small() -> None:
    assert len(fastpull.__all__) < 25


@pytest.mark.parametrize("name", FACES)
def test_every_public_name_loads_and_is_known_to_type_checkers(name: str) -> None:
    face = import_module(name)
    assert checked_imports(name) == set(face.__all__) - {"errors", "__version__"}
    for one in face.__all__:
        assert getattr(face, one) is not None


@pytest.mark.parametrize("name", FACES)
def test_dir_lists_the_public_names(name: str) -> None:
    face = import_module(name)
    assert dir(face) == sorted(face.__all__)


@pytest.mark.parametrize("name", FACES)
def test_unknown_names_are_attribute_errors(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = import_module(name).nothing


@pytest.mark.parametrize("name", FORMER.split())
def test_former_names_still_load(name: str) -> None:
    assert getattr(fastpull, name) is not None


def test_former_names_are_the_classes_of_today() -> None:
    assert getattr(fastpull, "Cache") is fastpull.cache.CacheManager  # noqa: B009  # type checkers do not know it
    assert getattr(fastpull.errors, "WindowDamaged") is fastpull.errors.FrameDamaged  # noqa: B009
    assert getattr(fastpull.errors, "RunDamaged") is fastpull.errors.LayerBlocksDamaged  # noqa: B009


@pytest.mark.parametrize("name", [*PACKAGES, "errors", "metrics", "progress"])
def test_public_packages_are_attributes_without_an_import(name: str) -> None:
    assert f"fastpull.{name}" in modules_after(f"import fastpull\nfastpull.{name}")


@pytest.mark.parametrize("name", FACES)
def test_importing_a_face_loads_no_other_module(name: str) -> None:
    assert modules_after(f"import {name}") <= {"fastpull._lazy", "fastpull._version", name}
