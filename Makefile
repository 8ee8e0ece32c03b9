# `make help` lists every target. Variables are given on the command line: make wheels STACK=slime-0.2.4 SOURCE_slime=PATH

# The Python that runs this project's own tools; any >= 3.11.
BOOTSTRAP_PYTHON ?= python3
# The engines' wheels are for Python 3.11; a BOOTSTRAP_PYTHON that somebody named is taken for theirs too.
ENGINES_PYTHON = $(if $(filter file,$(origin BOOTSTRAP_PYTHON)),python3.11,$(BOOTSTRAP_PYTHON))

# What wheels and bundle are made for. Plain assignments: a PYTHON or PLATFORM in the environment means something else.
STACK = verl-0.8
PLATFORM =
PYTHON =
# SOURCE_<upstream>=PATH, from the command line or the environment, reaches the verb: make exports both by itself.

# The image: the chip (a2, a3), a base of one's own, docker or buildah; RELEASE=1 stops unless anyone can build it again,
# CONTEXT_ONLY=1 makes the context and builds nothing.
CHIP = a2
BASE =
BUILDER =
RELEASE =
CONTEXT_ONLY =

# The demo: the rollout engine (ascend, vllm or sglang), fsdp or fsdp2 (both), a fault of demo/faults.py to plant, and
# what msprobe dumps: statistics or tensor.
ENGINE =
STRATEGY =
FAULT =
TASK =
# Seconds after which one of verl's training loops is given up (900).
TIMEOUT =
# What demo-plan plans (verl-hybrid), and for how many training ranks (1).
SCENARIO =
RANKS =
# Anything, for a fully asynchronous loop whose weight sync interrupts requests; below dist/demo-interrupted.
INTERRUPT =

# More arguments for pytest, for example ARGS="-k weave -x".
ARGS =

BIN = .venv/bin
ENGINES = .venv-engines/bin
VLLM_ENGINE = .venv-engines-vllm/bin
PIP = python -m pip --disable-pip-version-check --quiet
# With pip's progress where somebody looks on.
LOUD_PIP = $(if $(MAKE_TERMOUT),$(subst --quiet,,$(PIP)),$(PIP))
IMAGE = $(BIN)/python -m build.image --stack $(STACK) --chip $(CHIP) $(if $(PLATFORM),--platform $(PLATFORM)) \
  $(if $(BASE),--base $(BASE)) $(if $(RELEASE),--release)
CHOICE = --stack $(STACK) $(if $(PLATFORM),--platform $(PLATFORM)) $(if $(PYTHON),--python $(PYTHON))

# make itself ends with 0 or 2, so the status of the verb is said, and make's own last line repeats it ("Error N").
# said: a command, and the name that its status is said with.
define said
@status=0; $(1) || status=$$?; \
case $$status in \
  0) word="done" ;; \
  1) word="the thing looked for was found: a difference, a broken rule, a drifted anchor" ;; \
  2) word="the command line is wrong" ;; \
  3) word="not enough evidence: an input or a source is missing or unreadable" ;; \
  *) word="could not finish" ;; \
esac; \
echo "$(2): status $$status ($$word)"; exit $$status
endef
verb = $(call said,$(BIN)/consistency $(1),consistency $(firstword $(1)))

# A recipe's first line: the interpreter is there and new enough, or one line says so.
define bootstrap
@$(BOOTSTRAP_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "make: '$(BOOTSTRAP_PYTHON)' is not a Python >= 3.11; name one: make BOOTSTRAP_PYTHON=python3.11 $(MAKECMDGOALS)" >&2; \
  exit 1; }
endef

# The same for an environment with engines.
define engines_python
@$(ENGINES_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
  echo "make: '$(ENGINES_PYTHON)' is not Python 3.11, which the engines need; get it (apt install python3.11-venv," \
    "uv python install 3.11, pyenv install 3.11) and name it: make BOOTSTRAP_PYTHON=PATH $(MAKECMDGOALS)" >&2; \
  exit 1; }
endef

# And what it is about to fetch.
define bootstrap_engines
$(engines_python)
@echo "setting up .venv-engines: torch and the engines' other requirements, about 0.7 GB to download and 2.5 GB on disk" \
  "with a CPU build of torch, several GB more where the registry serves the CUDA build; runs once"
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup wheels bundle image image-inputs image-test demo demo-loop demo-fully-async demo-plan demo-slime test test-engines mutants bench lint lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: .venv/dev.stamp ## create .venv with this package (editable) and what tests and lint need; runs once

wheels: .venv/install.stamp ## build the wheels of STACK (verl-0.8) into dist/wheels; PLATFORM=aarch64 PYTHON=3.11 SOURCE_verl=PATH
	$(call verb,wheels $(CHOICE))

bundle: .venv/install.stamp ## one archive of STACK's wheels for hosts without a network; variables as for wheels
	$(call verb,wheels --bundle $(CHOICE))

image: .venv/dev.stamp ## build the image of STACK for CHIP (a2, a3); BASE=NAME:TAG BUILDER=docker|buildah RELEASE=1 CONTEXT_ONLY=1
	$(call said,$(IMAGE) $(if $(BUILDER),--builder $(BUILDER)) $(if $(CONTEXT_ONLY),--context-only),make image)

image-inputs: .venv/dev.stamp ## print one hash over all that can change an image: the same hash, nothing to build
	@$(IMAGE) --inputs

image-test: .venv/dev.stamp ## build images with buildah on a stand-in base and look into them; SOURCE_verl=PATH SOURCE_slime=PATH
	$(BIN)/python -m pytest -m image tests/image $(ARGS)

demo: .venv-engines/engines.stamp $(if $(filter vllm,$(ENGINE)),.venv-engines-vllm/engines.stamp)
demo: ## two engines on a CPU, compared, in dist/demo; ENGINE=vllm STRATEGY=fsdp FAULT=stale-weight TASK=tensor
	@$(ENGINES)/python -m demo.run $(if $(ENGINE),--engine $(ENGINE)) $(if $(STRATEGY),--strategy $(STRATEGY)) \
	  $(if $(FAULT),--fault $(FAULT)) $(if $(TASK),--task $(TASK))

demo-loop: .venv-engines/engines.stamp ## a step of verl's own training loop (Ray, agent loop, weight sync) on a CPU, compared, in dist/demo-loop
	@$(ENGINES)/python -m demo.run_loop $(if $(TIMEOUT),--timeout $(TIMEOUT))

demo-fully-async: .venv-engines/engines.stamp ## the same with verl's fully asynchronous trainer, two steps, in dist/demo-fully-async; INTERRUPT=yes
	@$(ENGINES)/python -m demo.run_loop $(if $(INTERRUPT),interrupted,fully-async) $(if $(TIMEOUT),--timeout $(TIMEOUT))

demo-plan: .venv-engines/engines.stamp ## a plan of `consistency plan`, by its own run.sh, in dist/demo-plan; SCENARIO=verl-fully-async RANKS=2
	@$(ENGINES)/python -m demo.run_plan $(SCENARIO) $(if $(RANKS),--ranks $(RANKS)) $(if $(TIMEOUT),--timeout $(TIMEOUT))

demo-slime: .venv-engines/engines.stamp ## SGLang and slime's actor on a CPU, compared; STACK=slime-0.2.2 SOURCE_slime=PATH
	@$(ENGINES)/python -m demo.run_slime $(if $(filter slime-%,$(STACK)),--stack $(STACK))

test: .venv/dev.stamp ## run the tests that need no engine; ARGS="-k weave" goes to pytest
	$(BIN)/python -m pytest $(ARGS)

test-engines: .venv-engines/engines.stamp ## run the tests that need torch and real engines, on a CPU, in .venv-engines
	$(ENGINES)/python -m pytest -m "engines and not long" -W default tests/engines $(ARGS)

mutants: .venv-engines/engines.stamp ## try the mutants of docs/traps.md whose tests need real engines; no part of CI
	$(ENGINES)/python -m pytest -m engines -W default tests/traps $(ARGS)

bench: .venv/bench.stamp .venv-engines/engines.stamp ## measure against the named rivals, as ratios in one run
	@for script in $(sort $(wildcard benchmarks/bench_*.py)); do \
	  echo "== $$script"; $(BIN)/python $$script || exit $$?; done

lint: .venv/dev.stamp ## ruff and mypy (strict); shellcheck and hadolint; schemas and zizmor over workflows and compose file
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests hatch_build.py $(wildcard build/*.py benchmarks/*.py)
	$(BIN)/python build/lint_shell.py
	$(BIN)/hadolint --config .hadolint.yaml docker/Dockerfile $(wildcard tests/image/*.Dockerfile)
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker/compose.yaml
	$(BIN)/zizmor --offline --quiet --persona pedantic .github/workflows

lock: .venv/install.stamp ## check that overlays, digests and VERSIONS.lock agree, and that no released revision has changed
	@$(BIN)/python build/release.py revision
	$(call verb,lock check)

clean: ## remove what make made here; downloads stay in their cache
	rm -rf .venv .venv-engines .venv-engines-vllm dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks build overlays -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp stands for a finished installation: an interrupted one has none and is done again.
.venv/install.stamp: pyproject.toml hatch_build.py
	$(bootstrap)
	$(BOOTSTRAP_PYTHON) -m venv .venv
	$(BIN)/$(PIP) install --editable .
	@touch $@

.venv/dev.stamp: .venv/install.stamp requirements/dev.txt
	$(BIN)/$(PIP) install --requirement requirements/dev.txt
	@touch $@

.venv/bench.stamp: .venv/install.stamp requirements/bench.txt
	$(BIN)/$(PIP) install --requirement requirements/bench.txt
	@touch $@

.venv-engines/engines.stamp: pyproject.toml hatch_build.py requirements/engines.txt requirements/engines-nodeps.txt
	$(bootstrap_engines)
	$(ENGINES_PYTHON) -m venv .venv-engines
	$(ENGINES)/$(LOUD_PIP) install --requirement requirements/engines.txt
	$(ENGINES)/$(LOUD_PIP) install --no-deps --requirement requirements/engines-nodeps.txt
	$(ENGINES)/$(PIP) install --editable '.[analysis]'
	@touch $@

# The rollout of `make demo ENGINE=vllm`; what no package brings is looked for before anything is fetched.
.venv-engines-vllm/engines.stamp: requirements/engines-vllm.txt requirements/engines-vllm-nodeps.txt | .venv-engines/engines.stamp
	$(engines_python)
	@$(ENGINES)/python -m demo.run --engine vllm --check
	@echo "setting up .venv-engines-vllm: torch 2.10.0 and vLLM's other requirements, about 0.6 GB to download with a CPU" \
	  "build of torch, 4 GB (8 GB on disk) where the registry serves the CUDA build; runs once"
	$(ENGINES_PYTHON) -m venv .venv-engines-vllm
	$(VLLM_ENGINE)/$(LOUD_PIP) install --requirement requirements/engines-vllm.txt
	$(VLLM_ENGINE)/$(LOUD_PIP) install --no-deps --requirement requirements/engines-vllm-nodeps.txt
	@touch $@
