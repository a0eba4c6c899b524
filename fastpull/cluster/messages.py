"""The control messages between the ranks of a job: one frozen dataclass for each, and the table of their use.

===================  ==========================  ================================================================
message              from → to                   when
===================  ==========================  ================================================================
`Hello`              every rank → rank 0         at the start
`JobStart`           rank 0 → every rank         all ranks said hello and agree
`Claims`             member → rank 0             the member tried to claim its cache and its outputs
`ClaimsAccepted`     rank 0 → members            no two ranks share a cache or an output
`Alive`              every rank ↔ rank 0         at least once a second
`RankWarned`         rank → rank 0               a warning for the user
`RankBroken`         rank → rank 0               the rank cannot go on with the job
`JobAborted`         rank 0 → every rank         the job cannot go on
`JobDone`            rank 0 → every rank         rank 0 has no further image
`ReadyToLeave`       every rank → rank 0         the rank has no further work
`JobEnd`             rank 0 → every rank         every rank is ready to leave, or lost
`ImageResolved`      rank 0 → members            rank 0 resolved the image, or could not
`ChunksHeld`         member → rank 0             a round of the exchange begins at this member
`ExchangePlan`       rank 0 → members            all members of the round said what they hold
`NewRound`           rank 0 → members            a member was dropped
`ChunkRequest`       member → rank 0             the member can fetch or read one more chunk
`ChunkLease`         rank 0 → member             the reply: a chunk, or none
`ChunkDelivered`     member → rank 0             the member has sent a leased chunk
`BlobRequest`        member → rank 0             the blob's host ignores ranges
`BlobLease`          rank 0 → member             the reply: whether this member fetches the whole blob
`LayerBuilt`         builder → rank 0            the builder completed the artifact of a layer
`LayersGathered`     member → rank 0             the member has the artifacts of all layers
`AssembleImage`      rank 0 → members            all members have all artifacts
`ImageAssembled`     member → rank 0             the member wrote its output, not yet published
`OutputVerdict`      rank 0 → members            all members assembled: which outputs differ
`ImageFailed`        member → rank 0             the member cannot go on with the image
`StopImage`          rank 0 → members            a member failed, and the job does not run with ``--best-effort``
`ImageFinished`      member → rank 0             the member is done with the image, also after an error
`ImageEnd`           rank 0 → members            all members are done with the image
===================  ==========================  ================================================================

The members are the ranks that work: one rank of each node. Bytes of blobs and of artifacts travel in frames, not in
messages; see `fastpull.cluster.transport.frame`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from fastpull.cluster.codec import from_json, to_json
from fastpull.errors import MalformedMessage


class Message:
    """The base class of all control messages."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ImageMessage(Message):
    """The base class of messages about an image.

    Attributes:
        image: the number of the image within the job.
    """

    image: int


@dataclass(frozen=True, slots=True)
class RoundMessage(ImageMessage):
    """The base class of messages about a round of an image's exchange.

    Attributes:
        round: the number of the round; a message of another round is ignored.
    """

    round: int


M = TypeVar("M", bound=Message)


# --- the job


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The identity of a rank, and what it was asked for.

    Attributes:
        host: the name of the rank's host.
        node: the lowest rank on the same node.
        version: the version of fastpull.
        asked: the values of options that have to be equal on all ranks, by name.
    """

    host: str
    node: int
    version: str
    asked: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobStart(Message):
    """The agreement of all ranks.

    Attributes:
        job: a name that no other job has.
        members: the ranks that work.
        hosts: the host names of all ranks.
    """

    job: str
    members: tuple[int, ...]
    hosts: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The outcome of one claim.

    Attributes:
        path: the claimed directory or file, as the user named it.
        owner: the rank that had claimed it before; None if the claim succeeded.
    """

    path: str
    owner: int | None


@dataclass(frozen=True, slots=True)
class Claims(Message):
    """The outcome of a rank's claims.

    Attributes:
        results: the outcomes, by what the path is for: ``cache`` or ``output``.
        error: the reason why a claim could not be made; empty if all could.
    """

    results: Mapping[str, ClaimResult]
    error: str = ""


@dataclass(frozen=True, slots=True)
class ClaimsAccepted(Message):
    """Permission to begin with the first image."""


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The progress of a rank with an image; any change counts as a sign of progress.

    Attributes:
        image: the number of the image within the job.
        available: bytes of blobs, or of layers built from them, that are on this rank.
        arrived: bytes of blobs that are on this rank.
        sent: bytes sent to other ranks.
        unpacked: compressed plus uncompressed bytes that were read from blobs.
    """

    image: int
    available: int
    arrived: int
    sent: int
    unpacked: int


@dataclass(frozen=True, slots=True)
class Alive(Message):
    """A heartbeat.

    Attributes:
        progress: the sender's progress; None from rank 0, and between images.
    """

    progress: TaskProgress | None = None


@dataclass(frozen=True, slots=True)
class RankWarned(Message):
    """A warning that rank 0 prints.

    Attributes:
        source: the image.
        text: the warning.
    """

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class RankBroken(Message):
    """A rank's request to end the job.

    Attributes:
        reason: the rank's error.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class JobAborted(Message):
    """The end of the job by an error.

    Attributes:
        reason: the error.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class JobDone(Message):
    """The end of all images, for ranks that do not work."""


@dataclass(frozen=True, slots=True)
class ReadyToLeave(Message):
    """A rank's consent to end MPI.

    Attributes:
        exit_code: the exit code that this rank would end with.
    """

    exit_code: int


@dataclass(frozen=True, slots=True)
class JobEnd(Message):
    """The end of the job.

    Attributes:
        exit_code: rank 0's exit code, for all ranks.
        is_whole: whether no rank is lost, so that MPI can be finalized.
    """

    exit_code: int
    is_whole: bool


# --- an image


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of one rank.

    Attributes:
        rank: the rank.
        reason: the error's message.
        exit_code: the exit code of the error's family.
    """

    rank: int
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class ImageDocument:
    """A manifest, index or config.

    Attributes:
        digest: its digest.
        body: its bytes, in base64.
    """

    digest: str
    body: str


@dataclass(frozen=True, slots=True)
class ImageDocuments:
    """The documents that resolve an image.

    Attributes:
        digest: the digest of the image's manifest.
        top: the digest that the reference names.
        ranks: the number of ranks that take part in the exchange.
        documents: the documents on the way from `top` to the image.
    """

    digest: str
    top: str
    ranks: int
    documents: tuple[ImageDocument, ...]


@dataclass(frozen=True, slots=True)
class ImageResolved(ImageMessage):
    """The outcome of rank 0's requests.

    Attributes:
        resolved: the documents; None after a failure.
        failure: rank 0's error; None if there is none.
    """

    resolved: ImageDocuments | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ImageFailed(ImageMessage):
    """An error that stops a member.

    Attributes:
        failure: the error.
    """

    failure: Failure


@dataclass(frozen=True, slots=True)
class StopImage(ImageMessage):
    """The order to stop work on an image.

    Attributes:
        failure: the first error of a member.
    """

    failure: Failure


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A member's report; see `fastpull.cluster.root.report.NodeReport` for the attributes."""

    resolve_seconds: float
    exchange_seconds: float
    fetched: int
    received: int
    sent: int
    built: tuple[int, ...]
    runs_received: int
    runs_sent: int
    assembled_seconds: float
    max_memory: int
    error: str
    cause_exit_code: int


@dataclass(frozen=True, slots=True)
class ImageFinished(ImageMessage):
    """The end of a member's work on an image.

    Attributes:
        report: the member's report.
        is_consequence: whether its error follows from another rank's, which rank 0 reports instead.
    """

    report: TaskReport
    is_consequence: bool


@dataclass(frozen=True, slots=True)
class ImageEnd(ImageMessage):
    """The end of an image on all ranks.

    Attributes:
        failure: the reason why the job does not have the image; None if it has.
    """

    failure: Failure | None = None


# --- the exchange of blobs


@dataclass(frozen=True, slots=True)
class ChunksHeld(RoundMessage):
    """The content of a member's cache at the start of a round.

    Attributes:
        chunks: for each chunk whether the member has it.
        wants: whether the member needs the blobs that it lacks.
        artifacts: for each layer whether the member has its artifact; None where it builds no layers with others.
    """

    chunks: tuple[bool, ...]
    wants: bool
    artifacts: tuple[bool, ...] | None = None


@dataclass(frozen=True, slots=True)
class MemberHolding:
    """What one member has and wants.

    Attributes:
        chunks: for each chunk whether the member has it.
        wanted_blobs: for each blob whether the member needs the chunks that it lacks.
        artifacts: as in `ChunksHeld`.
    """

    chunks: tuple[bool, ...]
    wanted_blobs: tuple[bool, ...]
    artifacts: tuple[bool, ...] | None


@dataclass(frozen=True, slots=True)
class ExchangePlan(RoundMessage):
    """The plan of a round.

    Attributes:
        holdings: what each member has and wants.
        sources: for each layer the rank that its artifact comes from; empty where no layers are built together.
    """

    holdings: Mapping[int, MemberHolding]
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewRound(ImageMessage):
    """The start of another round.

    Attributes:
        round: the number of the round.
    """

    round: int


@dataclass(frozen=True, slots=True)
class ChunkRequest(ImageMessage):
    """A request for a chunk to fetch or to read.

    Attributes:
        round: the number of the round.
    """

    round: int


@dataclass(frozen=True, slots=True)
class ChunkLease(RoundMessage):
    """The reply to `ChunkRequest`.

    Attributes:
        chunk: the number of the chunk; None where no chunk is left for this member.
    """

    chunk: int | None


@dataclass(frozen=True, slots=True)
class ChunkDelivered(RoundMessage):
    """The end of a lease.

    Attributes:
        chunk: the number of the chunk.
    """

    chunk: int


@dataclass(frozen=True, slots=True)
class BlobRequest(RoundMessage):
    """A request to fetch a whole blob, whose host ignores ranges.

    Attributes:
        blob: the number of the blob within the image.
    """

    blob: int


@dataclass(frozen=True, slots=True)
class BlobLease(RoundMessage):
    """The reply to `BlobRequest`.

    Attributes:
        blob: the number of the blob within the image.
        is_granted: whether this member fetches the blob.
    """

    blob: int
    is_granted: bool


# --- layers built together


@dataclass(frozen=True, slots=True)
class LayerBuilt(ImageMessage):
    """The completion of an artifact by its builder.

    Attributes:
        layer: the number of the layer.
    """

    layer: int


@dataclass(frozen=True, slots=True)
class LayersGathered(Message):
    """The arrival of all artifacts at a member.

    Attributes:
        image: the number of the image within the job.
    """

    image: int


@dataclass(frozen=True, slots=True)
class AssembleImage(Message):
    """Permission to assemble: no member will ask another for artifacts.

    Attributes:
        image: the number of the image within the job.
    """

    image: int


@dataclass(frozen=True, slots=True)
class ImageAssembled(ImageMessage):
    """The completion of a member's output.

    Attributes:
        fingerprint: the fingerprint of the output.
    """

    fingerprint: str


@dataclass(frozen=True, slots=True)
class OutputVerdict(ImageMessage):
    """The comparison of all outputs.

    Attributes:
        rejected: the members that must not publish.
        groups: for each of the different outputs its members, in words; empty if all are equal.
    """

    rejected: tuple[int, ...]
    groups: tuple[str, ...]


# --- the wire form

TYPES: Mapping[str, type[Message]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Message) and kind not in (Message, ImageMessage, RoundMessage)
}
"""All messages, by name."""


def encode(message: Message) -> bytes:
    """Return the wire form of a message."""
    return to_json(type(message).__name__, message)


def decode(content: bytes, sender: str) -> Message:
    """Return the message of a wire form.

    Args:
        content: the wire form.
        sender: the name of the rank that sent it.

    Raises:
        MalformedMessage: the type is unknown, or a field is missing, unknown or of a wrong type.
    """
    try:
        return from_json(content, TYPES)
    except (ValueError, RecursionError) as error:  # RecursionError: JSON that is nested too deeply
        raise MalformedMessage(sender, str(error)) from error
