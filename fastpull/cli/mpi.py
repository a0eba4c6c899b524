"""``--mpi``: run a verb on all nodes of an MPI job; rank 0 prints."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import fastpull
from fastpull.cli.console import QuietConsole, console_for
from fastpull.cli.running import Interrupted, run
from fastpull.cli.words import size_of
from fastpull.errors import FastpullError, InvalidSetting

if TYPE_CHECKING:
    from fastpull.cli.console import Console

    Work = Callable[[fastpull.Client, str, argparse.Namespace], Awaitable[tuple[Any, str, str]]]
    """Bring a source to this node; return the result, its words and its data for scripts."""

_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_SAME = (
    "platform",
    "format",
    "runtimes",
    "owner",
    "no_fragments",
    "mtime",
    "best_effort",
    "rank_is_node",
    "mpi_fan_out",
)
_SAME_SETTINGS = ("compression", "block_size", "pull", "keep_images")


def add_mpi_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for jobs on many nodes."""
    group = parser.add_argument_group("many nodes", "started by mpirun or srun, one rank a node; see docs/mpi.md")
    group.add_argument(
        "--mpi", action="store_true", help="fetch each byte from the registry once for all nodes of the MPI job"
    )
    group.add_argument("--best-effort", action="store_true", help="continue without a node that fails, dies or hangs")
    group.add_argument(
        "--mpi-timeout",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="count a silent rank as lost after this time (60)",
    )
    group.add_argument(
        "--mpi-stall",
        metavar="SECONDS",
        type=float,
        default=300.0,
        help="fail when nothing makes progress for this time (300)",
    )
    group.add_argument(
        "--mpi-fan-out", metavar="N", type=int, default=2, help="ranks to which each rank forwards data (2)"
    )
    group.add_argument(
        "--rank-is-node", action="store_true", help="treat every rank as a node, even several on one machine"
    )


def run_on_nodes(
    options: argparse.Namespace,
    settings: fastpull.Settings,
    sources: Sequence[str],
    work: Work,
    metrics: fastpull.metrics.Metrics,
    outputs: Sequence[str] = (),
    recipe: fastpull.sinks.Recipe | None = None,
) -> int:
    """Run a verb on all nodes of this process's MPI job, and return the job's exit code.

    Args:
        options: the command line's options.
        settings: this node's settings.
        sources: the images, in their order.
        work: the work on each image.
        metrics: this node's counters.
        outputs: paths that this node makes.
        recipe: the recipe of a squashfs image that all nodes make together.
    """
    if options.mpi_timeout <= 0 or options.mpi_stall <= 0:
        raise InvalidSetting("--mpi-timeout, --mpi-stall", "seconds must be above 0")
    if options.mpi_fan_out < 1:
        raise InvalidSetting(str(options.mpi_fan_out), "--mpi-fan-out must be at least 1")
    if options.password_stdin:
        raise InvalidSetting("--password-stdin", "only one rank has a standard input; use FASTPULL_PASSWORD")
    # MPICH's launcher sends it when a rank dies; the failure detector finds that as well
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    job = _Job(options, settings, sources, work, metrics, outputs, recipe)
    try:
        code = run(job.run())
    except Interrupted:
        job.abort(130)
        raise
    except FastpullError as error:
        if _is_first():
            raise
        return error.exit_code
    if not job.is_whole:
        job.abort(code)
    return code


def _is_first() -> bool:
    """Return whether the launcher's variables, which need no MPI, say rank 0 or nothing."""
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"


class _Job:
    """One rank's run.

    Attributes:
        is_whole: whether all ranks have ended normally.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        settings: fastpull.Settings,
        sources: Sequence[str],
        work: Work,
        metrics: fastpull.metrics.Metrics,
        outputs: Sequence[str],
        recipe: fastpull.sinks.Recipe | None,
    ) -> None:
        self._options = options
        self._settings = settings
        self._sources = sources
        self._work = work
        self._metrics = metrics
        self._outputs = outputs
        self._recipe = recipe
        self._fabric: fastpull.cluster.MpiFabric | None = None
        self._code = 0
        self.is_whole = True

    async def run(self) -> int:
        options = self._options
        fabric = self._fabric = await fastpull.cluster.open_mpi(options.mpi_timeout)
        with console_for(options) if fabric.rank == 0 else QuietConsole() as console:
            terms = fastpull.cluster.ClusterTerms(
                options.mpi_timeout, options.mpi_stall, options.best_effort, options.mpi_fan_out
            )
            cluster = fastpull.Cluster(
                fabric,
                self._settings.cache,
                terms,
                asked=self._asked(),
                outputs=self._outputs,
                each_rank=options.rank_is_node,
                on_event=console.on_event,
            )
            try:
                async with cluster:
                    if cluster.works:
                        await self._run_sources(cluster, console)
                    else:
                        await cluster.wait_until_done()
            except FastpullError as error:
                self._failed(error, cluster, console)
            code, self.is_whole = await cluster.leave(self._code)
        return code

    def abort(self, code: int) -> None:
        """Abort the MPI job, since some rank will not end by itself."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._fabric is not None:
            self._fabric.abort(code)

    def _asked(self) -> dict[str, str]:
        asked = {name: getattr(self._options, name, None) for name in _SAME}
        asked |= {name: getattr(self._settings, name) for name in _SAME_SETTINGS}
        asked["platform"] = asked["platform"] or fastpull.Platform.of_host()
        asked["sources"] = " ".join(self._sources)
        asked["output"] = bool(self._outputs)
        if self._recipe is not None:  # includes library versions and SOURCE_DATE_EPOCH
            asked |= self._recipe.facts("")
            asked["byte order"] = sys.byteorder
        return {name: str(value) for name, value in asked.items()}

    async def _run_sources(self, cluster: fastpull.Cluster, console: Console) -> None:
        on_event = self._metrics.beside(cluster.on_event)
        async with fastpull.Client(self._settings, on_event=on_event, cluster=cluster) as client:
            for source in self._sources:
                try:
                    work = partial(self._work, client, source, self._options)
                    result, report = await cluster.run(source, work)
                except FastpullError as error:
                    self._failed(error, cluster, console)
                    if cluster.is_broken:
                        return
                    continue
                if report is not None:
                    _, words, data = result or (None, "", f"{report.digest} {source}")
                    console.result(report, "\n".join(filter(None, (words, _words(report)))), data)

    def _failed(self, error: FastpullError, cluster: fastpull.Cluster, console: Console) -> None:
        self._code = self._code or error.exit_code
        if cluster.is_root or cluster.is_orphaned:
            console.failure(error)


def _words(report: fastpull.cluster.ClusterReport) -> str:
    done = [node for node in report.nodes if not node.error]
    words = [
        f"{report.source}: on {len(done)} of {len(report.nodes) + len(report.lost)} nodes",
        f"the first after {report.seconds_to_first:.1f} s, the last after {report.seconds_to_all:.1f} s",
        f"{size_of(report.registry_bytes)} from the registry for an image of {size_of(report.size)}",
        f"{size_of(report.exchanged_bytes)} between nodes",
    ]
    if report.run_bytes:
        words.append(f"and {size_of(report.run_bytes)} of layers that one node compressed for all")
    return ", ".join(words)
