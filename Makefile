# The commands of a newcomer: make setup, make demo, make test, make clean.
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.setup-stamp
DEMO := runs/demo
# Less computing than in the scenario: four ranks may share two cores, and communication is to decide.
DEMO_RUN := scenarios/dnn_resnet50.toml --set dnn.compute=0.02 --set dnn.epochs=9
# Building networks requires root; nothing else here does.
KEPT := TESTBED_REQUIRE,TESTBED_BUILD
QUICK := kernel,net
ALL := $(QUICK),deep,deep-net,alone,vm
PURE = $(VENV)/bin/tox run-parallel --parallel auto --parallel-no-spinner -e lint,types,pure
OUTPUTS := build .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo --preserve-env=$(KEPT))

.PHONY: help setup apt venv bpf vm demo paper check test test-all tier notebooks clean
.DELETE_ON_ERROR:

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: apt venv bpf  ## apt packages, virtual environment, BPF objects; safe to run again

apt:  ## install the packages listed in packages.apt
	@./setup/apt.sh packages.apt

venv: $(STAMP)  ## the virtual environment, with pinned Python packages

# The system's interpreter, because only it sees apt's mininet, bcc and mpi4py.
$(STAMP): requirements.txt pyproject.toml | apt
	@test -x $(PYTHON) || /usr/bin/python3 -m venv --system-site-packages $(VENV)
	@echo "venv: installing requirements.txt"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

bpf: venv  ## BPF objects and native libraries, unless already compiled
	@$(PYTHON) -m testbed.kernel
	@$(PYTHON) -m testbed.native >/dev/null

vm: setup  ## QEMU and two other kernels, for `testbed vm` and the tests that need them
	@./setup/apt.sh packages.vm.apt
	@$(SUDO) $(VENV)/bin/testbed vm setup --kernel 6.12
	@$(SUDO) $(VENV)/bin/testbed vm setup --kernel 6.1

demo: setup  ## measure and train on four hosts, in-kernel beside sockets, and report
	@mkdir -p $(dir $(DEMO))
	@$(SUDO) $(VENV)/bin/testbed bench allreduce --hosts 4 -b 4K -e 16M -f 16 -n 10 -o $(DEMO).json
	@$(SUDO) $(VENV)/bin/testbed run $(DEMO_RUN) --bench $(DEMO).json --out $(DEMO) --overwrite

paper: setup  ## measure what the papers have measured, into docs/results; PART=erar-1 for one part
	@$(SUDO) $(VENV)/bin/testbed paper $(PART) --out docs/results

check: setup  ## lint, types, and the tests that need no kernel features: two minutes
	@$(PURE)

# What root's tests write belongs to the checkout's owner, so that later commands need no root.
GIVE_BACK = $(SUDO) find $(OUTPUTS) -exec chown --no-dereference --reference=Makefile {} + 2>/dev/null

# The last lines name the tests that passed only the second time (tests/tier.py).
define run-tests
	@$(SUDO) rm -rf build/flaky
	@$(PURE) && $(SUDO) $(VENV)/bin/tox run -e $(1); status=$$?; $(GIVE_BACK); \
	$(PYTHON) -m tests.tier && exit $$status
endef

test: setup  ## lint, types, and quick tests, also in the kernel and on real networks: ten minutes
	$(call run-tests,$(QUICK))

test-all: setup  ## everything that this machine can run: half an hour
	$(call run-tests,$(ALL))

# With root as `make test`, and with files that stay the checkout's owner's: make tier TIER=net ARGS="-k killed"
tier: setup  ## one tier alone: TIER=kernel, net, deep, deep-net, alone, vm or pure; ARGS for pytest
	@$(SUDO) $(VENV)/bin/tox run -e $(TIER) $(if $(ARGS),-- $(ARGS)); status=$$?; $(GIVE_BACK); exit $$status

notebooks: setup  ## JupyterLab on analysis/notebooks; installs it on first use
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --requirement requirements-notebooks.txt
	@$(VENV)/bin/jupyter lab --notebook-dir analysis/notebooks

clean:  ## remove what stopped testbeds left behind, build outputs and caches; keeps runs/ and .venv
	@test ! -x $(VENV)/bin/testbed || $(SUDO) $(VENV)/bin/testbed clean
	@rm -rf $(OUTPUTS) 2>/dev/null || $(SUDO) rm -rf $(OUTPUTS)
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} + 2>/dev/null \
	    || $(SUDO) find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
