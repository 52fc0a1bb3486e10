"""Runs of a policy that answers many conversations in one call: one that cannot be answered fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from echo_env.agents.embedded.skilled import Skilled
from echo_env.agents.rollout import RunConfig, RunResult, folder_name, run
from echo_env.build import WorldConfig, conversation_seed
from echo_env.driving import run_now
from echo_env.errors import ConfigError
from echo_env.profiles import scenario_ids
from echo_env.record import read_episode
from echo_env.roles import Observation

IDS = scenario_ids("benchmark")[:4]
AT_FAULT = IDS[1]
TOO_LONG = ConfigError("the conversation takes 5000 tokens", "raise max_context")


class Batched(Skilled):
    """`skilled`, for many conversations in one call; `error` is raised for the one at fault from its third turn on."""

    id = "skilled"

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error, self.asked = error, list[int]()

    def respond_batch(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[str]:
        self.asked.append(len(observations))
        for observation, seed in zip(observations, seeds, strict=True):
            third = len(observation.messages) >= 5
            if self.error is not None and third and seed == conversation_seed(0, AT_FAULT):
                raise self.error
        return [run_now(self.respond(o)) for o in observations]


def play(out: Path, policy: Batched, scenarios: Sequence[str] = IDS, *, resume: bool = False) -> RunResult:
    config = RunConfig(policy="skilled", scenarios=tuple(scenarios), world=WorldConfig(max_turns=4))
    return run(config, out, resume=resume, policy=policy)


def episode_files(result: RunResult) -> dict[str, Path]:
    """Episode files by scenario."""
    return {f.name.partition(".")[0]: f for f in (result.folder.path / "episodes").glob("*.jsonl")}


def test_the_one_at_fault_fails_alone_and_the_others_finish_as_without_it(tmp_path: Path) -> None:
    policy = Batched(TOO_LONG)
    broken = play(tmp_path / "broken", policy)
    assert broken.failures == (f"{AT_FAULT}: the conversation takes 5000 tokens (raise max_context)",)
    assert (broken.progress.done, broken.progress.total, broken.progress.failed) == (4, 4, 1)
    assert policy.asked == [4, 4, 4, 1, 1, 1, 1, 3]  # one by one where the batch was refused, and then never again

    files = episode_files(broken)
    failed = read_episode(files.pop(AT_FAULT))
    assert (len(failed.turns), failed.outcome) == (2, None)
    whole = episode_files(play(tmp_path / "without", Batched(), [i for i in IDS if i != AT_FAULT]))
    assert {i: f.read_bytes() for i, f in files.items()} == {i: f.read_bytes() for i, f in whole.items()}


def test_a_failed_conversation_is_played_on_when_the_run_is_resumed(tmp_path: Path) -> None:
    play(tmp_path / "broken", Batched(TOO_LONG))
    resumed = episode_files(play(tmp_path / "broken", Batched(), resume=True))
    whole = episode_files(play(tmp_path / "whole", Batched()))
    assert {i: f.read_bytes() for i, f in resumed.items()} == {i: f.read_bytes() for i, f in whole.items()}


def test_a_conversation_on_its_own_is_not_asked_twice(tmp_path: Path) -> None:
    policy = Batched(TOO_LONG)
    assert play(tmp_path, policy, [AT_FAULT]).progress.failed == 1
    assert policy.asked == [1, 1, 1]


def test_what_is_no_error_of_ours_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        play(tmp_path, Batched(ZeroDivisionError("a bug")))


@pytest.mark.parametrize(
    ("policy", "folder"),
    [
        ("skilled", "skilled"),
        ("models/qwen", "qwen"),
        ("llm:gpt-5-mini", "llm-gpt-5-mini"),
        ("llm:hosted_vllm/org/A@http://127.0.0.1:8000/v1", "A"),  # not v1, where every model would meet every other
        ("llm:here/models.yaml", "models.yaml"),
    ],
)
def test_a_run_is_stored_under_its_policy(policy: str, folder: str) -> None:
    assert folder_name(policy) == folder
