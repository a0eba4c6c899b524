"""One job on many nodes: every byte leaves the registry once, and what is made of a layer is made once.

::

    agree:      all ranks say what they were asked for ─> one error, or one rank a node and a cache of its own
    an image:   rank 0 resolves ─> documents to all ─> who has which stretches of which blobs?
    a stretch:  a rank asks rank 0 for one ─> fetches or reads it ─> windows down a chain of those who lack it
    a product:  windows down a tree of all others while one rank makes it ─> all have made the same ─> publish
    a rank:     windows ─> its own cache's partial blob ─> the engine, which verifies and publishes as on one node
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
