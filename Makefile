# Each target makes the environment that it needs; nothing but Python 3.11 (with venv) has to be there before.
# The tests also start servers: see docs/how-to/test-servers.md for what they look for.

PYTHON ?= python3
VENV := .venv
TOX_VENV := .tox/venv
PIP := -m pip install --quiet --disable-pip-version-check

# What a caller's shell may hold for another project.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
unexport TOXENV TOX_SKIP_ENV TOX_OVERRIDE TOX_CONFIG_FILE PYTEST_ADDOPTS

.PHONY: help demo test lint bench clean
.NOTPARALLEL:

help:
	@echo "make demo    a story of transactions in the terminal, no server needed"
	@echo "make test    all checks and tests, with the servers that they need"
	@echo "make lint    style and types only"
	@echo "make bench   what the layer costs over MQTT and Kafka"
	@echo "make clean   remove the environments that these made"

demo: $(VENV)/.demo
	@$(VENV)/bin/txlayer demo

test: $(TOX_VENV)/.done
	@$(TOX_VENV)/bin/tox run

lint: $(TOX_VENV)/.done
	@$(TOX_VENV)/bin/tox run -e lint,types

bench: $(VENV)/.bench
	@$(VENV)/bin/python -m benchmarks passthrough --bus mqtt --json
	@$(VENV)/bin/python -m benchmarks passthrough --bus kafka --json
	@$(VENV)/bin/python -m benchmarks transactions --bus mqtt --json
	@$(VENV)/bin/python -m benchmarks transactions --bus kafka --json

clean:
	rm -rf $(VENV) .tox

# Installed in place, so that a change of the sources needs no new installation.
$(VENV)/.demo: pyproject.toml $(VENV)/.made
	@echo "installing txlayer into $(VENV)"
	@$(VENV)/bin/python $(PIP) --editable .
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.made
	@echo "installing txlayer and the client libraries into $(VENV)"
	@$(VENV)/bin/python $(PIP) --editable '.[mqtt,kafka,postgres,signed,testing]'
	@touch $@

$(TOX_VENV)/.done: $(TOX_VENV)/.made
	@echo "installing tox into $(TOX_VENV)"
	@$(TOX_VENV)/bin/python $(PIP) 'tox>=4.20,<5'
	@touch $@

%/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "txlayer needs Python 3.11 or later as $(PYTHON); another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@touch $@
