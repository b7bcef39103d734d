"""The text of slurm.conf and its companions: pure functions of a plan.

Every daemon runs on one machine: loopback addresses, one port per slurmd, no cgroups, pretended hardware
(`config_overrides`), and a munged with a key and socket of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from relight.lab.spec import ClusterSpec, Profile

GPUS_PER_NODE = 8

CONTROLLER_HOSTS = ("relight-ctl1", "relight-ctl2")
CONTROLLER_ADDRESSES = ("127.0.0.1", "127.0.0.2")
"""Of slurmctld and its backup: both listen on one port, so each has a host name and an address of its own."""

DEFINED_PER_LINE = 250


@dataclass(frozen=True)
class Plan:
    """A spec plus what this machine decides: names, ports, users, versions."""

    spec: ClusterSpec
    host: str
    """Short host name: slurmctld refuses to run under another one."""
    port: int
    """slurmctld; then slurmdbd, then one slurmd after the other."""
    slurm_version: tuple[int, int]
    """Such as (22, 5) or (24, 11)."""
    slurm_user: str = "root"
    slurmd_user: str = "root"
    gpu_files: tuple[str, ...] = field(default=())
    """Eight character devices; slurmd takes nothing else for a GPU's `File=`."""

    @property
    def folder(self) -> Path:
        """The cluster's folder."""
        return self.spec.folder

    @property
    def munge_socket(self) -> Path:
        """The socket of this cluster's own munged."""
        return self.folder / "run/munge.socket"

    def node_port(self, number: int) -> int:
        """The port of the slurmd of node `number`, counted from 1."""
        return self.port + 1 + number


PORTS_BESIDE_NODES = 2


def node_address(number: int) -> str:
    """Return the loopback address of node `number`: slurmd binds 0.0.0.0, so all of 127/8 answers."""
    return f"127.0.1.{number}"


# MessageTimeout 3 with SlurmdTimeout 3: a dead node is DOWN about 6 s after its death (22.05).
FAST = """\
SlurmdTimeout={slurmd_timeout}
MessageTimeout=3
KillWait=2
MinJobAge=600
UnkillableStepTimeout=20
"""

BACKUP_TAKES_OVER_AFTER_S = 3

# Slurm's defaults, except SlurmdTimeout (300) and MessageTimeout (10): with 5 and 3 a dead node is DOWN after
# 9 to 13 s (22.05), which keeps a test of it bearable. cred_expire stays at its default too, so a requeued job
# is eligible 121 s later, as on a user's cluster.
PRODUCTION = """\
SlurmdTimeout={slurmd_timeout}
MessageTimeout=3
KillWait=30
MinJobAge=300
UnkillableStepTimeout=60
Epilog={folder}/etc/epilog.sh
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""


def slurm_conf(plan: Plan) -> str:
    """Return slurm.conf."""
    return _common(plan) + _profile(plan) + _accounting(plan) + _nodes(plan) + _partitions(plan)


def controller_conf(plan: Plan, name: str) -> str:
    """Return slurm.conf for that one of two controllers: a slurmctld ends the one whose pid file it finds."""
    own = slurm_conf(plan).replace("run/slurmctld.pid", f"run/{name}.pid")
    return own.replace("log/slurmctld.log", f"log/{name}.log")


def hosts(plan: Plan) -> str:
    """Return /etc/hosts as the controllers see it."""
    lines = zip(CONTROLLER_ADDRESSES, CONTROLLER_HOSTS, strict=True)
    return "".join(f"{address} {host}\n" for address, host in (("127.0.0.1", f"localhost {plan.host}"), *lines))


def gres_conf(plan: Plan) -> str:
    """Return gres.conf: eight devices that slurmd hands out as GPUs."""
    return f"AutoDetect=off\nNodeName={_all_nodes(plan)} Name=gpu File={','.join(plan.gpu_files)}\n"


def cgroup_conf(plan: Plan) -> str | None:
    """Return cgroup.conf, or None for a Slurm that does without: since 23.11 `disabled` must be said."""
    return "CgroupPlugin=disabled\n" if plan.slurm_version >= (23, 11) else None


def topology_conf(plan: Plan) -> str | None:
    """Return topology.conf: leaf switches s1..sN below `top`; None where the cluster has none."""
    count = plan.spec.switches
    if not count:
        return None
    names = plan.spec.node_names
    leaves = "".join(f"SwitchName=s{n + 1} Nodes={','.join(names[n::count])}\n" for n in range(count))
    return f"{leaves}SwitchName=top Switches=s[1-{count}]\n"


def slurmdbd_conf(plan: Plan) -> str:
    """Return slurmdbd.conf. libmariadb takes the socket of `localhost` from MYSQL_UNIX_PORT."""
    folder = plan.folder
    return f"""\
AuthType=auth/munge
AuthInfo=socket={plan.munge_socket}
DbdHost={plan.host}
DbdAddr=127.0.0.1
DbdPort={plan.port + 1}
SlurmUser={plan.slurm_user}
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""


def epilog(plan: Plan) -> str:
    """Return the epilog: it takes its time, as one that checks GPUs does, so jobs are seen COMPLETING."""
    return f"#!/bin/sh\nexec sleep {plan.spec.epilog_s:g}\n"


def _common(plan: Plan) -> str:
    folder = plan.folder
    # Below 5 cred_expire is ignored (seen); a requeued job waits it out, plus 1 s.
    cred_expire = ",cred_expire=5" if plan.spec.profile is Profile.FAST else ""
    return f"""\
ClusterName=lab
{_controllers(plan)}
SlurmctldPort={plan.port}
SlurmUser={plan.slurm_user}
SlurmdUser={plan.slurmd_user}
AuthType=auth/munge
AuthInfo=socket={plan.munge_socket}{cred_expire}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/nodes/%n/spool
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/nodes/%n/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0,sched_min_interval=0
PriorityType=priority/basic
ReturnToService=1
SlurmctldTimeout={BACKUP_TAKES_OVER_AFTER_S if plan.spec.backup else 10}
InactiveLimit=0
JobRequeue=1
GresTypes=gpu
SlurmdParameters=config_overrides
{_topology_plugin(plan)}{_slurmctld_parameters(plan)}"""


def _controllers(plan: Plan) -> str:
    if not plan.spec.backup:
        return f"SlurmctldHost={plan.host}(127.0.0.1)"
    hosts = zip(CONTROLLER_HOSTS, CONTROLLER_ADDRESSES, strict=True)
    lines = [f"SlurmctldHost={host}({address})" for host, address in hosts]
    # Else both would bind the port on all addresses.
    return "\n".join([*lines, "CommunicationParameters=NoCtldInAddrAny"])


def _topology_plugin(plan: Plan) -> str:
    return "TopologyPlugin=topology/tree\n" if plan.spec.switches else ""


def _slurmctld_parameters(plan: Plan) -> str:
    wanted = plan.spec.slurmctld_parameters
    return f"SlurmctldParameters={','.join(wanted)}\n" if wanted else ""


def _profile(plan: Plan) -> str:
    profile = FAST if plan.spec.profile is Profile.FAST else PRODUCTION
    return profile.format(folder=plan.folder, slurmd_timeout=_slurmd_timeout(plan))


def _slurmd_timeout(plan: Plan) -> int:
    # slurmctld 24.11 enters answers to its pings seconds late: with 5 or less, healthy nodes go DOWN (seen). With 8 a
    # dead node is DOWN after 10 to 18 s; with 3 it was 10 to 14 s.
    if plan.slurm_version >= (23, 11):
        return 8
    return 3 if plan.spec.profile is Profile.FAST else 5


def _accounting(plan: Plan) -> str:
    if not plan.spec.with_accounting:
        return (
            "AccountingStorageType=accounting_storage/none\n"
            f"JobCompType=jobcomp/filetxt\nJobCompLoc={plan.folder}/log/jobcomp.txt\n"
        )
    # AccountingStoragePass: without it the clients of slurmdbd look for munge's socket in /run/munge.
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={plan.port + 1}
AccountingStoragePass={plan.munge_socket}
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment,job_script,job_env
"""


HARDWARE = (
    f"CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=64000 Gres=gpu:{GPUS_PER_NODE}"
)


def _nodes(plan: Plan) -> str:
    real = (
        f"NodeName=n{number} NodeHostname={plan.host} NodeAddr={node_address(number)} Port={plan.node_port(number)}"
        f" {HARDWARE} State=UNKNOWN\n"
        for number in range(1, plan.spec.nodes + 1)
    )
    return "".join([*real, *_defined_nodes(plan.spec.defined_nodes)])


def _defined_nodes(count: int) -> Iterator[str]:
    # At addresses where nothing listens: a connection is refused at once.
    for block, first in enumerate(range(1, count + 1, DEFINED_PER_LINE)):
        last = min(first + DEFINED_PER_LINE - 1, count)
        addresses = f"127.1.{block}.[1-{last - first + 1}]"
        yield f"NodeName=d[{first}-{last}] NodeAddr={addresses} {HARDWARE} State=DOWN Reason=defined-only\n"


def _partitions(plan: Plan) -> str:
    nodes = f"Nodes={_all_nodes(plan)} MaxTime=INFINITE State=UP"
    defined = f"PartitionName=defined Nodes=d[1-{plan.spec.defined_nodes}]\n" if plan.spec.defined_nodes else ""
    if plan.spec.profile is Profile.FAST:
        return f"PartitionName=main Default=YES {nodes}\n{defined}"
    # A job in main preempts one in the two others: PREEMPTED for good, or requeued.
    return (
        f"PartitionName=main Default=YES PriorityTier=10 PreemptMode=OFF {nodes}\n"
        f"PartitionName=scavenger PriorityTier=1 PreemptMode=CANCEL {nodes}\n"
        f"PartitionName=scavenger-requeue PriorityTier=1 PreemptMode=REQUEUE {nodes}\n"
        f"{defined}"
    )


def _all_nodes(plan: Plan) -> str:
    return f"n[1-{plan.spec.nodes}]"
