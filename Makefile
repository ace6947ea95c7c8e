# Everything hangs off one environment, .venv, made on first use.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
EXPERIMENTS := toy_gaussian nll_overfitting calibratability
ALL := $(sort $(patsubst nbs/experiments/%.ipynb,%,$(wildcard nbs/experiments/*.ipynb)))
OTHERS := $(filter-out $(EXPERIMENTS) report,$(ALL)) report

# pip names hundreds of files: of those it fetches, the ones of 50 MB and more are told
TELL := grep --line-buffered -oE '(Downloading|Using cached) [^ ]+ \(([5-9][0-9]|[0-9]{3,})(\.[0-9]+)? MB\)|^Installing collected packages'
PIP = $(BIN)/python -u -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt
install = @{ $(PIP) -e '$(1)'; echo $$? > .venv/.pip; } | { $(TELL) || true; }; exit $$(cat .venv/.pip)

.PHONY: help demo test check one lab docs sync hooks bench gallery clean
.DEFAULT_GOAL := help

help:            ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

$(READY): setup.py settings.ini pyproject.toml constraints.txt
	@echo 'making .venv, once: torch, JupyterLab and what they need, a few minutes; the largest files are named as they come'
	$(PYTHON) -m venv .venv
	$(call install,.[dev])
	touch $@

demo: $(READY)   ## run the headline experiments; prints where their notebooks, figures, tables and findings lie
	$(BIN)/calibnb run $(EXPERIMENTS)

test: $(READY)   ## the lesson cells of all notebooks, then tests/
	$(BIN)/nbdev_test --n_workers 2
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

# two jobs side by side, the first one's output after the second's; fails if either does
both = @$(1) > .venv/.first 2>&1 & first=$$!; $(2); second=$$?; wait $$first; first=$$?; cat .venv/.first; exit $$((first + second))

check: $(READY)  ## the rules of the house: exports in sync, ruff, types, names, order of imports, sizes
	$(BIN)/ruff check
	$(call both,$(BIN)/basedpyright,$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/house/test_house.py tests/house/test_readable.py)

one: $(READY)    ## lessons and tests of one wing: make one W=metrics
	$(call both,$(BIN)/nbdev_test --n_workers 2 --path $(firstword $(wildcard nbs/[0-9][0-9]_$(W) nbs/[0-9][0-9]_$(W).ipynb)),\
	  $(if $(wildcard tests/$(W)),$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/$(W),true))

lab: $(READY)    ## JupyterLab, on its start page
	$(BIN)/jupyter lab --notebook-dir=nbs nbs/explore/start.ipynb

docs: $(READY)   ## the documentation site, from notebooks and docstrings: _docs/site/index.html
	$(BIN)/python docs/make_docs.py

sync: $(READY)   ## after editing notebooks: export modules, clean notebooks, rewrite README.md
	$(BIN)/nbdev_export
	$(BIN)/nbdev_clean
	$(BIN)/nbstripout --keep-id nbs/*.ipynb nbs/*/*.ipynb
	$(BIN)/python docs/sources.py
	$(BIN)/python docs/house.py
	$(BIN)/jupyter nbconvert --log-level WARN --to markdown --output-dir . --output README nbs/index.ipynb
	awk '/^```/ {inside = !inside; if (inside && $$0 == "```") $$0 = "```python"} {print}' README.md > README.md.tmp
	mv README.md.tmp README.md

hooks: $(READY)  ## git's hooks and merge driver for notebooks, in this clone
	$(BIN)/nbdev_install_hooks

bench: $(READY)  ## measure against peers, in one process, on one thread; writes benchmarks/RESULTS.md
	$(call install,.[bench])
	$(BIN)/python benchmarks/run.py

gallery: $(READY) ## run every experiment in its quick mode and copy the executed notebooks to runs/gallery/
	CALIBNB_RUNS=runs/.gallery $(BIN)/calibnb run $(EXPERIMENTS) $(OTHERS) --again --copy-to runs/gallery
	$(BIN)/python -c "from calibnb.notebooks.pages import write_gallery; write_gallery('runs/gallery', '$(EXPERIMENTS) $(OTHERS)'.split())"

clean:           ## remove the environment and caches; runs stay
	rm -rf .venv *.egg-info .pytest_cache .hypothesis
