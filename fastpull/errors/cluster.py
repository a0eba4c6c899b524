"""The ranks of a job cannot work together."""

from __future__ import annotations

from dataclasses import dataclass

from fastpull.errors.base import FastpullError

# --- 40: the ranks of a job


class ClusterError(FastpullError):
    """The ranks of a job cannot work together."""

    exit_code = 40


@dataclass(eq=False)
class MpiError(ClusterError):
    """MPI is missing or fails."""

    reason: str
    advice: str = ""

    def _message(self) -> str:
        return f"MPI: {self.reason}"

    def _hint(self) -> str:
        return self.advice


@dataclass(eq=False)
class Disagreement(ClusterError):
    """The ranks of a job have different arguments, or outputs or caches that collide.

    Attributes:
        reason: the difference, with the ranks.
        advice: the next step.
    """

    reason: str
    advice: str = ""

    def _message(self) -> str:
        return self.reason

    def _hint(self) -> str:
        return self.advice


@dataclass(eq=False)
class RankFailed(ClusterError):
    """A rank failed.

    Attributes:
        rank: the rank's number.
        host: the rank's node.
        reason: the rank's own error.
        cause_exit_code: the exit code of that error.
    """

    rank: int
    host: str
    reason: str
    cause_exit_code: int = 1

    def _message(self) -> str:
        return f"rank {self.rank} on {self.host}: {self.reason}"


@dataclass(eq=False)
class RankLost(ClusterError):
    """Ranks died, hang, or are unreachable.

    Attributes:
        ranks: the ranks, each with its host.
        seconds: the time without a message or without progress.
        doing: the awaited work.
    """

    ranks: tuple[str, ...]
    seconds: float
    doing: str

    def _message(self) -> str:
        return f"no response from {', '.join(self.ranks)} for {self.seconds:.0f} s while {self.doing}"

    def _hint(self) -> str:
        return "Check these nodes, then run the job again; downloaded data stays in the caches"


@dataclass(eq=False)
class MalformedMessage(ClusterError):
    """A rank sent a control message that is unknown or malformed.

    Attributes:
        sender: the rank, with its host.
        reason: what is wrong with the message.
    """

    sender: str
    reason: str

    def _message(self) -> str:
        return f"malformed message from {self.sender}: {self.reason}"

    def _hint(self) -> str:
        return "Start the same build of fastpull on all nodes; report this if it is the same"


@dataclass(eq=False)
class OutputDiffers(ClusterError):
    """Ranks that had to make equal files made different ones.

    Attributes:
        source: the image.
        makers: for each different file, the ranks that made it.
    """

    source: str
    makers: tuple[str, ...]

    def _message(self) -> str:
        files = "; another: ".join(self.makers)
        return f"the nodes made different files of {self.source}: one: {files}"

    def _hint(self) -> str:
        return (
            "Check the memory and the disk of the node that differs; a different processor may also compress to other "
            "bytes. That node published nothing"
        )
