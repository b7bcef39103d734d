#!/usr/bin/env bash
# What `make` needs before there is a Python environment.
#
#   deploy/bootstrap.sh venv                  make or renew .venv/ with everything of constraints.txt
#   deploy/bootstrap.sh torch no|cheap|yes    decide about PyTorch (the rule stands at `torch` below)
#
# Set PYTHON to choose the Python; otherwise the newest of 3.11 to 3.14 on PATH is taken.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
trap 'exit 130' INT # pip answers Ctrl-C with an ordinary failure, which must not look like one

VENV=.venv
STAMP=$VENV/.relight-stamp # holds this folder's path: an environment that was moved is made anew
EXTRAS=dev,lab,embedded,postgres,console
TORCH_LIMIT_S=300

say() { printf '%s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}

pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

# A name on PATH proves nothing (pyenv puts up names for versions that are switched off): run it.
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
makes_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# The newest Python that can make environments as it is, else the newest.
choose_python() {
  local name newest=""
  if [ -n "${PYTHON:-}" ]; then
    new_enough "$PYTHON" || die "PYTHON=$PYTHON does not run, or is older than 3.11"
    echo "$PYTHON"
    return
  fi
  for name in python3.14 python3.13 python3.12 python3.11 python3; do
    new_enough "$name" || continue
    if makes_venvs "$name"; then
      echo "$name"
      return
    fi
    newest=${newest:-$name}
  done
  [ -n "$newest" ] || die "no Python 3.11 or newer on PATH. Debian 12 and newer: apt-get install python3 python3-venv"
  echo "$newest"
}

as_root() {
  local sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  say "running: ${sudo:+sudo }$*"
  $sudo "$@"
}

# Debian splits the standard library's venv off into a package of its own.
install_venv_package() {
  local package
  package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  command -v apt-get >/dev/null || die "$1 cannot make virtual environments (no ensurepip); install that part of it"
  say "$1 cannot make virtual environments; Debian keeps that part in the package $package, which needs root."
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    die "you are not root and there is no sudo. Ask an administrator to run: apt-get install $package"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 install -y -qq \
    --no-install-recommends "$package"
  makes_venvs "$1" || die "$1 still cannot make virtual environments after installing $package"
}

usable() {
  new_enough "$VENV/bin/python" && pip --version >/dev/null 2>&1 || return 1
  [ ! -f $STAMP ] || [ "$(cat $STAMP)" = "$PWD" ]
}

venv() {
  local python
  if ! usable; then
    python=$(choose_python)
    makes_venvs "$python" || install_venv_package "$python"
    say "Making $VENV with $("$python" --version)"
    "$python" -m venv --clear $VENV
  fi
  say "Installing Relight and its tools into $VENV"
  # hyperscan is optional: never compile it (half an hour of C++); do without where there is no wheel.
  if ! pip install -q -c constraints.txt --only-binary hyperscan -e ".[$EXTRAS,scan]"; then
    say "That failed; once more without the optional scanner engine (extra 'scan')."
    pip install -q -c constraints.txt -e ".[$EXTRAS]"
    say "Installed without hyperscan: scanning falls back on the standard library and is slower."
  fi
  echo "$PWD" >$STAMP
}

has_torch() { "$VENV/bin/python" -c 'import torch' >/dev/null 2>&1; }

# True when pip would install a build of torch without CUDA. Only metadata is fetched to find out.
torch_is_cheap() {
  local plan
  plan=$(mktemp)
  # shellcheck disable=SC2064
  trap "rm -f '$plan'" RETURN
  timeout 120 "$VENV/bin/python" -m pip --disable-pip-version-check --no-input install -q --dry-run \
    --only-binary :all: -c constraints.txt --report "$plan" torch >/dev/null 2>&1 || return 1
  "$VENV/bin/python" - "$plan" <<'PY'
import json, sys
names = [item["metadata"]["name"].lower() for item in json.load(open(sys.argv[1]))["install"]]
sys.exit(any(name.startswith(("nvidia-", "cuda-", "triton")) for name in names))
PY
}

# Where torch is, what else writes checkpoints for tests to damage: 28 MB, and never another torch.
trainers() {
  timeout "$TORCH_LIMIT_S" "$VENV/bin/python" -m pip --disable-pip-version-check --no-input install -q \
    --only-binary :all: -c constraints.txt accelerate pytorch-lightning safetensors transformers "torch==$1" ||
    say "trainers: left out (installing failed or took over $TORCH_LIMIT_S s); tests that use them are skipped"
}

# No test needs torch: those that use it are skipped without it, and say so. What `pip install torch` brings
# depends on the index that pip is set up with: a CPU build of 200 MB, or (PyPI's own, on Linux) a CUDA build of
# several GB. So:
#   no      do not touch it (the default of `make test`: nobody's disk is filled unasked)
#   cheap   take it when it is a build without CUDA and is in within TORCH_LIMIT_S, else go on without (.ci/run)
#   yes     install it, whatever it takes
torch() {
  case "$1" in
    no) ;;
    cheap)
      if has_torch; then
        say "torch: installed already"
      elif ! torch_is_cheap; then
        say "torch: left out (this index has no build without CUDA for this Python); tests that use it are skipped"
      elif timeout "$TORCH_LIMIT_S" "$VENV/bin/python" -m pip --disable-pip-version-check --no-input install -q \
        --only-binary :all: -c constraints.txt torch; then
        say "torch: installed"
      else
        say "torch: left out (installing failed or took over $TORCH_LIMIT_S s); tests that use it are skipped"
      fi
      ;;
    yes) has_torch || pip install -c constraints.txt torch ;;
    *) die "TORCH is no, cheap or yes, not '$1'" ;;
  esac
  if [ "$1" != no ] && has_torch; then
    trainers "$("$VENV/bin/python" -c 'import torch; print(torch.__version__)')"
  fi
}

case "${1:-}" in
  venv) venv ;;
  torch) torch "${2:-no}" ;;
  *) die "usage: deploy/bootstrap.sh venv | torch no|cheap|yes" ;;
esac
