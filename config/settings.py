"""What an operator decides: read from defaults, a YAML file, and RELIGHT_* variables (the last wins)."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from relight.config.addresses import HttpRoot
from relight.config.approvals import ApprovalSettings
from relight.config.audit import AuditSettings
from relight.config.console import ConsoleSettings
from relight.config.log_store import LogStoreSettings
from relight.config.notify import NotifySettings
from relight.config.policy import PolicySettings
from relight.config.prices import PriceSettings
from relight.config.problems import Source, explain
from relight.config.reading import ConfigError, Document, Place, field_name, read
from relight.domain.human import Duration, Size
from relight.domain.policy_rules import Contradiction, contradictions

__all__ = ["CONFIG_VARIABLE", "ConfigError", "PolicySettings", "Settings", "load", "read_settings", "unknown_variables"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TemporalSettings(_Section):
    """Where Temporal is."""

    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    ui: str = ""


class Way(StrEnum):
    """By what Slurm is read and told."""

    AUTO = "auto"
    PYSLURM = "pyslurm"
    COMMANDS = "commands"
    SSH = "ssh"
    """Slurm's commands, at the other end of an SSH connection."""


class SshSettings(_Section):
    """An SSH connection. Host keys are checked; neither passwords nor ~/.ssh/config are used."""

    host: str = ""
    port: int = Field(default=22, ge=1, le=65535)
    user: str = ""
    key: str = ""
    agent: str = ""
    known_hosts: str = "~/.ssh/known_hosts"
    trust_on_first_use: bool = False
    jump: str = ""


class SlurmSettings(_Section):
    """How Slurm is reached."""

    way: Way = Way.AUTO
    conf: str = ""
    bin: str = ""
    timeout: Duration = timedelta(seconds=10)
    run_as: tuple[str, ...] = ()
    cpu_time_as: tuple[str, ...] = ()
    pyslurm_python: str = ""
    ssh: SshSettings = SshSettings()
    node_wrapper: tuple[str, ...] = ("sudo", "-n", "/usr/local/sbin/relight-node")
    submit_wrapper: tuple[str, ...] = ()
    """What submits as a job's user; `{user}` stands for that user. Empty: Relight submits nothing."""
    checkpoint_wrapper: tuple[str, ...] = ()
    """What changes which checkpoint a job goes on from, as the job's user; `{user}` stands for that user. Empty: only
    where Relight runs as root, or as that user."""
    node_ssh: SshSettings = SshSettings()

    @field_validator("submit_wrapper")
    @classmethod
    def _names_the_user(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and "{user}" not in value:
            raise ValueError('must hold "{user}", for example [sudo, -n, -u, "{user}", /usr/local/bin/relight-submit]')
        return value

    @field_validator("checkpoint_wrapper")
    @classmethod
    def _becomes_the_user(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and "{user}" not in value:
            raise ValueError('must hold "{user}", for example [sudo, -n, -u, "{user}", /usr/local/bin/relight-move]')
        return value

    @model_validator(mode="after")
    def _ssh_has_a_host(self) -> Self:
        if self.way is Way.SSH and not self.ssh.host:
            raise ValueError("way ssh needs ssh.host")
        return self


class LogSettings(_Section):
    """Where logs are."""

    over_ssh: bool = False
    store: LogStoreSettings = LogStoreSettings()
    kernel: str = ""
    catalogue: tuple[Path, ...] = ()
    progress: tuple[Path, ...] = ()

    @field_validator("kernel")
    @classmethod
    def _names_the_node(cls, value: str) -> str:
        if value and "{node}" not in value:
            raise ValueError("must contain {node}, for example /var/log/remote/{node}/kern.log")
        return value


class OutputSettings(_Section):
    """How long the kept outputs of failed attempts stay."""

    keep_for: Annotated[Duration, Field(ge=timedelta(hours=1), le=timedelta(days=3650))] = timedelta(days=30)
    keep_at_most: Annotated[Size, Field(ge=10**6, le=10**18)] = 50 * 10**9
    """Bytes of all together; the oldest go first, those of open incidents never."""


class LedgerSettings(_Section):
    """Where the ledger is."""

    url: str = ""
    key_file: str = ""


LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
MAX_PORT = 65535


class IngestSettings(_Section):
    """Where node agents and slurmctld's hook report to."""

    listen: str = ""
    """`host:port`; empty: nothing listens."""
    key_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False

    @field_validator("listen")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and not (host and port.isascii() and port.isdigit() and 0 <= int(port) <= MAX_PORT):
            raise ValueError("must be host:port, for example 127.0.0.1:8642 or [::]:8642")
        return value

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on; only where there are any."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @model_validator(mode="after")
    def _tokens_are_not_overheard(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together")
        if self.listen and not self.tls_cert and not self.insecure and self.address[0] not in LOOPBACK:
            raise ValueError(
                f"listen on {self.listen} without TLS: who overhears a token can speak for its node; "
                "set tls_cert and tls_key, or insecure: true where the network is yours alone"
            )
        return self


class PrometheusSettings(_Section):
    """A Prometheus server that scrapes DCGM's exporters."""

    url: HttpRoot = ""
    """Its root; empty: no GPU metrics are read."""
    token_file: str = ""
    """Holds a bearer token, or the password of `user`."""
    user: str = ""
    ca: str = ""
    tenant: str = ""
    node_label: str = Field(default="Hostname", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    selector: str = ""
    """Matchers that all series must fit."""
    period: Duration = Field(default=timedelta(seconds=5), ge=timedelta(seconds=1), le=timedelta(seconds=60))
    trusted: bool = False
    """Whether its metrics may drain a node."""

    @field_validator("selector")
    @classmethod
    def _is_a_list_of_matchers(cls, value: str) -> str:
        matcher = r'[A-Za-z_][A-Za-z0-9_]*(=|!=|=~|!~)"[^"\\{}]*"'
        if value and not re.fullmatch(f"{matcher}(,{matcher})*", value):
            raise ValueError('must be label matchers such as cluster="east",job=~"dcgm.*", without braces')
        return value


class MetricsSettings(_Section):
    """Where GPU metrics are read where no agent is."""

    prometheus: PrometheusSettings = PrometheusSettings()


class Reasons(StrEnum):
    """By which reasons a node's own platform repairs it."""

    NONE = "none"
    HYPERPOD = "hyperpod"
    """SageMaker HyperPod acts on `Action:Reboot` and `Action:Replace`."""


class CareSettings(_Section):
    """The care of nodes in quarantine; how they are checked is a setting of their agents."""

    reasons: Reasons = Reasons.NONE


class TelemetrySettings(_Section):
    """Where the worker's metrics can be read."""

    prometheus: str = ""
    """`address:port` of the page that a Prometheus server scrapes; empty: none."""

    @field_validator("prometheus")
    @classmethod
    def _is_an_ip_address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        try:
            good = not value or (ip_address(host.strip("[]")) and port.isascii() and 0 < int(port) <= MAX_PORT)
        except ValueError:
            good = False
        if not good:
            raise ValueError("must be an IP address and a port, for example 127.0.0.1:9464 or [::]:9464")
        return value


class Settings(BaseSettings):
    """Everything an operator decides for one cluster."""

    model_config = SettingsConfigDict(
        env_prefix="RELIGHT_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
    )

    cluster: str = Field(default="main", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    data: Path = Path("~/.relight")
    kill_switch: str = ""
    """A file: while it is there nothing is touched; empty: KILL in the data folder."""
    temporal: TemporalSettings = TemporalSettings()
    slurm: SlurmSettings = SlurmSettings()
    logs: LogSettings = LogSettings()
    outputs: OutputSettings = OutputSettings()
    ledger: LedgerSettings = LedgerSettings()
    ingest: IngestSettings = IngestSettings()
    metrics: MetricsSettings = MetricsSettings()
    care: CareSettings = CareSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    audit: AuditSettings = AuditSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    prices: PriceSettings = PriceSettings()
    console: ConsoleSettings = ConsoleSettings()
    notify: NotifySettings = NotifySettings()
    policy: PolicySettings = PolicySettings()

    @model_validator(mode="after")
    def _logs_have_a_host(self) -> Self:
        if self.logs.over_ssh and not self.slurm.ssh.host:
            raise ValueError("logs.over_ssh needs slurm.ssh.host")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Variables win over what the file (given as arguments) says; no .env file is read."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings

    @property
    def folder(self) -> Path:
        """The data folder, expanded."""
        return self.data.expanduser()

    @property
    def ledger_url(self) -> str:
        """SQLAlchemy address of the ledger."""
        return self.ledger.url or f"sqlite:///{self.folder / 'ledger.sqlite'}"

    @property
    def ledger_key(self) -> Path:
        """File of the ledger's HMAC key."""
        return Path(self.ledger.key_file).expanduser() if self.ledger.key_file else self.folder / "ledger.key"

    @property
    def kill_file(self) -> Path:
        """The kill switch: while this file is there, Relight only observes."""
        return Path(self.kill_switch).expanduser() if self.kill_switch else self.folder / "KILL"

    @property
    def approval_key(self) -> Path:
        """File of the site's own signing key, where nobody is listed: who may read it may approve."""
        return self.folder / "approval.key"

    @property
    def console_key(self) -> Path:
        """File of the key by which the web console signs: who may read it may speak for all it vouches for."""
        return Path(self.console.key_file).expanduser() if self.console.key_file else self.folder / "console.key"

    @property
    def console_tokens(self) -> Path:
        """File of the hashes of the tokens that people sign in with."""
        named = self.console.tokens_file
        return Path(named).expanduser() if named else self.folder / "console-tokens.json"

    @property
    def ingest_key(self) -> Path:
        """File of the key that node agents' tokens are made from: who may read it may speak for every node."""
        return Path(self.ingest.key_file).expanduser() if self.ingest.key_file else self.folder / "ingest.key"

    @property
    def task_queue(self) -> str:
        """Task queue of this cluster's controller workers."""
        return f"relight-{self.cluster}"

    @property
    def web_ui(self) -> str:
        """Address of the Temporal web UI, without a slash at the end."""
        if self.temporal.ui:
            return self.temporal.ui.rstrip("/")
        host, _, port = self.temporal.address.rpartition(":")
        # `temporal server start-dev` serves its UI 1000 ports above the server's.
        return f"http://{host or '127.0.0.1'}:{int(port) + 1000}" if port.isdigit() else ""


CONFIG_VARIABLE = "RELIGHT_CONFIG"


class _FromFile(Settings):
    """The same without variables."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What the file says alone."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def named_file(path: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file that is meant: the one given, or the one that RELIGHT_CONFIG names; None: none."""
    return path or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)


def load(path: Path | None = None, *, environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from the defaults, the file (or the one that RELIGHT_CONFIG names), and RELIGHT_* variables.

    Raises:
        ConfigError: unreadable file, YAML that does not parse, a key that does not exist, a value that is not
            accepted, a rule that can never count.
    """
    named = named_file(path, os.environ if environment is None else environment)
    return read_settings(named, read(named) if named else Document())


def read_settings(file: Path | None, document: Document, *, variables: bool = True) -> Settings:
    """Settings from the defaults, what the file says, and, where wanted, RELIGHT_* variables.

    Raises:
        ConfigError: as `load`.
    """
    source = Source(file, document, os.environ if variables else {})
    made = Settings if variables else _FromFile
    try:
        settings = made(**_merge(_defaults(), document.values))
    except ValidationError as error:
        raise ConfigError(explain(Settings, source, error)) from error
    except SettingsError as error:
        raise ConfigError(f"RELIGHT_* variables: {error}; a section or a list is written as JSON") from error
    if wrong := [_never_counts(source, each) for each in contradictions(settings.policy)]:
        raise ConfigError("\n".join(wrong))
    return settings


def _never_counts(source: Source, found: Contradiction) -> str:
    place: Place = ("policy", "rules", found.rule)
    earlier = f" ({source.where(('policy', 'rules', found.earlier))})" if found.earlier is not None else ""
    return f"{source.where(place)}: {field_name(place)}: {found.text}{earlier}"


def unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """RELIGHT_* variables that name no setting: most likely misspelt."""
    sections = {name for name, field in Settings.model_fields.items() if _is_section(field.annotation)}
    unknown = []
    for name in environment:
        # RELIGHT_LAB_* mark the lab's processes.
        if not name.startswith("RELIGHT_") or name.startswith("RELIGHT_LAB_") or name == CONFIG_VARIABLE:
            continue
        head, _, rest = name.removeprefix("RELIGHT_").lower().partition("__")
        known = head in Settings.model_fields and (not rest or head in sections)
        if not known:
            unknown.append(name)
    return tuple(sorted(unknown))


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _defaults() -> dict[str, Any]:
    text = resources.files("relight.config").joinpath("defaults.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
