# The four commands of a newcomer: make setup, make demo, make test, make clean.
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.setup-stamp

.PHONY: setup apt venv bpf demo test clean
.DELETE_ON_ERROR:

setup: apt venv bpf  ## apt packages, virtual environment, BPF objects (run again at will)

apt:
	@./setup/apt.sh packages.apt

venv: $(STAMP)

# The interpreter is the system's: apt's mininet, bcc and mpi4py are only visible to that one.
$(STAMP): requirements.txt pyproject.toml
	test -x $(PYTHON) || /usr/bin/python3 -m venv --system-site-packages $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
