"""Every command of training that the docs show is one that would run: it composes, and its typed job takes it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from echo_env.cli import app

pytest.importorskip("hydra")

from hydra import compose, initialize_config_dir

from echo_env.errors import ConfigError
from echo_env.trainers.commandline import CONFIGS, check_overrides, settings_of
from echo_env.trainers.job import StopReason, checked, make_job
from echo_env.trainers.openrlhf.fates import refuse
from echo_env.trainers.openrlhf.settings import OpenRLHFSettings
from echo_env.trainers.prompts import PromptsJob
from echo_env.trainers.sftjob import SftJob
from echo_env.trainers.strategyppo import StrategyJob

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/training.md", "docs/models.md", "configs/README.md")


def _dapo(settings: Mapping[str, Any]) -> None:
    job = make_job(settings)
    if job.engine.name == "openrlhf":
        checked(OpenRLHFSettings, job.engine.settings(), "engine")
        refuse(job)


LAW: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "dapo": _dapo,
    "sft": lambda settings: checked(SftJob, settings),
    "prompts": lambda settings: checked(PromptsJob, settings),
    "strategy": lambda settings: checked(StrategyJob, settings),
}
"""Entry point -> what makes its typed job of settings."""


def _shown() -> list[str]:
    """Return the lines of code of the pages, and what `make run` and its like would do."""
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    lines = [line for page in pages for line in re.findall(r"^ {4}(\S.*)$", page, re.MULTILINE)]
    if not shutil.which("make"):
        return lines
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    plan = ["make", "-n", "-B", "run", "smollm2"]
    told = subprocess.run(plan, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return lines + told.stdout.splitlines()


SHOWN = _shown()


def written(program: str) -> list[str]:
    """Return what stands behind a program in each command that is shown, without its comment."""
    found = [re.match(rf"\S*(?:\w+=\d+ )?\S*{program} (.*)", line) for line in SHOWN]
    return sorted({re.split(r"\s+#", match[1])[0].strip() for match in found if match})


COMMANDS = [(script, shlex.split(line)) for script in LAW for line in written(rf"python trainers/{script}\.py")]


def take(script: str, overrides: list[str]) -> None:
    """Compose and validate, as the entry point does before it starts."""
    check_overrides(overrides, script)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        LAW[script](settings_of(compose(script, [*overrides, "dry_run=true"])))


def test_the_pages_show_every_entry_point() -> None:
    shown = {script for script, _ in COMMANDS}
    assert shown == set(LAW)
    assert len(COMMANDS) > 15


@pytest.mark.parametrize(("script", "overrides"), COMMANDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_of_training_is_taken(script: str, overrides: list[str]) -> None:
    take(script, overrides)


@pytest.mark.parametrize(
    ("script", "overrides"),
    [("dapo", ["optim.rate=1"]), ("dapo", ["algo=rloo", "algo.group=1"]), ("sft", ["data=[{file: a.jsonl}]"])],
)
def test_a_command_that_has_rotted_would_be_found(script: str, overrides: list[str]) -> None:
    with pytest.raises(ConfigError):
        take(script, overrides)


@pytest.mark.parametrize("line", written("echo-env"))
def test_options_of_echo_env_exist(line: str) -> None:
    given = shlex.split(line)
    command: Any = typer.main.get_command(app)
    while given and hasattr(command, "commands"):
        assert given[0] in command.commands, line
        command, given = command.commands[given[0]], given[1:]
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    assert {word.partition("=")[0] for word in given if word.startswith("--")} <= known


def test_tables_of_the_guide_name_what_there_is() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    table = text.split("| `algo=` |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {f.stem for f in (CONFIGS / "algo").glob("*.yaml")}
    alarms = text.split("| alarm |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", alarms, re.MULTILINE)) == set(get_args(StopReason))
