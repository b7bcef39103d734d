# Everything a contributor or CI runs. `make` alone lists the targets.
#
# Needs GNU make, bash and Python 3.11 or newer; the rest is installed into .venv/ (deploy/bootstrap.sh).
# `make test` and `make demo` run a real Slurm cluster on this machine: they install Debian's Slurm packages when
# missing, saying so, and ask for root only then.

BIN := .venv/bin
STAMP := .venv/.relight-stamp

FAULT ?= crash
SLURM ?= commands
ARGS ?=
# Whether `make test` installs PyTorch: no, cheap (only a build without CUDA) or yes. Rule: deploy/bootstrap.sh.
TORCH ?= no

# How many files of tests run at once (0: in pytest's own process, for a debugger). Most tests of the system wait.
JOBS ?= 3
SPREAD = -n $(JOBS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup check test test-fast test-slurm-versions demo bench clean FORCE

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
	  printf '  make %-19s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## Create or renew .venv/ (quick when nothing changed)

# The stamp holds the folder it was made in: scripts of an environment that was moved point to the old place.
ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif
$(STAMP): pyproject.toml constraints.txt deploy/bootstrap.sh
	@deploy/bootstrap.sh venv

check: setup ## Lint, format, types, and which folder imports which
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup ## All tests, on a real Slurm cluster and a real Temporal server (ARGS="-k name" to choose)
	@deploy/bootstrap.sh torch $(TORCH)
	$(BIN)/python -m relight.lab.packages
	$(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-fast: setup ## Tests that need neither Slurm nor minutes
	$(BIN)/python -m pytest $(SPREAD) -m "not system and not slow" $(ARGS)

test-slurm-versions: setup ## The Slurm contract on each Slurm version, in Debian roots of their own (root, about 3 GB)
	$(BIN)/python -m relight.lab.packages
	@exec $(BIN)/python -m relight.lab.versions $(ARGS)

# exec: Ctrl-C and SIGTERM reach the demo itself, which takes its cluster down before it ends.
demo: setup ## Watch a job fail and recover: FAULT=crash|gpu|hang|node|straggler|bug|badckpt, SLURM=commands|ssh|pyslurm, ARGS=--exit
	@exec $(BIN)/relight lab demo --fault $(FAULT) --slurm $(SLURM) $(ARGS)

bench: setup ## Measure time to detect, diagnose and recover
	@exec $(BIN)/relight lab bench recovery $(ARGS)

clean: ## Remove .venv/, caches and build outputs (ledgers and lab clusters stay)
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
