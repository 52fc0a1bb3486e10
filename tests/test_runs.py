"""A run's folder: what is kept, what is never lost, and who may go on with it."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from echo_env.errors import ConfigError, RecordError
from echo_env.record import RunHeader
from echo_env.trainers import checkpoints
from echo_env.trainers.job import MAY_CHANGE, Job, Logger, make_job
from echo_env.trainers.runs import Run, open_logger, open_run


def job(out: Path, **settings: Any) -> Job:
    algo = {"name": "dapo"} | settings.pop("algo", {})
    return make_job({"name": "t", "out": out, "model": {"path": "nowhere"}, "algo": algo, **settings})


def fill(text: str = "weights") -> Any:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(text)
        torch.save({"text": text}, folder / "state.pt")

    return write


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def test_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    for step, merit in [(1, 0.1), (2, 0.9), (3, None), (4, 0.3), (5, 0.2)]:
        checkpoints.save(tmp_path, step, fill(str(step)), keep=2, merit=merit)
    assert [f.name for f in checkpoints.steps(tmp_path)] == ["step-000002", "step-000004", "step-000005"]
    assert (tmp_path / "latest" / "model.safetensors").read_text() == "5"
    assert (tmp_path / "best" / "model.safetensors").read_text() == "2"
    assert checkpoints.newest(tmp_path) == tmp_path / "step-000005"
    assert checkpoints.load_state(tmp_path / "step-000004") == {"text": "4"}


def test_a_save_that_fails_leaves_the_last_good_one(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, fill("good"), keep=1)

    def full(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RecordError) as caught:
        checkpoints.save(tmp_path, 2, full, keep=1)
    assert "No space left" in str(caught.value)
    assert "step-000001 is whole" in str(caught.value)
    assert {f.name for f in tmp_path.iterdir()} == {"step-000001", "latest"}
    assert (tmp_path / "latest" / "model.safetensors").read_text() == "good"


@pytest.mark.parametrize("error", [RuntimeError("PytorchStreamWriter failed writing file"), KeyboardInterrupt()])
def test_whatever_ends_a_save_leaves_nothing_half(tmp_path: Path, error: BaseException) -> None:
    def broken(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise error

    with pytest.raises((RecordError, KeyboardInterrupt)):
        checkpoints.save(tmp_path, 1, broken, keep=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_a_really_full_disk(tmp_path: Path) -> None:
    """Weights that go to a device without space: torch's own error, told as ours."""

    def write(folder: Path) -> None:
        (folder / "state.pt").symlink_to("/dev/full")
        torch.save({"weights": torch.zeros(100_000)}, folder / "state.pt")

    with pytest.raises(RecordError, match="cannot be written"):
        checkpoints.save(tmp_path, 1, write, keep=1)
    assert checkpoints.steps(tmp_path) == []


def test_a_kill_while_saving_leaves_the_last_good_one(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, fill("good"), keep=1)
    code = """
        import os, signal, sys
        from pathlib import Path
        from echo_env.trainers import checkpoints
        def kill(folder):
            (folder / "model.safetensors").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        checkpoints.save(Path(sys.argv[1]), 2, kill, keep=1)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], timeout=120)
    assert done.returncode < 0
    assert checkpoints.newest(tmp_path) == tmp_path / "step-000001"
    checkpoints.save(tmp_path, 2, fill("next"), keep=1)
    assert {f.name for f in tmp_path.iterdir()} == {"step-000002", "latest"}


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda f: (f / "model.safetensors").write_text("xx"), "2 bytes, not 7"),
        (lambda f: (f / "model.safetensors").write_text("weighty"), "not what was written"),
        (lambda f: (f / "state.pt").unlink(), "state.pt is missing"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
    ],
)
def test_a_broken_checkpoint_is_told_with_the_last_good_one(tmp_path: Path, harm: Any, told: str) -> None:
    for step in (1, 2):
        checkpoints.save(tmp_path, step, fill(), keep=2)
    harm(tmp_path / "step-000002")
    with pytest.raises(RecordError) as caught:
        checkpoints.newest(tmp_path)
    assert told in str(caught.value)
    assert "the last good one is step-000001" in str(caught.value)


def test_the_only_checkpoint_is_broken(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, fill(), keep=2)
    (tmp_path / "step-000001" / "state.pt").write_bytes(b"")
    with pytest.raises(RecordError, match="no other one"):
        checkpoints.newest(tmp_path)


def test_a_kill_before_the_links_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is whole and `latest` is not yet its own; the next save of the same update mends that."""
    checkpoints.save(tmp_path, 1, fill("old"), keep=1, merit=0.1)

    def killed(link: Path, name: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_point", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(tmp_path, 2, fill("new"), keep=1, merit=0.9)
    assert checkpoints.newest(tmp_path) == tmp_path / "step-000002"
    checkpoints.save(tmp_path, 2, fill("never written"), keep=1, merit=0.9)
    assert {f.name for f in tmp_path.iterdir()} == {"step-000002", "latest", "best"}
    assert (tmp_path / "latest" / "model.safetensors").read_text() == "new"


def test_a_merit_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    for step, merit in [(1, float("nan")), (2, 0.4), (3, float("nan"))]:
        checkpoints.save(tmp_path, step, fill(str(step)), keep=1, merit=merit)
    assert (tmp_path / "best").resolve().name == "step-000002"


def test_random_states_come_back(tmp_path: Path) -> None:
    torch.save(checkpoints.random_states(), tmp_path / "r.pt")
    first = torch.rand(2).tolist(), np.random.rand(), random.random()
    checkpoints.restore_random_states(torch.load(tmp_path / "r.pt", weights_only=True))
    assert (torch.rand(2).tolist(), np.random.rand(), random.random()) == first


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_a_folder_that_is_taken_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with open_run(job(out), RunHeader()) as run:
        run.log({"update": 1})
    with pytest.raises(RecordError, match="overwrite=true"), open_run(job(out), RunHeader()):
        pass
    with open_run(job(out, resume=True), RunHeader()) as run:
        assert run.logged() == [{"update": 1}]
    assert len((out / "header.jsonl").read_text().splitlines()) == 2
    with open_run(job(out, overwrite=True), RunHeader()) as run:
        assert run.logged() == []
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(RecordError, match="holds no training run"), open_run(job(other, overwrite=True), RunHeader()):
        pass
    assert (other / "thesis.txt").read_text() == "mine"
    with pytest.raises(RecordError, match="no run to go on with"):
        open_run(job(tmp_path / "new", resume=True), RunHeader()).__enter__()


def test_another_job_cannot_go_on_with_a_run(tmp_path: Path) -> None:
    with open_run(job(tmp_path / "r"), RunHeader()):
        pass
    with pytest.raises(RecordError, match=r"different: algo\.group, seed"):
        open_run(job(tmp_path / "r", resume=True, seed=4, algo={"group": 4}), RunHeader()).__enter__()
    with open_run(job(tmp_path / "r", resume=True, updates=7, minutes=3), RunHeader()):
        pass


def test_a_rate_that_comes_down_is_bound_to_its_updates(tmp_path: Path) -> None:
    falling = {"schedule": "cosine"}
    with open_run(job(tmp_path / "r", updates=5, optim=falling), RunHeader()):
        pass
    with pytest.raises(RecordError, match="different: updates"):
        open_run(job(tmp_path / "r", resume=True, updates=9, optim=falling), RunHeader()).__enter__()


@pytest.mark.parametrize("file", ["config.yaml", "header.jsonl", "run.json"])
def test_a_strangers_folder_is_never_deleted(tmp_path: Path, file: str) -> None:
    """Other programs have a config.yaml too, and an evaluation's recordings are no training run."""
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes" / "a.jsonl").write_text("mine")
    (tmp_path / file).write_text('{"name": "mine", "out": "x"}\n')
    for doing in ("overwrite", "resume"):
        with pytest.raises(RecordError, match="holds no training run"):
            open_run(job(tmp_path, **{doing: True}), RunHeader()).__enter__()
    assert {f.name for f in tmp_path.iterdir()} == {"episodes", file}
    assert (tmp_path / "episodes" / "a.jsonl").read_text() == "mine"


def test_overwriting_takes_nothing_along_that_is_not_the_runs(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    with open_run(job(out), RunHeader()):
        pass
    with open_run(job(out / "another"), RunHeader()):
        pass
    with pytest.raises(RecordError, match="more than a run: another"):
        open_run(job(out, overwrite=True), RunHeader()).__enter__()
    assert (out / "another" / "config.yaml").exists()


def test_overwriting_never_deletes_what_the_new_run_starts_from(tmp_path: Path) -> None:
    out = tmp_path / "r"
    with open_run(job(out), RunHeader()) as run:
        checkpoints.save(run.checkpoints, 1, fill("policy"), keep=1)
    start = str(out / "checkpoints" / "latest")
    with pytest.raises(RecordError, match=r"would delete model\.path"):
        open_run(job(out, overwrite=True, model={"path": start, "system": "x" * 5000}), RunHeader()).__enter__()
    assert (out / "checkpoints" / "latest" / "model.safetensors").read_text() == "policy"


def test_a_torn_header_does_not_spoil_the_next(tmp_path: Path) -> None:
    with open_run(job(tmp_path / "r"), RunHeader()):
        pass
    with (tmp_path / "r" / "header.jsonl").open("a") as f:
        f.write('{"schema_ver')
    with open_run(job(tmp_path / "r", resume=True), RunHeader()):
        pass
    for line in (tmp_path / "r" / "header.jsonl").read_text().splitlines():
        RunHeader.model_validate_json(line)


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        open_run(job(tmp_path / "r"), RunHeader()),
        pytest.raises(RecordError, match="another process"),
        open_run(job(tmp_path / "r", resume=True), RunHeader()),
    ):
        pass


def test_going_back_leaves_no_update_twice(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for update in (1, 2, 3):
        run.log({"update": update, "reward": None})
        run.sample(update, [f"talk {update}"])
    with run.metrics.open("a") as f:
        f.write('{"update": 4, "rew')  # torn by a kill
    run.back_to(2)
    run.log({"update": 3, "reward": 1.0})
    assert [(line["update"], line["reward"]) for line in run.logged()] == [(1, None), (2, None), (3, 1.0)]
    assert sorted(f.name for f in (tmp_path / "samples").iterdir()) == ["000001", "000002"]


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.metrics = Path("/dev/full")
    if not run.metrics.exists():
        pytest.skip("no full device here")
    with pytest.raises(RecordError, match="No space left"):
        run.log({"update": 1})


def test_no_file_holds_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret-indeed")
    given = job(tmp_path / "r", world={"recipe_options": {"key": "sk-very-secret-indeed"}})
    with open_run(given, RunHeader(config=given.settings())):
        pass
    for file in (tmp_path / "r").rglob("*"):
        assert file.is_dir() or b"very-secret" not in file.read_bytes()
    config = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert config["world"]["recipe_options"]["key"] == "[redacted]"


def test_the_logger_is_off_by_default_and_wandb_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_logger(job(tmp_path), Logger())({"update": 1})  # nowhere, and without wandb
    told: dict[str, Any] = {}

    class Board:
        def log(self, figures: dict[str, Any], step: int) -> None:
            told.update(figures=figures, step=step)

    class Fake:
        @staticmethod
        def Settings(**settings: Any) -> dict[str, Any]:
            return settings

        @staticmethod
        def init(**options: Any) -> Board:
            told.update(options)
            return Board()

    monkeypatch.setitem(sys.modules, "wandb", Fake)
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret-indeed")
    given = job(tmp_path, logger={"name": "wandb"}, world={"recipe_options": {"key": "sk-very-secret-indeed"}})
    log = open_logger(given, given.logger)
    log({"update": 3, "reward": 0.5})
    assert told["mode"] == "offline"
    assert told["dir"] == str(tmp_path)
    assert told["step"] == 3
    assert "very-secret" not in json.dumps(told["config"])


def test_settings_that_may_change_are_settings() -> None:
    assert set(Job.model_fields) >= MAY_CHANGE
    with pytest.raises(ConfigError):
        make_job({"name": "t"})
