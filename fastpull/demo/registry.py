"""A registry in this process, on a loopback address: the parts of the distribution specification that a pull needs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from fastpull.oci import media_types
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    import ssl

_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<version>[^/]+)")
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]*)")


class LoopbackRegistry:
    """Serves images from memory, as an async context manager.

    Args:
        tls: the TLS context for https; without it, plain http.

    Attributes:
        address: ``127.0.0.1:PORT``, while it runs.
        blobs: blobs by digest.
        manifests: media type and body by repository and tag or digest.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.address = ""
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def add_blob(self, content: bytes, media_type: str) -> dict[str, Any]:
        """Store a blob, and return its descriptor."""
        digest = str(Digest.of(content))
        self.blobs[digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def add_manifest(self, name: str, tag: str, manifest: dict[str, Any]) -> Digest:
        """Store a manifest or index under its tag and its digest."""
        body = json.dumps(manifest).encode()
        digest = Digest.of(body)
        for version in (tag, str(digest)):
            self.manifests[name, version] = (manifest["mediaType"], body)
        return digest

    def add_image(
        self,
        name: str,
        tag: str,
        layers: list[bytes],
        diff_ids: list[str],
        *,
        layer_type: str = media_types.OCI_LAYER + "+gzip",
        **config: Any,
    ) -> Digest:
        """Store an image of compressed layers, and return the digest of its manifest."""
        settings = {"os": "linux", "architecture": "amd64", "config": {}, **config}
        settings["rootfs"] = {"type": "layers", "diff_ids": diff_ids}
        manifest = {
            "schemaVersion": 2,
            "mediaType": media_types.OCI_MANIFEST,
            "config": self.add_blob(json.dumps(settings).encode(), media_types.OCI_CONFIG),
            "layers": [self.add_blob(layer, layer_type) for layer in layers],
        }
        return self.add_manifest(name, tag, manifest)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405)
        if request.path in ("/v2/", "/v2"):
            return web.json_response({})
        match = _PATH.fullmatch(request.path)
        if match is None:
            return self.refusal(404, "NOT_FOUND")
        if match["kind"] == "manifests":
            return await self.serve_manifest(request, match["name"], match["version"])
        return await self.serve_blob(request, match["name"], match["version"])

    async def serve_manifest(
        self,
        request: web.Request,  # noqa: ARG002
        name: str,
        version: str,
    ) -> web.StreamResponse:
        """Answer a request for a manifest."""
        found = self.manifests.get((name, version))
        if found is None:
            return self.refusal(404, "MANIFEST_UNKNOWN")
        media_type, body = found
        headers = {"Docker-Content-Digest": str(Digest.of(body)), "Content-Type": media_type}
        return web.Response(body=body, headers=headers)

    async def serve_blob(self, request: web.Request, name: str, digest: str) -> web.StreamResponse:  # noqa: ARG002
        """Answer a request for a blob, or a range of it."""
        content = self.blobs.get(digest)
        if content is None:
            return self.refusal(404, "BLOB_UNKNOWN")
        headers = {"Docker-Content-Digest": digest, "Content-Type": "application/octet-stream"}
        wanted = _RANGE.fullmatch(request.headers.get("Range", ""))
        if wanted is None:
            return web.Response(body=content, headers=headers)
        start = int(wanted[1])
        stop = min(int(wanted[2] or len(content)) + 1, len(content))
        if start >= stop:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(content)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return web.Response(status=206, body=content[start:stop], headers=headers)

    @staticmethod
    def refusal(status: int, code: str, headers: dict[str, str] | None = None) -> web.Response:
        """Return an error in the specification's form."""
        errors = {"errors": [{"code": code, "message": code.replace("_", " ").lower()}]}
        return web.json_response(errors, status=status, headers=headers)
