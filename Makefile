# Everything runs in .venv, which is built once, and again when the pins in requirements.lock change.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.built
# One of its tests fills the GPU, so there no other test may run beside them.
GPU := $(wildcard /dev/nvidia0)
# The files with tests of a mark: to import all others takes seconds.
marked = $(shell grep --recursive --files-with-matches --include='*.py' 'pytest\.mark\.$(1)\b' tests/integration)
# A user's first command should not have to compile; tests import a quarter of what is installed, and compile that.
COMPILE := $(if $(CI),,--compile-bytecode)
# Containers often forbid it; then each process would compile all that it imports, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env report kept test unit integration gpu lab release check format

env: $(STAMP)

$(STAMP): requirements.lock pyproject.toml lab/bin/lab
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "lab: Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); try: make $(or $(MAKECMDGOALS),env) PYTHON=python3.12"; exit 2; }
	@echo "lab: building .venv, once; it takes minutes, most of them for torch"
	@$(PYTHON) -m venv --clear .venv || \
	  { echo "lab: $(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv"; exit 2; }
	@# torch by pip, which knows where this machine gets it; all else by uv, which is faster, or by pip where uv cannot.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock torch torchvision uv
	@index="$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null)}"; \
	env UV_NATIVE_TLS=1 $${index:+UV_DEFAULT_INDEX="$$index"} \
	  $(BIN)/uv pip install --quiet $(COMPILE) --python $(BIN)/python --constraint requirements.lock --editable '.[dev]' || \
	  { echo "lab: uv could not install the rest; pip does"; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'; }
	@# Where Python may write no bytecode, each verb would otherwise compile the lab again.
	@$(BIN)/python -m compileall -q lab
	@touch $@

# The main job: the quickstart study on this machine's GPUs or CPU, to HTML and PDF; predicted beforehand, which takes a calibration.
# A single GPU has no second rank to compare with, so there the ranks are CPU cores.
report: env
	@profile=$$($(BIN)/python -c 'from lab import machine; print("cpu" if len(machine.gpus()) == 1 else "local")'); \
	if [ "$$profile" = cpu ]; then echo "lab: one GPU has no second to be compared with, so the quickstart runs on CPU cores; lab run gpu-training measures the GPU"; fi; \
	test -e slurm/calibration/$$profile.json || $(BIN)/lab calibrate reports/quickstart --cluster $$profile || \
	  echo "lab: without a calibration nothing is predicted"; \
	$(BIN)/lab run reports/quickstart --cluster $$profile

# The reports that the repository holds, again from the records beside them, and their index; `lab report STUDY --keep` adds one.
kept: env
	$(BIN)/lab report reports --all --keep

test: unit
	$(MAKE) integration

# Whole studies, Slurm and browsers; last those that believe their times: two at a time, as they mostly sleep, or alone, as
# they compute. Where chromium or Slurm is missing its tests are skipped, unless CI=true.
integration: env
	$(if $(GPU),$(BIN)/python -P -m pytest tests/gpu)
	$(BIN)/python -P -m pytest tests/integration tests/fuzz $(if $(GPU),,tests/gpu) -m "not quiet and not alone" --numprocesses 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -P -m pytest $(call marked,quiet) -m quiet --numprocesses 2 --dist loadfile
	$(BIN)/python -P -m pytest $(call marked,alone) -m alone

# No test looks at logs, and catching them in each of thousands takes a tenth of their time.
unit: env
	$(BIN)/python -P -m pytest tests/unit --numprocesses auto --dist worksteal -p no:logging

# What a GPU must prove, and what a CPU can prove of the same; skipped by name where there is no GPU.
gpu: env
	$(BIN)/python -P -m pytest tests/gpu -v -rs

# JupyterLab on the loopback interface, with a token.
lab: env
	$(BIN)/jupyter lab --ServerApp.ip=127.0.0.1 notebooks

# The lessons without their solutions, in course/release; course/ is a course folder for nbgrader.
release: env
	$(BIN)/lab course release course

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/nbstripout --verify --extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution" $$(git ls-files '*.ipynb')
	$(BIN)/codespell $$(git ls-files)

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/nbstripout --extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution" $$(git ls-files '*.ipynb')
