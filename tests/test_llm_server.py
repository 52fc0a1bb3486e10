"""Every role asks a real language model, a very small one on vLLM's CPU build, and is held to its form by the server.

Run by `make test-llm-server`. What such a model says is worth little; that it is asked, held, checked, recorded and
played again from the cassette byte for byte is what these tests are about.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from llmserver import VENV, VllmServer

from echo_env.agents.actor import actor_of
from echo_env.agents.director import director_of
from echo_env.agents.judge import judge_of
from echo_env.agents.llm import LlmClient, LlmFailure, client_of
from echo_env.agents.rollout import RunConfig, run
from echo_env.agents.smollm2 import smollm2_folder
from echo_env.build import WorldConfig
from echo_env.driving import drive
from echo_env.profiles import get_scenario
from echo_env.report import collect
from echo_env.roles import ActorView, Cue, DirectorView, Exchange, JudgeView, profiles_of

pytestmark = pytest.mark.llm_server
T = TypeVar("T")
SCENARIO = get_scenario("career-04")
ACTOR, JUDGE = profiles_of(SCENARIO)
EXCHANGE = Exchange(
    "The chef called me kitchen furniture in front of everyone.",
    "That was humiliating, and you still finished the service. What would you have wanted him to see?",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    if not (VENV / "bin" / "python").exists():
        pytest.skip("no vLLM here: make .venv-vllm/ready")
    started = VllmServer(smollm2_folder(), tmp_path_factory.mktemp("server") / "log")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def models(server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "models.yaml"
    file.write_text(
        f"default: {{model: hosted_vllm/smollm2-135m, api_base: '{server.url}', timeout: 300, max_tokens: 160}}\n"
        "roles:\n"
        "  judge: {max_tokens: 320}\n"
        "  actor: {max_tokens: 48}\n"
        "  policy: {max_tokens: 32}\n"
        "cache: {mode: auto, folder: cassette}\n"
    )
    return file


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    return drive(coroutine, waiting=True)


def answered(client: LlmClient, role: str) -> int:
    """Calls of a role that came back in the form that was asked for."""
    told = client.usage().get(role)
    return told.asks - sum(n for kind, n in told.failures.items() if kind != "check") if told else 0


def test_the_judge_quotes_the_reply(models: Path) -> None:
    judgement = done(judge_of(str(models))().judge(JudgeView(JUDGE, (), EXCHANGE)))
    assert judgement is not None
    assert all(e.quote in EXCHANGE.reply for e in judgement.evidence)
    assert judgement.usage is not None
    assert judgement.usage.prompt_tokens > 1000


def in_form(coroutine: Coroutine[Any, Any, T]) -> T | None:
    """The answer; None where it came in the form asked for, twice, and broke a rule of the role."""
    try:
        return done(coroutine)
    except LlmFailure as e:
        if e.kind != "check":
            raise
        return None


def test_the_director_calls_a_function(models: Path) -> None:
    view = DirectorView(SCENARIO, (EXCHANGE,), SCENARIO.p0, (None,), (None,), 12)
    direction = in_form(director_of(str(models))().direct(view))
    assert direction is None or set(direction.lines) <= {item for item, _ in SCENARIO.items()}
    assert answered(client_of(str(models)), "director") == 1


def test_the_actor_speaks(models: Path) -> None:
    said = in_form(actor_of(str(models))(0).speak(ActorView(ACTOR, (EXCHANGE,), Cue("flow"))))
    assert said is None or said.strip()
    assert answered(client_of(str(models)), "actor") >= 1


def episode_bytes(out: Path) -> bytes:
    (file,) = out.glob("*/episodes/*.jsonl")
    return file.read_bytes()


def test_a_whole_episode_is_scored_and_played_again_with_the_server_stopped(
    server: VllmServer, models: Path, tmp_path: Path
) -> None:
    world = WorldConfig(backend=f"llm:{models}", max_turns=12)
    config = RunConfig(policy=f"llm:{models}", scenarios=(SCENARIO.id,), world=world)
    live = run(config, tmp_path / "live")
    assert (live.progress.turns, live.failures) == (12, ())
    assert collect(tmp_path / "live").rows
    server.stop()
    models.write_text(models.read_text().replace("mode: auto", "mode: replay"))
    run(config, tmp_path / "again")
    assert episode_bytes(tmp_path / "again") == episode_bytes(tmp_path / "live")
