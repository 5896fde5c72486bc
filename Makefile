# Two environments, both made here: .venv is for working (this tree, editable), .venv-wheel for judging (the built wheel,
# installed, so that what is tested is what is shipped). Each is brought up to date when it is used.
PYTHON ?= python3
WORK := .venv/bin
WHEEL := .venv-wheel/bin
SOURCES := $(shell find adapters outbox consumers -name __pycache__ -prune -o -print)
PROJECT := pyproject.toml README.md LICENSE
MATRIX ?= 3.10 4.0 newest
COMPOSE = $(shell docker compose version > /dev/null 2>&1 && echo docker compose || echo docker-compose) -p postroom -f compose/compose.yaml

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-matrix lint types bench dev images up down clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: dev ## the story of order 4711, with a worker killed at the worst moment; needs nothing but Python
	@$(WORK)/postroom demo

# Most of them wait most of the time, for leases and servers: two processes, each with servers of its own, take about half as long as one.
test: .venv-wheel/installed servers ## all tests, on the installed wheel; PYTEST="-k ledger" chooses
	@$(WHEEL)/pytest --numprocesses 2 --dist worksteal $(PYTEST)

test-matrix: .venv-wheel/installed servers ## RabbitMQ's tests on the oldest, the usual and the newest server: MATRIX="3.10 4.0 newest"
	@for version in $(MATRIX); do compose/test-on-rabbitmq $$version $(WHEEL)/pytest $(PYTEST) || exit 1; done

lint: dev ## style, format, and who may import whom
	@$(WORK)/ruff check .
	@$(WORK)/ruff format --check .
	@$(WORK)/lint-imports

types: .venv-wheel/installed ## mypy, strict, on the installed wheel
	@$(WHEEL)/mypy -p postroom.adapters -p postroom.outbox -p postroom.consumers

bench: .venv-wheel/installed servers ## speed beside hand-written equivalents
	@$(WHEEL)/python tests/bench/run.py

dev: .venv/installed ## an environment for working: .venv, where this tree is installed editable

images: ## a Docker engine, and an image for each server: pulled, or built here
	@compose/engine
	@compose/choose-images

up: ## starts RabbitMQ, Kafka, PostgreSQL and MariaDB on their usual ports
	@compose/engine
	@images=$$(compose/choose-images) && env $$images $(COMPOSE) up -d

down: ## ends them, with all that they hold
	@$(COMPOSE) down --volumes

clean: ## removes what was made here, except Docker's images
	rm -rf .venv .venv-wheel build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# What the tests need of Docker. At a desk they go without, in CI they don't.
.PHONY: servers
servers:
	@{ compose/engine && compose/choose-images > /dev/null; } || { echo "Tests that need a server which is not to be had are skipped."; [ "$$CI" != true ]; }

.venv/installed: $(PROJECT)
	@echo "Installing Postroom, editable, with its development tools into .venv"
	@$(PYTHON) -m venv .venv
	@$(WORK)/pip install --quiet --editable '.[dev]'
	@touch $@

.venv-wheel/tools: pyproject.toml
	@echo "Installing Postroom's development tools into .venv-wheel"
	@$(PYTHON) -m venv .venv-wheel
	@$(WHEEL)/pip install --quiet '.[dev]'
	@touch $@

# Without build/: setuptools would ship again what an earlier build left there.
.venv-wheel/installed: .venv-wheel/tools $(PROJECT) $(SOURCES)
	@echo "Building the wheel and installing it into .venv-wheel"
	@rm -rf build
	@$(WHEEL)/pip install --quiet --no-deps --force-reinstall .
	@touch $@
