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
    """There is no MPI, or it fails."""

    reason: str
    advice: str = ""

    def _message(self) -> str:
        return f"MPI: {self.reason}"

    def _hint(self) -> str:
        return self.advice


@dataclass(eq=False)
class Disagreement(ClusterError):
    """Ranks of one job were started with different things, or in places that collide.

    Attributes:
        reason: what differs, with the ranks.
        advice: what to do next.
    """

    reason: str
    advice: str = ""

    def _message(self) -> str:
        return self.reason

    def _hint(self) -> str:
        return self.advice


@dataclass(eq=False)
class RankFailed(ClusterError):
    """A rank could not do its part.

    Attributes:
        rank: which.
        host: where it runs.
        reason: its own error.
        cause_exit_code: of that error's family.
    """

    rank: int
    host: str
    reason: str
    cause_exit_code: int = 1

    def _message(self) -> str:
        return f"rank {self.rank} on {self.host}: {self.reason}"


@dataclass(eq=False)
class RankLost(ClusterError):
    """Ranks have died, hang, or are cut off.

    Attributes:
        ranks: which, each with its host.
        seconds: for so long nothing was heard of them, or nothing came of them.
        doing: what was waited for.
    """

    ranks: tuple[str, ...]
    seconds: float
    doing: str

    def _message(self) -> str:
        return f"nothing from {', '.join(self.ranks)} for {self.seconds:.0f} s, while {self.doing}"

    def _hint(self) -> str:
        return "Look for what has become of them; what was downloaded stays in the caches, and is not fetched again"


@dataclass(eq=False)
class OutputDiffers(ClusterError):
    """Ranks that made the same file together have made different ones.

    Attributes:
        source: the image.
        makers: for each of the different files the ranks that made it, in words.
    """

    source: str
    makers: tuple[str, ...]

    def _message(self) -> str:
        files = ", another that of ".join(self.makers)
        return f"the nodes have made different files of {self.source}: one is that of {files}"

    def _hint(self) -> str:
        return (
            "The memory or the disk of the node that differs is at fault, or its processor compresses to other bytes; "
            "it has published nothing"
        )
