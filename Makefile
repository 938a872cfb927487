# Two commands do everything on a fresh machine with Python >= 3.10: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test test-all mujoco4 fmt lint types lock wheel bench doctor clean

setup: $(STAMP)

# Rebuilt only when the lock file changes; the interpreter is checked so that a broken venv is made anew.
$(STAMP): requirements.lock requirements-ros.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed, this is " + sys.version)'
	@$(BIN)/python -c 'pass' 2>/dev/null || { echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing pinned packages (a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@# rclpy: a sourced ROS brings its own; wheels exist for some Pythons only
	@if [ -z "$$ROS_DISTRO" ] && [ "$$(uname -sm)" = "Linux x86_64" ] && $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'; \
	then $(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-ros.lock; \
	else echo "no ROS wheels installed: a ROS is sourced, or this Python has none (3.11 and 3.12 do)"; fi
	@# the checkout itself, by path: no build step, and edits take effect at once
	@$(BIN)/python -c 'import site; open(site.getsitepackages()[0] + "/robot_rl_checkout.pth", "w").write("$(CURDIR)\n")'
	@printf '#!/bin/sh\nexec "%s" -m robot_rl "$$@"\n' "$(abspath $(BIN))/python" > $(BIN)/robot-rl && chmod +x $(BIN)/robot-rl
	@touch $(STAMP)

demo: setup
	@$(BIN)/robot-rl train experiment=demo

# The console's tests drive a real browser; as root on Debian it is installed, elsewhere they skip and say so.
BROWSER := command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null

test: setup
	@$(BROWSER) || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium for the console's tests" \
	&& apt-get install -y -qq chromium chromium-driver >/dev/null 2>&1; } || echo "no chromium: the console's browser tests skip"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell README.md CHANGELOG.md docs robot_rl sim real launch policies configs tests
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --ignore tests/real/ros -m "not slow and not gpu and not isaac"
	@# Robots in real time want the machine to themselves. What a busy moment of it breaks is tried once more and said
	@# aloud; what fails twice fails.
	@$(BIN)/python -m pytest -q tests/real/ros -m "not slow and not gpu and not isaac" || { echo "once more, what failed:"; \
	$(BIN)/python -m pytest -q tests/real/ros -m "not slow and not gpu and not isaac" --last-failed --last-failed-no-failures none; }

test-all: setup
	@$(BIN)/python -m pytest -q --ignore tests/real/ros -m "not gpu and not isaac"
	@$(BIN)/python -m pytest -q tests/real/ros -m "not gpu and not isaac"
	@$(MAKE) mujoco4 wheel

# Our worlds on the next major MuJoCo; it is laid beside the pinned one, which gymnasium-robotics needs.
mujoco4: setup
	@test -d $(VENV)-mujoco4/mujoco || $(BIN)/python -m pip install -q --no-deps --target $(VENV)-mujoco4 mujoco==4.0.0 mujoco-core==4.0.0
	@PYTHONPATH=$(VENV)-mujoco4 $(BIN)/python -c 'import mujoco; print("mujoco", mujoco.__version__)'
	@PYTHONPATH=$(VENV)-mujoco4 $(BIN)/python -m pytest -q -m "not slow" tests/sim tests/jobs

fmt: setup
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell README.md CHANGELOG.md docs robot_rl sim real launch policies configs tests

types: setup
	@$(BIN)/pyright --pythonpath $(BIN)/python

lock: setup
	@$(PYTHON) -m pip install --quiet uv && $(PYTHON) -m uv pip compile --universal --python-version 3.10 --no-header --no-annotate requirements.in \
	| grep -vE '^(nvidia-|triton|cuda-)' > requirements.lock
	@$(PYTHON) -m uv pip compile --python-version 3.11 --no-header --no-annotate -c requirements.lock requirements-ros.in \
	| grep -E '^(ros-|empy|lark)' > requirements-ros.lock

wheel: setup
	@$(BIN)/python tests/release/check_artifacts.py

bench: setup
	@for suite in advantage env inference replay sac ppo; do $(BIN)/robot-rl bench $$suite || exit 1; done

doctor: setup
	@$(BIN)/robot-rl doctor

clean:
	rm -rf build dist *.egg-info robot_rl.egg-info .pytest_cache .ruff_cache .hypothesis
