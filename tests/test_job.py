"""The typed job: every file in configs/ composes to one, and a mistake is told in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("hydra")

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from echo_env.errors import ConfigError
from echo_env.trainers import commandline
from echo_env.trainers.job import Job, make_job
from echo_env.trainers.losses import DAPO, ECHO_JUDGE

CHOSEN = ("algo", "mode", "engine", "logger")
GROUPS = {group: sorted(f.stem for f in (commandline.CONFIGS / group).glob("*.yaml")) for group in CHOSEN}


def composed(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(commandline.CONFIGS), version_base="1.3"):
        settings: Any = OmegaConf.to_container(compose("dapo", list(overrides)), resolve=True)
    return settings


def job_of(*overrides: str) -> Job:
    return make_job(composed(*overrides))


@pytest.mark.parametrize("choice", [f"{group}={name}" for group, names in GROUPS.items() for name in names])
def test_every_group_composes_to_a_job(choice: str) -> None:
    group, _, name = choice.partition("=")
    job = job_of(choice)
    assert getattr(job, group).name == name


def test_the_groups_are_all_there() -> None:
    assert {"dapo", "grpo", "dr_grpo", "rloo", "reinforce_pp", "echo_judge", "peer"} <= set(GROUPS["algo"])
    assert GROUPS["mode"] == ["multiturn", "pseudo"]
    assert GROUPS["engine"] == ["local", "openrlhf"]


def test_the_model_groups_say_where_the_weights_are() -> None:
    assert job_of().model.path == "smollm2-135m"
    assert job_of("model=folder", "model.path=some/where").model.path == "some/where"


def test_the_files_say_what_the_model_has_by_itself() -> None:
    """Every setting stands in the YAML, so that it can be changed without a plus; and nothing that is no setting."""
    job = job_of()
    assert job.settings() == make_job(composed()).settings()
    written = composed()
    for part in ("optim", "monitor", "checkpoints", "mode", "data", "logger", "algo"):
        assert set(written[part]) == set(type(getattr(job, part)).model_fields)
    assert set(written) == set(Job.model_fields)


def test_presets_are_those_of_the_papers() -> None:
    assert job_of("algo=dapo").algo.objective == DAPO
    assert job_of("algo=echo_judge").algo.objective == ECHO_JUDGE
    judge = job_of("algo=echo_judge").algo
    assert judge.group == 8
    assert judge.overlong is not None
    assert judge.overlong.factor == 0.1
    assert job_of("algo=peer").algo.group == 4
    assert job_of("algo=dapo").algo.dynamic_sampling
    assert not job_of("algo=grpo").algo.dynamic_sampling


def test_a_job_survives_its_own_file() -> None:
    job = job_of("algo=peer", "+world.recipe_options.reference=adviser")
    assert make_job(yaml.safe_load(yaml.safe_dump(job.settings()))) == job


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["+algo.gruop=3"], "did you mean 'group'"),
        (["+udpates=3"], "did you mean 'updates'"),
        (["+algo.objective.clip.hihg=3"], "did you mean 'high'"),
        (["+world.recipee=epm"], "did you mean 'recipe'"),
        (["groups=0"], "greater than or equal to 1"),
        (["data.split=benchmark"], "never trained on"),
        (["data.split=benchmark-zh"], "never trained on"),
        (["data.split=dev"], "never trained on"),
        (["resume=true", "overwrite=true"], "contradict"),
        (["algo.group=1"], "at least 2"),
        (["algo.reward_kl=0.1"], "reinforce_pp"),
        (["algo=reinforce_pp", "algo.credit=turn"], "needs estimator 'group'"),
        (["mode=pseudo", "algo.credit=turn"], "no turns to credit"),
        (["monitor.stop_on=[lenght]"], "length"),
    ],
)
def test_a_mistake_is_told(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job_of(*overrides)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("udpates=3", "did you mean 'updates'"),
        ("algo.gruop=3", "did you mean 'group'"),
        ("algo=dpao", "did you mean 'dapo'"),
        ("optimm.lr=1", "did you mean 'optim'"),
    ],
)
def test_what_hydra_does_not_know_is_told_with_the_nearest_spelling(override: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        commandline.check_overrides([override], "dapo")
    assert told in str(caught.value)


def test_an_engine_checks_its_own_settings() -> None:
    from echo_env.trainers.job import checked
    from echo_env.trainers.local import LocalEngine

    job = job_of("+engine.micro_token=3")
    with pytest.raises(ConfigError) as caught:
        checked(LocalEngine, job.engine.model_dump(), "engine")
    assert "engine.micro_token" in str(caught.value)
    assert "did you mean 'micro_tokens'" in str(caught.value)


def test_the_command_works_from_anywhere_and_leaves_nothing(tmp_path: Path) -> None:
    """By its path, with another working directory: the job on stdout, and no file of Hydra's."""
    script = commandline.HERE / "dapo.py"
    done = subprocess.run(
        [sys.executable, str(script), "dry_run=true", "algo=grpo", "seed=7"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    job = make_job(yaml.safe_load(done.stdout))
    assert (job.algo.name, job.seed) == ("grpo", 7)
    assert list(tmp_path.iterdir()) == []


def test_the_command_tells_a_mistake_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "echo_env.trainers.dapo", "model=folder"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "model.path" in done.stderr
    assert "Traceback" not in done.stderr
