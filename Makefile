# Two commands do everything on a fresh machine with Python >= 3.10: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Some machines set it: each of 70 processes of the tests would then compile 2,000 modules of torch anew, 1.5 s each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test units test-robot test-all mujoco4 leapp fmt lint types lock audit sbom wheel install-matrix bench doctor clean

setup: $(STAMP)

# The locks hold every package with its hash, so nothing is resolved (--no-deps); `pip check` says when one is missing.
# What is imported is compiled then: of 19,000 modules, 40 s of a processor, few are.
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCKED := $(PIP) install --quiet --no-compile --no-deps --require-hashes
UV := $(VENV)-tools/bin/uv pip compile --quiet --no-header --no-annotate --generate-hashes
TORCH := /^[a-z]/ {torch = /^(torch|nvidia-|triton|cuda-)/}

# Rebuilt only when a lock or the metadata changes; the interpreter is checked so that a broken venv is made anew.
$(STAMP): requirements.lock requirements-torch.lock requirements-cpu.lock requirements-ros.lock setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed, this is " + sys.version)'
	@$(BIN)/python -c 'pass' 2>/dev/null || { echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing pinned packages (a minute or two)"
	@# torch for CPUs where a folder of wheels has it, else PyPI's with its CUDA libraries
	@$(LOCKED) --no-index -r requirements-cpu.lock 2>/dev/null || $(LOCKED) -r requirements-torch.lock
	@$(LOCKED) -r requirements.lock
	@# rclpy: a sourced ROS brings its own; wheels exist for some Pythons only
	@if [ -z "$$ROS_DISTRO" ] && [ "$$(uname -sm)" = "Linux x86_64" ] && $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'; \
	then $(LOCKED) -r requirements-ros.lock; \
	else echo "no ROS wheels installed: a ROS is sourced, or this Python has none (3.11 and 3.12 do)"; fi
	@# the checkout itself, editable; its build needs setuptools alone, which the lock has brought
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@$(PIP) check
	@touch $(STAMP)

demo: setup
	@$(BIN)/robot-rl train preset=demo

# The console's tests drive a real browser; as root on Debian it is installed, elsewhere they skip and say so.
BROWSER := command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
GET_BROWSER := $(BROWSER) || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium for the console's tests" \
	&& apt-get install -y -qq chromium chromium-driver >/dev/null 2>&1; } || echo "no chromium: the console's browser tests skip"
SHORT := not slow and not gpu and not isaac

# Everything but live robots and the browser, of which one smoke test each is here; the rest of them: make test-robot.
test: setup
	@$(GET_BROWSER)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j2 types units
	@$(BIN)/python -m pytest -q tests/real tests/human -m "smoke and $(SHORT)"

# A file goes to one process, which makes what its tests share once; one process more than processors, since many wait.
# In the order of the folders: sorted by their number of tests, files of few long ones would come last.
units: setup
	@$(BIN)/python -m pytest -q -n $$(( $$(nproc) < 3 ? $$(nproc) + 1 : 4 )) --dist loadfile --no-loadscope-reorder -m "not live and $(SHORT)"

# Robots as processes of their own and a person's page in a browser, in real time: they want the machine to themselves.
test-robot: setup
	@$(GET_BROWSER)
	@$(BIN)/python -m pytest -q tests/real tests/human -m "live and $(SHORT)"

test-all: setup
	@$(GET_BROWSER)
	@$(BIN)/python -m pytest -q -m "not live and not gpu and not isaac"
	@$(BIN)/python -m pytest -q tests/real tests/human -m "live and not gpu and not isaac"
	@$(MAKE) mujoco4 leapp wheel install-matrix

# Our worlds on the next major MuJoCo; it is laid beside the pinned one, which gymnasium-robotics needs.
mujoco4: setup
	@test -d $(VENV)-mujoco4/mujoco || $(BIN)/python -m pip install -q --no-deps --target $(VENV)-mujoco4 mujoco==4.0.0 mujoco-core==4.0.0
	@PYTHONPATH=$(VENV)-mujoco4 $(BIN)/python -c 'import mujoco; print("mujoco", mujoco.__version__)'
	@PYTHONPATH=$(VENV)-mujoco4 $(BIN)/python -m pytest -q -m "not slow" tests/sim tests/jobs

# Bundles with the package that writes them; it is in no lock, since one that it needs has wheels for glibc 2.34 alone.
leapp: setup
	@test -d $(VENV)-leapp/leapp || $(BIN)/python -m pip install -q --no-deps --target $(VENV)-leapp leapp==0.7.2 fast-sugiyama==0.5.3
	@PYTHONPATH=$(VENV)-leapp $(BIN)/python -m pytest -q tests/test_onnx_policy.py tests/real/test_leapp_port.py

fmt: setup
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell README.md CHANGELOG.md docs robot_rl sim real launch policies configs tests

types: setup
	@$(BIN)/pyright --pythonpath $(BIN)/python

$(VENV)-tools/.ready: requirements-tools.lock
	@$(PYTHON) -m venv --clear $(VENV)-tools
	@$(VENV)-tools/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-tools.lock
	@touch $@

# requirements-cpu.lock is written by hand: its wheels are not on PyPI.
lock: $(VENV)-tools/.ready
	@$(UV) --universal --python-version 3.10 requirements.in -o $(VENV)-tools/all.lock
	@{ head -2 requirements.lock; awk '$(TORCH) !torch' $(VENV)-tools/all.lock; } > $(VENV)-tools/lock && mv $(VENV)-tools/lock requirements.lock
	@{ head -1 requirements-torch.lock; awk '$(TORCH) torch' $(VENV)-tools/all.lock; } > $(VENV)-tools/lock && mv $(VENV)-tools/lock requirements-torch.lock
	@$(UV) --python-version 3.11 -c requirements.lock requirements-ros.in -o $(VENV)-tools/ros.lock
	@{ head -1 requirements-ros.lock; awk '/^[a-z]/ {ros = /^(ros-|empy|lark)/} ros' $(VENV)-tools/ros.lock; } > $(VENV)-tools/lock && mv $(VENV)-tools/lock requirements-ros.lock
	@$(UV) --universal --python-version 3.10 requirements-tools.in -o requirements-tools.lock

# Known vulnerabilities of what the locks pin (asks PyPI); one that cannot be looked up fails.
audit: $(VENV)-tools/.ready
	@$(VENV)-tools/bin/pip-audit --strict --disable-pip --require-hashes -r requirements.lock -r requirements-torch.lock

# Bill of materials of what is installed, CycloneDX.
sbom: setup $(VENV)-tools/.ready
	@mkdir -p dist && $(VENV)-tools/bin/cyclonedx-py environment $(BIN)/python --output-reproducible -o dist/robot_rl.cdx.json && echo dist/robot_rl.cdx.json

# The pages as a site, every link checked; options and docstrings are read from the code.
docs: setup $(VENV)-tools/.ready
	@$(BIN)/python docs/reference.py
	@NO_MKDOCS_2_WARNING=1 $(VENV)-tools/bin/mkdocs build --quiet --strict && echo site/index.html

wheel: setup
	@$(BIN)/python tests/release/check_artifacts.py

# The wheel with base, sim and all on every Python that is installed: another user, nothing writable, no home, no network.
install-matrix: setup $(VENV)-tools/.ready
	@$(BIN)/python tests/release/install_matrix.py --uv $(VENV)-tools/bin/uv

bench: setup
	@for suite in advantage env inference replay sac ppo; do $(BIN)/robot-rl bench $$suite || exit 1; done

doctor: setup
	@$(BIN)/robot-rl doctor

clean:
	rm -rf build dist site docs/reference *.egg-info robot_rl.egg-info .pytest_cache .ruff_cache .hypothesis
