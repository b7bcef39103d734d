"""What a lab cluster shall be: size, profile, folder."""

from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LONGEST_FOLDER = 80
"""A Unix socket's path may have 107 bytes, and the longest name below the folder takes 20 of them."""


class Profile(StrEnum):
    """How a lab cluster is set up."""

    FAST = "fast"
    """For the demo: short timeouts, no epilog, any user may start it."""

    PRODUCTION = "production"
    """For system tests: Slurm's own user, separate people, an epilog, timeouts near the defaults. Needs root."""


class ClusterSpec(BaseModel):
    """A lab cluster as ordered."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    """Everything of the cluster lies here. Absolute; no blanks, at most 80 characters."""

    nodes: int = Field(default=4, ge=1, le=100)
    """Nodes n1..nN, each with 16 CPUs, 64000 MB and 8 GPUs (all of it pretended)."""

    defined_nodes: int = Field(default=0, ge=0, le=10_000)
    """Further nodes d1..dN that slurm.conf defines and that nothing runs for: DOWN, in a partition `defined`."""

    profile: Profile = Profile.FAST

    accounting: bool | None = None
    """Run slurmdbd and MariaDB. None: as the profile has it (fast: no, production: yes)."""

    epilog_s: float = Field(default=3.0, ge=0)
    """How long the epilog takes on each node (production only)."""

    backup: bool = False
    """Run a second slurmctld that takes over when the first one dies. Needs root."""

    switches: int = Field(default=0, ge=0, le=100)
    """Leaf switches s1..sN under one, among which the nodes n1..nN are dealt out in turn; 0: no topology."""

    slurmctld_parameters: tuple[str, ...] = ()
    """Entries of `SlurmctldParameters`, such as `rl_enable` or `enable_expedited_requeue`."""

    @field_validator("folder")
    @classmethod
    def _usable(cls, folder: Path) -> Path:
        absolute = folder.expanduser().absolute()
        if len(str(absolute)) > LONGEST_FOLDER:
            raise ValueError(f"the folder's path is longer than {LONGEST_FOLDER} characters (Unix sockets): {absolute}")
        if any(sign in str(absolute) for sign in " \t\n\"'\\#,=$"):
            raise ValueError(f"the folder's path holds a sign that slurm.conf cannot: {absolute}")
        return absolute

    @model_validator(mode="after")
    def _production_has_accounting(self) -> Self:
        if self.profile is Profile.PRODUCTION and self.accounting is False:
            raise ValueError("the production profile needs accounting: Slurm keeps admin levels in its database")
        return self

    @property
    def with_accounting(self) -> bool:
        """Whether slurmdbd and MariaDB run."""
        return self.profile is Profile.PRODUCTION if self.accounting is None else self.accounting

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names n1..nN."""
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))
