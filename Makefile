# Everything runs in one virtual environment, which these targets make by themselves.
PYTHON ?= python3
VENV   ?= .venv
PROMPT ?= The capital of France is
TOKENS ?= 30
BIN    := $(VENV)/bin

.PHONY: demo test lint types layers bench clean

# Compile the real Gemma 3 270M at six bits a weight and let the compiled bundle write.
demo: $(VENV)/.ready
	$(BIN)/python examples/gemma3_270m.py build/gemma-3-270m.gguf
	$(BIN)/topoc compile gemma3_270m_6bit.topo --weights build/gemma-3-270m.gguf \
	  --calibrate examples/calibration.txt -o build/gemma3_270m_6bit
	$(BIN)/topoc run build/gemma3_270m_6bit --prompt "$(PROMPT)" --max-tokens $(TOKENS)

# Style, types, layer contracts, then every test.
test: lint types layers
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	cd .typing && ../$(BIN)/mypy --config-file ../pyproject.toml

layers: $(VENV)/.ready
	$(BIN)/lint-imports

# The measured demands, as ratios where there is a peer; SMOKE=--smoke only shows that they run.
bench: $(VENV)/.ready
	for one in tests/bench/*.py; do $(BIN)/python $$one $(SMOKE) || exit 1; done

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,oracle,dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
