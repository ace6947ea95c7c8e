# Everything hangs off one environment, .venv, made on first use and filled in two steps: for notebooks, for changes.
SHELL := bash
PYTHON ?= python3
BIN := .venv/bin
NOTEBOOKS := .venv/.notebooks
DEV := .venv/.dev
# each process would compile torch, pandas and the rest anew where this is set, as it is in many containers
unexport PYTHONDONTWRITEBYTECODE
# the first experiments of the gallery
EXPERIMENTS := toy_gaussian nll_overfitting calibratability
# the experiments of `make demo`, in two minutes on two cores; five seeds, since fewer decide no claim
DEMO := toy_gaussian nll_overfitting shift -p n_seeds 5 -p nll_overfitting.epochs 20 -p nll_overfitting.gammas '[3.0]' \
  -p shift.epochs 15 -p shift.members 2 -p shift.kinds '["rotate", "fog"]'
ALL := $(sort $(patsubst nbs/experiments/%.ipynb,%,$(wildcard nbs/experiments/*.ipynb)))
# more than the defaults, which take a minute each
GALLERY := -p loss_comparison.n_seeds 10 -p weighted_gradients.n_seeds 10 -p shift.n_seeds 10 \
  -p loss_comparison.others '["mbls", "acls", "max_sup", "logit_norm", "mdca", "dca", "adafocal"]' \
  -p calibratability.shares '[0.0, 0.25, 0.5, 0.75]' \
  -p meta_regularization.epochs 40 -p weighted_gradients.epochs 30
# evidence reads the table in runs/gallery/cifar10, of trainings that took hours, and is kept beside it
OTHERS := $(filter-out $(EXPERIMENTS) evidence report,$(ALL)) report

# uv does in half a minute what takes pip five; pip does it where uv cannot, and with `make UV=`
UV ?= uv
PIP = $(BIN)/python -u -m pip install --disable-pip-version-check --progress-bar off
UV_INSTALL = $(BIN)/uv pip install --python $(BIN)/python
# both name hundreds of files: of those they fetch, the ones of 50 MB and more are told
UV_TELL := grep --line-buffered -vE '^ [-+~] |^(Using Python|Resolved|Prepared|Uninstalled)|^ *(Downloaded|Building|Built) |\(([1-4]?[0-9]\.[0-9]M|[0-9.]+K)iB\)$$'
PIP_TELL := grep --line-buffered -oE '(Downloading|Using cached) [^ ]+ \(([5-9][0-9]|[0-9]{3,})(\.[0-9]+)? MB\)|^Installing collected packages'
by_uv = { test -x $(BIN)/uv && $(UV_INSTALL) -c constraints.txt -e '$(1)' 2>&1 | $(UV_TELL); }
by_pip = { echo 'pip installs, in some minutes'; $(PIP) -c constraints.txt -e '$(1)' | { $(PIP_TELL) || true; }; }
# an environment that another checkout made would import this one from then on
theirs = .venv is a link to the environment of another checkout: remove the link, and one is made here
own = test ! -L .venv || test ! -e .venv/bin || test "$$(cat .venv/.made)" = "$(CURDIR)" || { echo '$(theirs)'; exit 1; }
install = @$(own); set -o pipefail; $(if $(UV),$(by_uv) ||) $(by_pip)

.PHONY: help demo test slow processors check one lab docs sync hooks bench cuda gpu mutants gallery plans release clean
.DEFAULT_GOAL := help

help:                  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

.venv/.made:
	@$(own)
	@echo 'making .venv, once'
	@$(PYTHON) -m venv .venv
	$(if $(UV),@$(PIP) --quiet --quiet $(UV) || echo 'uv cannot be had')
	@echo '$(CURDIR)' > $@

$(NOTEBOOKS): setup.py settings.ini pyproject.toml constraints.txt | .venv/.made
	@echo 'installing torch, JupyterLab and what they need: half a minute or some, the largest files are named as they come'
	$(call install,.[notebooks])
	@touch $@

$(DEV): setup.py settings.ini pyproject.toml constraints.txt | .venv/.made
	@echo 'installing what the tests and the site need, on top of torch and JupyterLab: half a minute or some'
	$(call install,.[dev])
	@touch $(NOTEBOOKS) $@

demo: $(NOTEBOOKS)     ## run three studies in two minutes: their figures and findings on one page, runs/demo/index.html
	@$(BIN)/calibnb run $(DEMO) --page runs/demo/index.html

LESSONS := $(BIN)/python tests/lessons.py

# two jobs side by side, the first one's output after the second's; fails if either does
both = @$(1) > .venv/.first 2>&1 & first=$$!; $(2); second=$$?; wait $$first; first=$$?; cat .venv/.first; exit $$((first | second))

PYTEST := $(BIN)/python -m pytest -q --dist loadfile --no-loadscope-reorder

# tests of kernels and of killed processes wait much of their time: two cores have work for more than two
test: $(DEV)           ## all that a change can break on one machine: the lessons of all rooms and, beside them, tests/
	$(call both,$(LESSONS),$(PYTEST) -n 3 tests --ignore=tests/slow)

slow: $(DEV)           ## what needs a browser, a cluster, a wheel, the site, kills at length: ONLY="browser wheel"
	$(PYTEST) -n 2 $(if $(ONLY),$(ONLY:%=tests/slow/test_%.py),tests/slow)

processors: $(DEV)     ## the tests that compare numbers, as on six other processors: ONLY="oldest mkl", QUICK=1
	$(BIN)/python tests/processors.py $(ONLY) $(if $(QUICK),--quick)

check: $(DEV)          ## the rules of the project: exports in sync, ruff, types, names, order of imports
	$(BIN)/ruff check
	$(call both,$(BIN)/basedpyright,$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/house/test_house.py tests/house/test_imports.py)

one: $(DEV)            ## lessons and tests of one wing: make one W=metrics
	$(call both,$(LESSONS) $(firstword $(wildcard nbs/[0-9][0-9]_$(W) nbs/[0-9][0-9]_$(W).ipynb)),\
	  $(if $(wildcard tests/$(W)),$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/$(W),true))

lab: $(DEV)            ## JupyterLab, on its start page
	$(BIN)/calibnb lab

docs: $(DEV)           ## the documentation site, from notebooks and docstrings: _docs/site/index.html
	$(BIN)/python docs/make_docs.py

sync: $(DEV)           ## after editing notebooks: export modules, store outputs of changed rooms, write README.md
	$(BIN)/nbdev_export
	$(BIN)/python docs/names.py
	$(BIN)/nbdev_export
	$(BIN)/nbdev_clean
	$(BIN)/nbstripout --keep-id nbs/index.ipynb nbs/experiments/*.ipynb nbs/explore/*.ipynb
	$(BIN)/python docs/sources.py
	$(BIN)/python docs/doors.py
	$(BIN)/python docs/house.py
	$(BIN)/python docs/places.py
	$(BIN)/python docs/evidence.py --write
	$(BIN)/python docs/claims.py
	$(BIN)/python docs/checks.py
	$(BIN)/jupyter nbconvert --log-level WARN --to markdown --output-dir . --output README nbs/index.ipynb
	awk '/^```/ {inside = !inside; if (inside && $$0 == "```") $$0 = "```python"} {print}' README.md > README.md.tmp
	mv README.md.tmp README.md
	$(BIN)/python docs/outputs.py

hooks: $(DEV)          ## git's hooks and merge driver for notebooks, in this clone
	$(BIN)/nbdev_install_hooks

bench: $(DEV)          ## measure against peers, in one process, on one thread; writes benchmarks/RESULTS.md
	$(call install,.[bench])
	$(BIN)/python benchmarks/run.py

# looked for before anything is installed, so without torch
HAS_CUDA := nvidia-smi -L 2> /dev/null | grep -q GPU || test -e /proc/driver/nvidia/version -o -e /dev/nvidiactl
no_cuda = make gpu: no NVIDIA GPU is here, so nothing was installed; make gpu DRY=1 tries every line of it on a CPU

cuda:
	@$(if $(DRY),true,{ $(HAS_CUDA); } || { echo '$(no_cuda)'; exit 2; })

gpu: cuda $(DEV)       ## on a GPU, ten minutes: is all of it right there, and how fast? DRY=1: try every line of it on a CPU
	$(BIN)/python benchmarks/gpu.py $(if $(DRY),--dry)

mutants: $(DEV)       ## how many small faults in calibnb/ do the tests see? N=80 SEED=0; about an hour
	$(BIN)/python tests/mutants.py $(or $(N),80) --seed $(or $(SEED),0)

gallery: $(NOTEBOOKS)  ## run every experiment in its quick mode and copy the executed notebooks to runs/gallery/
	CALIBNB_RUNS=runs/.gallery $(BIN)/calibnb run $(EXPERIMENTS) $(OTHERS) $(GALLERY) --again --copy-to runs/gallery
	CALIBNB_RUNS=runs/.gallery $(BIN)/calibnb run evidence --again --copy-to runs/gallery/cifar10
	$(BIN)/python docs/gallery.py runs/gallery $(EXPERIMENTS) $(OTHERS)

plans: $(DEV)          ## after changing what a notebook trains: hours of each command of the papers, nbs/plans.csv
	$(BIN)/python docs/plans.py
	$(BIN)/python docs/places.py

release: $(DEV)        ## on a clean tree: version, CHANGELOG, tag, and dist/ built and checked; VERSION=1.2.0; publishes nothing
	$(BIN)/python docs/release.py $(VERSION)

clean:                 ## remove the environment and caches; runs stay
	rm -rf .venv *.egg-info .pytest_cache .hypothesis
