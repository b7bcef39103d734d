"""The package as users get it: wheel, sdist and editable install; and the container set-up that is made of it."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from relight.config import settings

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
PACKAGES: list[str] = SETUPTOOLS["packages"]
INNER = [package.removeprefix("relight.").replace(".", "/") for package in PACKAGES]
"""Every package's folder."""
FOLDERS = [folder for folder in INNER if "/" not in folder]
"""Those at the top, of which the others are parts."""
TOP = [f"relight.{folder}" for folder in FOLDERS]
COMMANDS = ("worker", "incidents", "show", "why", "approve", "reject", "diagnose", "catalogue", "doctor", "lab")

IMPORT_ALL = """
import importlib, pkgutil, sys
folders = sys.argv[1:]
for folder in folders:
    package = importlib.import_module(f"relight.{folder}")
    for module in pkgutil.walk_packages(package.__path__, f"relight.{folder}."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"torch", "hyperscan"}:
                raise
print(sorted({name.partition(".")[0] for name in sys.modules} & set(folders)))
"""


def run(*command: str | Path, cwd: Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with this process's environment and the given variables; fail with what it said."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if check and done.returncode:
        shown = " ".join(map(str, command))[:200]
        pytest.fail(f"{shown}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done


def files_of_packages() -> set[str]:
    """Every file in a package folder, as its path in the wheel."""
    return {
        f"relight/{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


# What the lists in pyproject.toml say


def test_every_folder_with_an_init_is_listed_as_a_package() -> None:
    """A folder that is missing from the list would work here and be absent from the wheel."""
    top = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    found = {
        path.parent.relative_to(ROOT).as_posix() for folder in top for path in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(INNER) == sorted(found)
    assert SETUPTOOLS["package-dir"] == {f"relight.{folder}": folder for folder in top}


def test_the_tools_know_every_package() -> None:
    """mypy, import-linter and ruff's ban on bare names cover the same folders as the wheel."""
    tool = PYPROJECT["tool"]
    assert sorted(tool["mypy"]["packages"]) == sorted(TOP)
    assert sorted(tool["importlinter"]["root_packages"]) == sorted(TOP)
    assert sorted(tool["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == sorted(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_package_is_typed(folder: str) -> None:
    """`relight` is a namespace, so each folder carries its own py.typed, which covers what is in it (PEP 561)."""
    assert (ROOT / folder / "py.typed").is_file()
    inner = {path.parent for path in (ROOT / folder).rglob("*.py") if path.parent.name != "__pycache__"}
    assert {path.relative_to(ROOT).as_posix() for path in inner} <= set(INNER)


def test_constraints_pin_each_dependency() -> None:
    """Every requirement of every extra has a pinned version."""
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if "==" in line}
    assert all("==" in line or line.startswith("#") or not line for line in lines)
    names = {
        one.split(";")[0].split("[")[0].split(">")[0].split("<")[0].split("=")[0].strip().lower() for one in wanted
    }
    assert names <= pinned


# The package itself


def test_no_bare_name_is_imported() -> None:
    """From the repository's root `import config` would work and make a second copy of each class: nobody does."""
    done = run(sys.executable, "-c", IMPORT_ALL, *FOLDERS, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@dataclass(frozen=True)
class Built:
    """What a release consists of."""

    tree: Path
    """A copy of the repository, so that no build output is left in it or taken from it."""
    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Wheel and sdist of this tree, and the wheel that the sdist makes."""
    folder = tmp_path_factory.mktemp("package")
    tree = folder / "tree"
    wanted = [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    wanted += [ROOT / name.removeprefix("relight/") for name in sorted(files_of_packages())]
    for file in wanted:
        copy = tree / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    build = (sys.executable, "-W", "ignore", "-m", "build")
    run(*build, "--wheel", "--outdir", folder / "direct", tree, cwd=folder)
    # Without --wheel or --sdist: the sdist, and the wheel from what the sdist holds.
    run(*build, "--outdir", folder / "release", tree, cwd=folder)
    return Built(
        tree=tree,
        wheel=next((folder / "direct").glob("*.whl")),
        sdist=next((folder / "release").glob("*.tar.gz")),
        wheel_of_sdist=next((folder / "release").glob("*.whl")),
    )


def contents(wheel: Path) -> dict[str, bytes]:
    """A wheel's files, without its record of hashes."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
        return {name: archive.read(name) for name in names}


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages(built: Built) -> None:
    """Modules, catalogues, defaults, scripts and py.typed all arrive, and nothing else does."""
    names = {name for name in contents(built.wheel) if not name.partition("/")[0].endswith(".dist-info")}
    assert names == files_of_packages()


@pytest.mark.slow
def test_the_sdist_makes_the_same_wheel(built: Built) -> None:
    """Who builds from the source archive gets what we built from the repository."""
    assert contents(built.wheel_of_sdist) == contents(built.wheel)
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


def environment(folder: Path, *install: str | Path) -> Path:
    """Make a fresh environment with only Relight installed in it; what it depends on is borrowed from this one."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    run(folder / "bin/python", "-m", "pip", "install", "--no-input", "--no-deps", "-q", *install, cwd=folder.parent)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
    return folder / "bin"


@pytest.fixture(scope="session")
def strangers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training repository that owns our folders' bare names; importing any of them fails loudly."""
    folder = tmp_path_factory.mktemp("training")
    for name in FOLDERS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('the wrong package was imported')\n")
    return folder


INSTALLS = ("wheel", "sdist", "editable")


@pytest.fixture(scope="session", params=INSTALLS)
def installed(request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment in which Relight was installed in one of the three ways."""
    ways = {"wheel": (built.wheel,), "sdist": (built.sdist,), "editable": ("-e", built.tree)}
    return environment(tmp_path_factory.mktemp("installed") / request.param, *ways[request.param])


@pytest.mark.slow
def test_the_command_runs_beside_a_strangers_packages(installed: Path, strangers_folder: Path) -> None:
    """`relight` works where the current folder and PYTHONPATH own packages with our folders' names."""
    top = run(installed / "relight", "--help", cwd=strangers_folder, PYTHONPATH=str(strangers_folder))
    missing = [command for command in COMMANDS if command not in top.stdout]
    assert not missing
    one = run(installed / "relight", "diagnose", "--help", cwd=strangers_folder, PYTHONPATH=str(strangers_folder))
    assert "diagnose" in one.stdout


@pytest.mark.slow
def test_an_install_is_complete(installed: Path, tmp_path: Path) -> None:
    """Each module imports, from the new install and not from here, and the shipped data can be read."""
    where = "import relight.config as it; print(it.__file__)"
    code = f"{IMPORT_ALL}\n{where}\nfrom relight.config.settings import load; print(load().policy.mode)"
    names, file, mode = run(installed / "python", "-c", code, *FOLDERS, cwd=tmp_path).stdout.splitlines()
    assert names == "[]"
    assert not Path(file).is_relative_to(ROOT)
    assert mode == "monitor"


# The containers

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
ONCE = {"temporal-schema", "temporal-namespace", "ledger-database"}


def test_compose_runs_what_production_needs() -> None:
    """Temporal with its UI on PostgreSQL, a ledger database beside it, and the worker."""
    assert set(SERVICES) == {"postgres", "temporal", "temporal-ui", "worker"} | ONCE
    for name in ("postgres", "temporal", "worker"):
        assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert {"postgres", "relight"} == set(COMPOSE["volumes"])
    assert SERVICES["worker"]["depends_on"] == {
        "temporal-namespace": {"condition": "service_completed_successfully"},
        "ledger-database": {"condition": "service_completed_successfully"},
    }


def test_compose_waits_for_steps_that_end_and_for_services_that_answer() -> None:
    """A service waits for the end of what runs once, and for the health of what goes on."""
    for service in SERVICES.values():
        for name, wait in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if name in ONCE else "service_healthy"
            assert wait == {"condition": expected}
            assert name in ONCE or "healthcheck" in SERVICES[name]


def test_compose_sets_only_settings_that_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker's variables are read into the settings as meant, and its mode is monitor."""
    given = {name: value for name, value in SERVICES["worker"]["environment"].items() if name.startswith("RELIGHT_")}
    given["RELIGHT_CLUSTER"] = "test"
    assert settings.unknown_variables(given) == ()
    for name in [name for name in os.environ if name.startswith("RELIGHT_")]:
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RELIGHT_DATA", str(tmp_path))
    read = settings.load()
    assert read.policy.mode == "monitor"
    assert read.temporal.address == "temporal:7233"
    assert read.ledger_url.startswith("postgresql+psycopg://")
    assert read.web_ui == "http://127.0.0.1:8080"


def test_compose_holds_no_secret_and_publishes_to_loopback_only() -> None:
    """Each password is a variable without a default; ports are bound to 127.0.0.1."""
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if name.endswith(("PASSWORD", "PWD")):
                assert value.startswith("${")
                assert ":?" in value
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_compose_changes_nothing_on_the_host() -> None:
    """All that the worker sees of the host is mounted read-only."""
    mounts = [mount for mount in SERVICES["worker"]["volumes"] if not mount.startswith("relight:")]
    assert len(mounts) == 3
    assert all(mount.endswith((":ro", ":ro,rslave")) for mount in mounts)


def test_the_image_takes_every_package() -> None:
    """The Dockerfile copies each folder by name: one that it forgets would fail only when the image is built."""
    copied = [line.split()[1:] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    assert copied == [["pyproject.toml", "constraints.txt", "README.md", "LICENSE", "./"], *([f, f] for f in FOLDERS)]


def test_docker_compose_accepts_the_file() -> None:
    """Docker Compose itself reads it, and refuses to go on without the variables."""
    plugin = (
        subprocess.run(["docker", "compose", "version"], capture_output=True, check=False) if _has_docker() else None
    )
    if plugin is None or plugin.returncode:
        pytest.skip("no `docker compose` on this machine")
    bare = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME"}}
    command = ["docker", "compose", "--file", str(ROOT / "docker-compose.yml"), "config", "--quiet"]
    without = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert without.returncode
    assert "is missing a value" in without.stderr
    names = ("POSTGRES_PASSWORD", "RELIGHT_LEDGER_PASSWORD", "RELIGHT_CLUSTER", "RELIGHT_UID")
    folders = ("SLURM_CONF_DIR", "MUNGE_SOCKET_DIR", "TRAINING_FS")
    given = bare | dict.fromkeys(names, "1") | dict.fromkeys(folders, "/tmp")
    subprocess.run(command, env=given, check=True)


def _has_docker() -> bool:
    return any((Path(folder) / "docker").exists() for folder in os.get_exec_path())
