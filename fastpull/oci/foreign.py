"""Content of registries that is no image, and unsupported layers: recognised by media type, for error messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """Valid content that fastpull cannot turn into a root filesystem.

    Attributes:
        name: name with its article.
        advice: tool that supports it, or what to pull in its place.
    """

    name: str
    advice: str


_FORMATS = (
    # part of a media type, format
    ("+encrypted", ForeignFormat("encrypted", "Decrypt it with skopeo copy --decryption-key, and pull the copy")),
    (".nydus.", ForeignFormat("a Nydus blob", "Pull the image that it was made of, often the tag without -nydus")),
    ("erofs", ForeignFormat("an EROFS image", "Pull the image that it was made of")),
    (".cncf.helm.", ForeignFormat("a Helm chart", "helm pull oci:// fetches it")),
    (".sylabs.sif", ForeignFormat("a SIF image", "apptainer pull oras:// fetches it")),
    ("wasm", ForeignFormat("a WebAssembly module", "A WebAssembly runtime fetches it")),
    (".cosign.", ForeignFormat("a signature", "cosign verify reads it; pull the image that it is for")),
    (".sigstore.", ForeignFormat("a signature", "cosign verify reads it; pull the image that it is for")),
    (".cncf.notary.", ForeignFormat("a signature", "notation verify reads it; pull the image that it is for")),
    ("in-toto", ForeignFormat("an attestation", "Pull the image that it is for")),
    ("spdx", ForeignFormat("a bill of materials", "oras pull fetches it; pull the image that it is for")),
    ("cyclonedx", ForeignFormat("a bill of materials", "oras pull fetches it; pull the image that it is for")),
    (".cncf.model.", ForeignFormat("a model", "modctl pull fetches it")),
    (".docker.ai.", ForeignFormat("a model", "docker model pull fetches it")),
    (".ollama.", ForeignFormat("a model", "ollama pull fetches it")),
)


def foreign_format(*types: str) -> ForeignFormat | None:
    """Return the format of the first known media type; None if all are unknown."""
    return next((found for one in types for part, found in _FORMATS if part in one.lower()), None)
