"""A Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, with separate files and ports.

Each node has its own local disk at the same path, in a mount namespace. Needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.docker_registry import free_port
from tests.support.processes import ProcessResult

PROGRAMS = ("munged", "sbatch", "sbcast", "scancel", "sinfo", "slurmctld", "slurmd", "squeue", "srun")
NODES = ("n1", "n2")

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=2
Prolog={folder}/prolog.sh
PrologFlags=Alloc
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=n1,n2 Default=YES State=UP OverSubscribe=FORCE:8
"""


@dataclass
class Slurm:
    """A running cluster.

    Attributes:
        folder: folder of its configuration; ``folder/shared`` is shared by all nodes.
        local: path of the local disk, which differs on each node.
        environment: environment of commands.
    """

    folder: Path
    local: Path
    environment: dict[str, str] = field(default_factory=dict)

    async def start(self, *command: str | Path, **environment: str) -> asyncio.subprocess.Process:
        """Start a Slurm command."""
        return await asyncio.create_subprocess_exec(
            *map(str, command),
            env={**os.environ, **self.environment, **environment},
            cwd=self.folder / "shared",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *command: str | Path, **environment: str) -> ProcessResult:
        """Run a Slurm command to its end."""
        process = await self.start(*command, **environment)
        out, err = await asyncio.wait_for(process.communicate(), 90)
        return ProcessResult(process.returncode or 0, out.decode(), err.decode())

    async def batch(self, *command: str | Path, **environment: str) -> int:
        """Run a script with ``sbatch``, and return its exit code; ``sbatch --wait`` would poll rarely."""
        ended = await self.run("sbatch", "--parsable", *command, **environment)
        assert ended.code == 0, ended.err
        async with asyncio.timeout(90):
            while True:
                shown = await self.run("scontrol", "show", "job", ended.out.strip())
                state = re.search(r"JobState=(\w+)", shown.out)
                assert state is not None, shown
                if state[1] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
                    found = re.search(r"ExitCode=(\d+):", shown.out)
                    assert found is not None, shown
                    return int(found[1])
                await asyncio.sleep(0.1)

    async def job(self, name: str) -> str:
        """Wait for a running job by name, and return its number."""
        async with asyncio.timeout(60):
            while True:
                found = await self.run("squeue", "--noheader", f"--name={name}", "--states=running", "--format=%i")
                if found.out.strip():
                    return found.out.strip()
                await asyncio.sleep(0.05)

    def logs(self) -> str:
        """Return the logs of the daemons, for messages."""
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))


@contextlib.contextmanager
def slurm(folder: Path, prolog: str = "#!/bin/sh\nexit 0\n") -> Iterator[Slurm]:
    """Run a cluster.

    Args:
        folder: an existing empty folder.
        prolog: prolog script of each job on each node.
    """
    for name in ("state", "shared", "local", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    for path in (folder, *folder.parents):
        if path.stat().st_mode & 0o055 != 0o055:
            path.chmod(path.stat().st_mode | 0o055)
    (folder / "plugstack.conf").touch()
    (folder / "prolog.sh").write_text(prolog)
    (folder / "prolog.sh").chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    configuration = folder / "slurm.conf"
    with contextlib.ExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        configuration.write_text(_CONFIGURATION.format(host=socket.gethostname(), ports=ports, folder=folder))
        environment = {
            "SLURM_CONF": str(configuration),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LOCAL_DISK": str(folder / "local"),
            "USER": "root",
        }
        cluster = Slurm(folder, folder / "local", environment)
        munged = ["munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}"]
        munged += [f"--{what}-file={folder}/munge.{what}" for what in ("pid", "seed", "log")]
        stack.enter_context(_daemon([*munged, f"--socket={folder}/munge.sock"], environment, folder / "munged.out.log"))
        _wait((folder / "munge.sock").exists, cluster)
        stack.enter_context(_daemon(["slurmctld", "-D"], environment, folder / "slurmctld.out.log"))
        for node in NODES:
            own_disk = f'mount -t tmpfs none "{cluster.local}" && exec slurmd -D -N {node}'
            command = ["unshare", "--mount", "sh", "-c", own_disk]
            stack.enter_context(_daemon(command, environment, folder / f"slurmd-{node}.out.log"))
        _wait(lambda: _idle(cluster) == len(NODES), cluster)
        yield cluster


def _idle(cluster: Slurm) -> int:
    command = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
    environment = {**os.environ, **cluster.environment}
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    return sum(int(word) for word in ended.stdout.split())


def _wait(is_ready: Callable[[], bool], cluster: Slurm) -> None:
    for _ in range(600):
        if is_ready():
            return
        time.sleep(0.1)
    raise AssertionError(f"Slurm does not start:\n{cluster.logs()}")


@contextlib.contextmanager
def _daemon(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
