# The menu. Every target that needs the environment makes it first.

PYTHON ?= python3
TORCH ?= torch==2.13.0
# cpu, or any that pip finds. Where no NVIDIA driver is, the CPU build does all that the other one would.
TORCH_BUILD ?= $(if $(wildcard /proc/driver/nvidia/version /dev/nvidiactl /dev/dxg),any,cpu)
TORCH_INDEX ?=
DEMO ?=
VERDICTS ?=
HANGS ?=
FLEET_HANGS ?=
SHARE ?=
SWITCH ?=
RECORDINGS ?=
RECORDINGS_IN ?=
DEMO_RECORDINGS ?=
TRACE ?=
AGAINST ?=
HARM ?=
FIRST_MINUTES ?=
WHEELS ?=
GPU_PART ?=
GPU_DEVICE ?= cuda
GPU_RESULTS ?= gpu-results
GPU_PYTHONS ?= 3.10 3.11 3.12 3.13
GPU_ARCH ?= x86_64
FRAMEWORKS ?=
PYTHONS ?=
PYZ_PYTHON ?= /usr/bin/python3
FRAMEWORKS_PYTHON ?=
PYTEST ?=
# What the one file does without: traces, and recordings but on Python 3.14.
PYZ_LEAVES_OUT := tests/pty/test_trace_screen.py tests/pty/test_replay_screen.py tests/commands/recordings
# Folders whose tests want the machine for themselves: ALONE of tests/conftest.py.
ALONE := tests/budget tests/gpu tests/programs tests/pty

BIN := .venv/bin
READY := .venv/.ready
RUNS := .venv/.runs
HAS_TORCH := -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'

.DEFAULT_GOAL := help
.PHONY: help setup site torch-of-python torch-for-tests demo demo-live demo-recordings pictures test test-fast test-long pyz test-pyz bench-pyz check lint types docs-tests docs goldens news size \
        bench-cost bench-fleet bench-record bench-judge bench-stacks bench-harm bench-hook bench-trace verdicts hangs fleet-hangs recordings rejudge bench-share bench-switch bench-first-minutes wheels test-gpu test-frameworks test-faults test-pythons late-hook test-torch test-tensorboard

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  variables: PYTHON=$(PYTHON)  TORCH=$(TORCH)  TORCH_BUILD=$(TORCH_BUILD)  TORCH_INDEX=URL  DEMO="--ranks 2"  PYTEST="-k words"'

setup: $(READY) ## make .venv with tpmon and its tools in it; nothing to do when it stands

# Compat mode is a plain path: the import hook of the other mode costs 12 ms of every start.
define MAKE_VENV
$(PYTHON) -c 'import sys; sys.exit("setup: tpmon needs Python 3.10 or newer, not " + sys.version.split()[0] + "; try make PYTHON=/path/to/python3.12" if sys.version_info < (3, 10) else 0)' || exit 1; \
test -x $(BIN)/python || { \
	echo "setup: making .venv with $$($(PYTHON) --version)"; \
	$(PYTHON) -m venv .venv || { rm -rf .venv; echo "setup: no venv; Debian and Ubuntu have it in python3-venv"; exit 1; }; }
endef
# A terminal sees what pip fetches, with its progress; a log would hold each step of it.
PIP := quiet=--quiet; test ! -t 1 || quiet=; $(BIN)/python -m pip install $$quiet --disable-pip-version-check
EDITABLE := --config-settings editable_mode=compat -e

$(READY): pyproject.toml
	@$(MAKE_VENV)
	@echo "setup: fetching what tpmon and its development tools need into .venv: 70 MB, a minute or two"
	@$(PIP) $(EDITABLE) '.[dev]'
	@touch $@
	@echo "setup: done"

# All that a demo takes: no development tools.
$(RUNS): pyproject.toml
	@$(MAKE_VENV)
	@echo "setup: fetching what tpmon needs into .venv: 25 MB, half a minute"
	@$(PIP) $(EDITABLE) .
	@touch $@

# The CPU build is not where pip looks unless somebody said so; uv knows where it is.
define INSTALL_TORCH
echo "torch: none found, so $(TORCH) is fetched into .venv: $(TORCH_SIZE); instead of it: PYTHON=/path/to/python-with-torch, TORCH_BUILD=cpu or any, TORCH_INDEX=URL"; \
$(if $(filter any,$(TORCH_BUILD))$(TORCH_INDEX),$(PIP) $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') '$(TORCH)',$(INSTALL_CPU_TORCH)) && echo "torch: done"
endef
define INSTALL_CPU_TORCH
{ $(PIP) '$(TORCH)+cpu' 2>/dev/null || { $(PIP) uv && $(BIN)/python -m uv pip install --python $(BIN)/python --torch-backend cpu '$(TORCH)'; } || { \
	echo "torch: no CPU build can be reached from here, so the one that pip finds is fetched: up to 3 GB"; $(PIP) '$(TORCH)'; }; }
endef
TORCH_SIZE := $(if $(filter any,$(TORCH_BUILD))$(TORCH_INDEX),0.2 GB of a CPU build to 3 GB of one for CUDA,0.2 GB of a CPU build)

# The tests start their programs with .venv's Python. Where only PYTHON has torch, a path file lets
# .venv see it, after .venv's own packages; it goes again if that torch does not load there.
torch-of-python: setup
	@$(BIN)/python $(HAS_TORCH) || { \
		$(PYTHON) $(HAS_TORCH) && \
		link=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch-of-python.pth && \
		$(PYTHON) -c 'import importlib.util, os; print(os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin)))' > $$link && \
		{ $(BIN)/python -c 'import torch' 2>/dev/null || { rm $$link; false; }; }; } || true

torch-for-tests: torch-of-python
	@$(BIN)/python $(HAS_TORCH) || { $(INSTALL_TORCH); }

# Who has the tools for development has what a demo takes.
NEEDED := $(if $(wildcard $(READY)),$(READY),$(RUNS))
ANY_TORCH := $(PYTHON) $(HAS_TORCH) || $(BIN)/python $(HAS_TORCH)

demo: $(NEEDED) ## watch a small real training, of which something is wrong; where no torch is: a recording of it
	@$(ANY_TORCH) || echo "demo: make demo-live fetches torch, which is not here ($(TORCH_SIZE)), and trains"
	@PYTHON='$(PYTHON)' $(BIN)/tpmon demo $(DEMO)

demo-live: $(NEEDED) ## the same, and torch is fetched where none is: 0.2 GB of a CPU build
	@$(ANY_TORCH) || { $(INSTALL_TORCH); }
	@PYTHON='$(PYTHON)' $(BIN)/tpmon demo $(DEMO)

demo-recordings: torch-for-tests ## make the recordings of make demo anew, ten minutes on an idle machine; DEMO_RECORDINGS="--restate"
	@$(BIN)/python -m tests.corpus.demo_recordings $(DEMO_RECORDINGS)

pictures: setup ## film make demo anew for README.md and docs/index.md: asciinema, and svg-term or npx; half a minute
	@$(BIN)/python -m tests.goldens.film

# What only waits, for deadlines above all, does so in a process of its own, whose report comes last; it begins when no
# test measures a cost any more. Its failures are told as they come, as are those of the others. 5: none was chosen.
test: torch-for-tests ## run the tests once: unit, screen, terminal, real programs, budget, GPU: up to thirteen minutes
	@export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 BUDGET_OVER=.venv/budget-over; rm -f $$BUDGET_OVER; exec 3>&1; \
	export TEST_NOTES=.venv/notes.txt; : > $$TEST_NOTES; \
	{ until test -e $$BUDGET_OVER; do sleep 1; done; \
	  export TEST_PART=waits TEST_TELLS=3; \
	  exec $(BIN)/python -m pytest -o cache_dir=.venv/waits -m 'waits and not long' $(PYTEST); } > .venv/waits.txt 2>&1 & beside=$$!; \
	trap "kill $$beside" INT TERM HUP; \
	TEST_PART=alone $(BIN)/python -m pytest -m 'not (waits or long)' $(ALONE) $(PYTEST); alone=$$?; touch $$BUDGET_OVER; \
	TEST_PART=others $(BIN)/python -m pytest -p xdist -n 2 -m 'not (waits or long)' $(ALONE:%=--ignore %) $(PYTEST); others=$$?; \
	wait $$beside; waits=$$?; cat $$TEST_NOTES .venv/waits.txt; \
	case $$alone in 0|5) ;; *) exit 1;; esac; case $$others in 0|5) ;; *) exit 1;; esac; case $$waits in 0|5) ;; *) exit 1;; esac

test-fast: setup ## the tests that start no program, drive no terminal and measure nothing: up to two minutes
	@PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -p xdist -n auto --maxprocesses 4 -q -rfE -p no:threadexception --fast -m 'not (long or torch or pty or budget or pyz)' $(ALONE:%=--ignore %) $(PYTEST)

pyz: setup ## build tpmon.pyz, the one file that a bare Python 3.10 or newer runs: scp it anywhere
	@$(BIN)/python -m release.pyz tpmon.pyz

bench-pyz: torch-for-tests ## what a start of tpmon.pyz costs, on each Python here (docs/measured/pyz.md)
	@$(BIN)/python -m tests.release.bench_pyz

test-pyz: torch-for-tests pyz ## the text and terminal tests against tpmon.pyz, on the system's own Python; PYZ_PYTHON=/usr/bin/python3
	@TPMON_CALL='$(PYZ_PYTHON) -I $(CURDIR)/tpmon.pyz' PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -m 'not long' tests/pty tests/commands tests/test_cli.py $(PYZ_LEAVES_OUT:%=--ignore %) $(PYTEST)

test-long: torch-for-tests ## the real programs and many hostile files that make test leaves out, a quarter of an hour
	@PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -m long $(PYTEST)

TENSORBOARD_BIN := .venv-tensorboard/bin
TENSORBOARD_READY := .venv-tensorboard/.ready

$(TENSORBOARD_READY):
	@test -x $(TENSORBOARD_BIN)/python || $(PYTHON) -m venv .venv-tensorboard
	@echo "test-tensorboard: installing TensorBoard and its profiler plugin into .venv-tensorboard (a minute)"
	@$(TENSORBOARD_BIN)/python -m pip install --quiet --disable-pip-version-check torch-tb-profiler==0.4.3 'setuptools<81'
	@touch $@

test-tensorboard: torch-for-tests $(TENSORBOARD_READY) ## whether TensorBoard's profiler plugin reads what both back ends captured
	@TENSORBOARD_PYTHON='$(abspath $(TENSORBOARD_BIN)/python)' PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -q -s tests/programs/test_capture_elsewhere.py $(PYTEST)

WHEELS_FOLDER := $(or $(WHEELS),wheels)
GPU_BIN := $(if $(WHEELS),.venv-gpu/bin,$(BIN))
PLATFORMS := $(foreach one,manylinux2014 manylinux_2_17 manylinux_2_28,--platform $(one)_$(GPU_ARCH))

wheels: setup ## a folder of wheels for make test-gpu on a machine without a network: WHEELS=DIR GPU_PYTHONS="3.12"
	@mkdir -p '$(WHEELS_FOLDER)'
	@$(BIN)/python -m tests.gpu.parts requirements > '$(WHEELS_FOLDER)/requirements.txt'
	@for version in $(GPU_PYTHONS); do \
		echo "wheels: for Python $$version, into $(WHEELS_FOLDER)"; \
		$(BIN)/python -m pip download --quiet --disable-pip-version-check --dest '$(WHEELS_FOLDER)' --only-binary :all: \
			--python-version $$version $(PLATFORMS) pip -r '$(WHEELS_FOLDER)/requirements.txt' || exit 1; \
	done

# A lent machine has a card and a torch, but perhaps no network, no pip and no ensurepip: pip runs out of its wheel,
# and path files show the checkout and the packages of PYTHON, after those of the environment.
.venv-gpu/.ready: pyproject.toml $(wildcard $(WHEELS_FOLDER)/requirements.txt)
	@test -f '$(WHEELS)/requirements.txt' || { echo "test-gpu: $(WHEELS) has no requirements.txt; make wheels WHEELS=DIR builds the folder"; exit 1; }
	@rm -rf .venv-gpu && $(PYTHON) -m venv --without-pip .venv-gpu
	@.venv-gpu/bin/python '$(lastword $(sort $(wildcard $(WHEELS)/pip-*.whl)))/pip' install --quiet --disable-pip-version-check --no-index --find-links '$(WHEELS)' -r '$(WHEELS)/requirements.txt'
	@packages=$$(.venv-gpu/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && echo '$(CURDIR)' > $$packages/checkout.pth && \
		$(PYTHON) -c 'import sys; print(*(one for one in sys.path if one.endswith("-packages")), sep="\n")' > $$packages/packages-of-python.pth
	@.venv-gpu/bin/python $(HAS_TORCH) || echo "test-gpu: $(PYTHON) has no torch, so every test that trains is skipped"
	@touch $@

test-gpu: $(if $(WHEELS),.venv-gpu/.ready,torch-of-python) ## the tests that need an NVIDIA GPU, skipped without one; GPU_PART=1..5 WHEELS=DIR GPU_DEVICE=cpu
	@TPMON_GPU_RESULTS='$(GPU_RESULTS)' TPMON_GPU_DEVICE='$(GPU_DEVICE)' PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(if $(GPU_PART),timeout 540) $(GPU_BIN)/python -m pytest -p no:cacheprovider $$($(GPU_BIN)/python -m tests.gpu.parts $(GPU_PART)) $(PYTEST)

check: lint types docs-tests ## lint, types, layers and docs: what a change must pass besides the tests

lint: setup ## ruff and the import contracts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-logo

types: setup ## mypy --strict
	@$(BIN)/mypy

docs-tests: setup
	@PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -q -m "not torch" tests/test_docs.py tests/test_layers.py tests/test_house.py

docs: goldens ## write docs/keys.md, docs/screens.md, docs/verdicts.md, docs/thresholds.md and the pictures of README.md and docs anew
	@$(BIN)/python -m tpmon.ui.monitor.keys > .venv/keys.md && mv .venv/keys.md docs/keys.md
	@$(BIN)/python -m tests.judge.verdict_page > .venv/verdicts.md && mv .venv/verdicts.md docs/verdicts.md
	@$(BIN)/python -m tests.judge.thresholds > .venv/thresholds.md && mv .venv/thresholds.md docs/thresholds.md
	@$(BIN)/python -m tests.readme

SITE_BIN := .venv-site/bin
SITE_READY := .venv-site/.ready

$(SITE_READY):
	@test -x $(SITE_BIN)/python || $(PYTHON) -m venv .venv-site
	@echo "site: installing mkdocs-material into .venv-site (a minute)"
	@$(SITE_BIN)/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.5,<10'
	@touch $@

site: $(SITE_READY) ## docs/ as a web site in build/site; a page left out or a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(SITE_BIN)/python -m mkdocs build --strict
	@echo "site: build/site/index.html"

news: setup ## what the next release says: the fragments in news/
	@$(BIN)/python -m towncrier build --draft --version next

goldens: setup ## write the golden pictures and docs/screens.md anew; read the diff before committing it
	@$(BIN)/python -m tests.goldens.pictures

size: setup ## files, lines, longest function and largest folder by package, beside the last tag; AGAINST=REV
	@$(BIN)/python -m tests.size $(AGAINST)

bench-cost: torch-for-tests ## what tpmon costs on 137 processes and 3,000 threads (docs/overhead.md)
	@$(BIN)/python -m tests.budget.bench_cost

bench-fleet: setup ## what the head of tpmon fleet costs at 64 to 1,250 nodes, and over 64 slurmds as root (docs/measured/fleet-scale.md)
	@$(BIN)/python -m tests.budget.bench_fleet
	@$(BIN)/python -m tests.budget.bench_fleet_screen

bench-record: torch-for-tests ## what a recording costs to make, to look at and to judge again (docs/overhead.md)
	@$(BIN)/python -m tests.budget.bench_record

bench-judge: setup ## what one verdict costs, by the processes of the job (docs/overhead.md)
	@$(BIN)/python -m tests.budget.bench_judge

bench-stacks: torch-for-tests ## what sampling stacks costs, with and without it
	@$(BIN)/python -m tests.budget.bench_stacks

bench-first-minutes: setup ## from a clone with nothing kept to the first verdict: uvx, pyz, make demo without torch and with it (docs/measured/first-minutes.md)
	@$(BIN)/python -m tests.release.bench_first_minutes $(FIRST_MINUTES)

bench-harm: torch-for-tests ## whether a watched training loses steps, half an hour on an idle machine; HARM="--mode screen"
	@$(BIN)/python -m tests.budget.bench_harm $(HARM)

bench-hook: torch-for-tests ## what the hook costs a training: at import, hot, in real loops (docs/overhead.md)
	@$(BIN)/python -m tests.budget.bench_hook
	@echo
	@$(BIN)/python -m tests.budget.hook_inside

bench-trace: setup ## what reading a trace costs, 5 MB to 1 GB; TRACE="--big --beside PYTHON", "--help"
	@$(BIN)/python -m tests.budget.bench_trace $(TRACE)

verdicts: torch-for-tests ## is the verdict right? each program 5 times idle, 5 times beside a busy core; VERDICTS="--help"
	@$(BIN)/python -m tests.verdicts.matrix $(VERDICTS)

hangs: torch-for-tests ## who hangs, where and why? each program 10 times; HANGS="--jobs 6", "--old 300 --jobs 6", "--help"
	@$(BIN)/python -m tests.hangs.matrix $(HANGS)

fleet-hangs: torch-for-tests ## who hangs on three hosts of Slurm and ssh? half an hour, as root; FLEET_HANGS="--only hung --lanes 3", "--help"
	@$(BIN)/python -m tests.fleet.matrix $(FLEET_HANGS)

recordings: torch-for-tests ## record every program for rejudge, two hours and more; RECORDINGS="--machine idle --limit-s 9000 --out DIR", "--help"
	@$(BIN)/python -m tests.corpus.matrix $(RECORDINGS)

rejudge: setup ## judge tests/recordings again: what differs, what is wrong; RECORDINGS_IN=DIR of make recordings too
	@$(BIN)/python -m tests.corpus.rejudge $(RECORDINGS_IN)

bench-share: torch-for-tests ## does the stated share of data wait hold the truth? SHARE="--help"
	@$(BIN)/python -m tests.verdicts.share $(SHARE)

bench-switch: torch-for-tests ## how soon the verdict follows a change of cause; SWITCH="--help"
	@$(BIN)/python -m tests.verdicts.switch $(SWITCH)

test-pythons: torch-for-tests ## the hook on Python 3.8 to 3.14, as far as they are here; PYTHONS="--install --only 3.12"
	@$(BIN)/python -m tests.pythons.matrix --torch '$(TORCH)' $(PYTHONS)

late-hook: torch-for-tests ## the hook into running trainings and out again, their losses held against a run without; LATE="--times 200 --python PATH"
	@$(BIN)/python -m tests.inject.late_matrix $(LATE)
	@$(BIN)/python -m tests.inject.killed

# What of the tests reaches into torch itself: hook loops, kineto's daemon, flight recorder, debug server.
TORCHES ?= 2.13.0 2.14.1
OF_TORCH := tests/hook tests/probe/records $(foreach one,hook_real hook_callbacks hook_join exact_real capture_exact capture_ends kineto_real collectives_real settings_real numbers_real,tests/programs/test_$(one).py)
TORCH_VENVS := $(TORCHES:%=.venv-torch-%/.ready)

.venv-torch-%/.ready: pyproject.toml
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "test-torch: installing torch $* into $(@D), 0.2 GB (CPU build) to 3 GB (CUDA build); TORCH_INDEX=URL of an index of CPU builds"
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') 'torch==$*'
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e '.[dev]'
	@touch $@

test-torch: $(TORCH_VENVS) ## the hook, kineto, flight recorder and debug server on several torches; TORCHES="2.13.0 2.14.1"
	@failed=; for version in $(TORCHES); do \
		echo "test-torch: torch $$version"; \
		PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 .venv-torch-$$version/bin/python -m pytest -q -m 'not long' $(OF_TORCH) $(PYTEST) || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "test-torch: failed on$$failed"; exit 1; }

FRAMEWORKS_BIN := .venv-frameworks/bin
FRAMEWORKS_READY := .venv-frameworks/.ready
FRAMEWORKS_RUN = $(or $(FRAMEWORKS_PYTHON),$(abspath $(FRAMEWORKS_BIN)/python))

$(FRAMEWORKS_READY):
	@test -x $(FRAMEWORKS_BIN)/python || $(PYTHON) -m venv .venv-frameworks
	@echo "test-frameworks: installing torch and the frameworks into .venv-frameworks (some minutes, 1 GB or more)"
	@$(FRAMEWORKS_BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') '$(TORCH)'
	@$(FRAMEWORKS_BIN)/python -m pip install --quiet --disable-pip-version-check lightning accelerate transformers numpy pillow
	@DS_BUILD_OPS=0 $(FRAMEWORKS_BIN)/python -m pip install --quiet --disable-pip-version-check deepspeed || echo "test-frameworks: DeepSpeed does not install here; its rows are left out"
	@touch $@

test-frameworks: setup $(if $(FRAMEWORKS_PYTHON),,$(FRAMEWORKS_READY)) ## what the hook counts in Lightning, Accelerate, Trainer, DeepSpeed, DDP, FSDP ..., and a capture; FRAMEWORKS="--only ddp"
	@$(BIN)/python -m tests.frameworks.hooked.matrix --python '$(FRAMEWORKS_RUN)' $(FRAMEWORKS)
	@$(if $(FRAMEWORKS),,echo && FRAMEWORKS_PYTHON='$(FRAMEWORKS_RUN)' PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -q tests/programs/test_capture_elsewhere.py)

test-faults: setup $(if $(FRAMEWORKS_PYTHON),,$(FRAMEWORKS_READY)) ## verdicts on Trainer, Lightning and Accelerate with faults; FRAMEWORKS="--help"
	@$(BIN)/python -m tests.frameworks.matrix --python '$(FRAMEWORKS_RUN)' $(FRAMEWORKS)
