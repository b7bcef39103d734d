#!/usr/bin/env bash
# Builds pyslurm from PyPI into a virtual environment, against the Slurm of this machine.
#
#   deploy/build-pyslurm.sh [PYTHON]      PYTHON: the environment's python (default .venv/bin/python)
#
# pyslurm is there as source only, and each release builds against the headers of its own Slurm series:
#
#   Slurm 25.11   as it is
#   Slurm 26.05   with the wrappers that 26.05's slurm.h has for older callers (SLURM_BACKWARD_COMPAT), two names that
#                 are gone from it, and a copy of the headers that says 25.11, since pyslurm's setup.py wants it so
#   other         refused, exit status 3: 24.11 and older lack members that pyslurm reads
#
# Needs gcc, Python's headers and Slurm's (Debian: gcc libc6-dev python3-dev libslurm-dev). About a minute. Set
# SLURM_INCLUDE_DIR (the folder that holds slurm/) and SLURM_LIB_DIR where Slurm is not in the usual places.
set -euo pipefail

VERSION=25.11.2
SERIES=25.11
INCLUDE=${SLURM_INCLUDE_DIR:-/usr/include}
OLD_NAMES="-DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=29999"

say() { printf '%s\n' "$*" >&2; }
die() {
  say "error: $2"
  exit "$1"
}

# The number in slurm_version.h is 0xMMmmpp; the series is printed as Slurm prints it: 25.11, 26.05.
series() {
  local number
  number=$(sed -n 's/^#define SLURM_VERSION_NUMBER *\(0x[0-9a-fA-F]*\).*/\1/p' "$1/slurm/slurm_version.h")
  [ -n "$number" ] || die 1 "$1/slurm/slurm_version.h does not say which Slurm it is"
  printf '%d.%02d\n' $((number >> 16 & 255)) $((number >> 8 & 255))
}

# Where libslurmfull.so is: beside the plugins, in a folder that differs between distributions.
library_folder() {
  local folder
  for folder in /usr/lib/"$(uname -m)"-linux-gnu /usr/lib64 /usr/lib /usr/local/lib; do
    if compgen -G "$folder/slurm*/libslurmfull.so" >/dev/null || [ -e "$folder/libslurmfull.so" ]; then
      echo "$folder"
      return
    fi
  done
  die 1 "no libslurmfull.so found: set SLURM_LIB_DIR"
}

PYTHON=${1:-$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/python}
"$PYTHON" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null ||
  die 1 "$PYTHON is not the python of a virtual environment"
[ -r "$INCLUDE/slurm/slurm_version.h" ] || die 1 "no Slurm headers in $INCLUDE/slurm (Debian: apt-get install libslurm-dev)"

flags="-O1 -g0 -w"
found=$(series "$INCLUDE")
case $found in
  "$SERIES") ;;
  26.05)
    headers=$(mktemp -d)
    trap 'rm -rf "$headers"' EXIT
    mkdir "$headers/slurm"
    cp -L "$INCLUDE"/slurm/*.h "$headers/slurm/"
    sed -i 's/^\(#define SLURM_VERSION_NUMBER\) .*/\1 0x190b02/' "$headers/slurm/slurm_version.h"
    INCLUDE=$headers
    flags="$flags $OLD_NAMES"
    ;;
  *) die 3 "pyslurm $VERSION builds against Slurm $SERIES and 26.05, and this is Slurm $found" ;;
esac

SLURM_LIB_DIR=${SLURM_LIB_DIR:-$(library_folder)}
say "Building pyslurm $VERSION against Slurm $found"
export SLURM_INCLUDE_DIR=$INCLUDE SLURM_LIB_DIR CFLAGS="$flags"
PYSLURM_BUILD_JOBS=$(nproc)
export PYSLURM_BUILD_JOBS
"$PYTHON" -m pip --disable-pip-version-check --no-input install -q --no-cache-dir --no-binary pyslurm "pyslurm==$VERSION"
# An import that reads slurm.conf ends the process where there is none.
PYSLURM_DISABLE_AUTO_INIT=1 "$PYTHON" -c 'import pyslurm; print("pyslurm", pyslurm.__version__)'
