"""One job on many nodes: each byte leaves the registry once, and each layer is built once.

::

    agree:     all ranks say what they were asked for ─> one error, or one rank of each node works, with its own cache
    image:     rank 0 resolves ─> documents to all ─> which rank has which chunks of which blobs?
    chunk:     a rank leases one from rank 0 ─> fetches or reads it ─> frames down a tree of the ranks that lack it
    artifact:  one rank builds a layer ─> frames down a tree of all others ─> all outputs are equal ─> publish
    rank:      frames ─> the partial blob in its own cache ─> the pipeline, which verifies and publishes as on one node

`fastpull.cluster.messages` has the table of all control messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ClusterTerms
    from fastpull.cluster.root.cluster import Cluster
    from fastpull.cluster.root.report import ClusterReport, NodeReport
    from fastpull.cluster.transport.mpi import MpiFabric, open_mpi

__all__ = [
    "Cluster",
    "ClusterReport",
    "ClusterTerms",
    "MpiFabric",
    "NodeReport",
    "open_mpi",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.cluster.control.channel": ("ClusterTerms",),
            "fastpull.cluster.root.cluster": ("Cluster",),
            "fastpull.cluster.root.report": (
                "ClusterReport",
                "NodeReport",
            ),
            "fastpull.cluster.transport.mpi": (
                "MpiFabric",
                "open_mpi",
            ),
        },
    )
