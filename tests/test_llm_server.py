"""Every role asks a real language model, a very small one on vLLM's CPU build, and is held to its form by the server.

Run by `make test-llm-server`. What such a model says is worth little; that it is asked, held, checked, recorded and
played again from the cassette byte for byte is what these tests are about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from llmserver import VENV, VllmServer

from echo_env.agents.actor import LlmActor
from echo_env.agents.director import LlmDirector
from echo_env.agents.genrm import EmpathyJudge, HumanlikeJudge
from echo_env.agents.iedr import rate
from echo_env.agents.judge import LlmJudge
from echo_env.agents.llm.client import LlmClient, LlmFailure, client_of
from echo_env.agents.llmpolicy import LlmPolicy
from echo_env.agents.nee import LlmReviewer
from echo_env.agents.rollout import RunConfig, run
from echo_env.agents.sentient import SentientActor
from echo_env.agents.smollm2 import smollm2_folder
from echo_env.agents.unifireward import UnifiReward
from echo_env.build import WorldConfig
from echo_env.driving import drive
from echo_env.profiles import get_scenario
from echo_env.report import collect
from echo_env.rewards import ReplyView
from echo_env.roles import ActorView, Cue, DirectorView, Exchange, JudgeView, Observation, profiles_of
from echo_env.types import Episode, EpisodeHeader, Judgement, Message, Outcome, Turn

pytestmark = pytest.mark.llm_server
T = TypeVar("T")
SCENARIO = get_scenario("career-04")
ACTOR, JUDGE = profiles_of(SCENARIO)
SPOKEN = "(I feel|I wish|I wonder if|I keep thinking that|It hurts that) [a-z ',]{24,120}[.]"
"""What the server lets the actor say. Left to itself so small a model recites its instructions, which is refused."""
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
        f"default: {{model: hosted_vllm/smollm2-135m, api_base: '{server.url}', timeout: 900, max_tokens: 1500}}\n"
        "roles:\n"
        "  judge: {max_tokens: 400}\n"
        "  director: {max_tokens: 240}\n"
        f'  actor: {{max_tokens: 64, extra: {{extra_body: {{structured_outputs: {{regex: "{SPOKEN}"}}}}}}}}\n'
        "  policy: {max_tokens: 32}\n"
        "cache: {mode: auto, folder: cassette}\n"
    )
    return file


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    return drive(coroutine, waiting=True)


def answered(client: LlmClient, role: str) -> int:
    """Asks of a role that came back in the form that was asked for; the role may still refuse what they say."""
    told = client.usage().get(role)
    return told.asks - sum(n for kind, n in told.failures.items() if kind != "check") if told else 0


VIEW = ReplyView(
    JudgeView(JUDGE, (), EXCHANGE),
    raw="<think><history>exploration: the chef shamed him</history><emotion>humiliated</emotion>"
    f"<strategy>reflecting feelings</strategy></think>{EXCHANGE.reply}",
    reference="That sounds hard. Maybe talk to the chef?",
)


def requests(client: LlmClient) -> dict[str, Coroutine[Any, Any, object]]:
    """A real request of every role, by the name it asks under."""
    view = DirectorView(SCENARIO, (EXCHANGE,), SCENARIO.p0, (None,), (None,), 12)
    header = EpisodeHeader(
        episode_id="career-04.0", scenario=SCENARIO.id, scenario_hash=SCENARIO.digest, split="benchmark", language="en",
        domain="career", p0=SCENARIO.p0, policy="p", judge="j", rubric="r", scorer="strict-2", recipe="epm-1",
        actor="a", director="d", seed=0, max_turns=1, echo_env="0",
    )  # fmt: skip
    turn = Turn(
        index=1, user=EXCHANGE.user, reply=EXCHANGE.reply, judgement=None, epm=None, direction=None, reward=None
    )
    episode = Episode(header=header, turns=(turn,), outcome=Outcome(end="budget", turns=1))
    return {
        "judge": LlmJudge(client).judge(VIEW.judged),
        "director": LlmDirector(client).direct(view),
        "actor": LlmActor(client).speak(ActorView(ACTOR, (EXCHANGE,), Cue("flow"))),
        "policy": LlmPolicy(client).respond(Observation((Message(role="user", text=EXCHANGE.user),))),
        "humanlike": HumanlikeJudge(client, context=True).verdict(VIEW),
        "empathy": EmpathyJudge(client).verdict(VIEW),
        "iedr": rate(client, SCENARIO.situation.summary, "en"),
        "nee": LlmReviewer(client, client.models.of("nee")).review(episode, JUDGE),
        "sentient": SentientActor(client).speak(ActorView(ACTOR, (EXCHANGE,), Cue("flow"))),
        "unifireward": UnifiReward(client).verdict(VIEW),
    }


@pytest.fixture(scope="module")
def asked(models: Path) -> dict[str, object]:
    """What came of every role's request; all at once, which the server is quickest at."""
    client = client_of(str(models))

    async def all_of_them() -> dict[str, object]:
        named = requests(client)
        return dict(zip(named, await asyncio.gather(*named.values(), return_exceptions=True), strict=True))

    return done(all_of_them())


ROLES = (
    "judge", "director", "actor", "policy", "humanlike", "empathy", "iedr", "nee", "sentient", "unifireward",
)  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_every_role_gets_an_answer_in_the_form_it_asked_for(role: str, asked: dict[str, object], models: Path) -> None:
    found = asked.get(role)
    if isinstance(found, BaseException):  # what it says may break a rule of the role, twice
        assert isinstance(found, LlmFailure), found
        assert found.kind == "check", found
    assert answered(client_of(str(models)), role) >= 1, found


def test_the_judge_quotes_the_reply(asked: dict[str, object]) -> None:
    judgement = asked["judge"]
    assert isinstance(judgement, Judgement)
    assert judgement.evidence
    assert all(e.quote in EXCHANGE.reply for e in judgement.evidence)
    assert judgement.usage is not None
    assert judgement.usage.prompt_tokens > 1000


def episode_bytes(out: Path) -> bytes:
    (file,) = out.glob("*/episodes/*.jsonl")
    return file.read_bytes()


def test_a_whole_episode_is_scored_and_played_again_with_the_server_stopped(
    server: VllmServer, models: Path, tmp_path: Path
) -> None:
    world = WorldConfig(backend=f"llm:{models}", max_turns=12)
    for seed in range(3):  # an actor so small may say twice what no person says, and then cannot be reached
        config = RunConfig(policy=f"llm:{models}", scenarios=(SCENARIO.id,), seed=seed, world=world)
        live = run(config, tmp_path / "live", overwrite=True)
        if live.progress.turns == 12:
            break
    assert (live.progress.turns, live.failures) == (12, ())
    assert collect(tmp_path / "live").runs
    server.stop()
    models.write_text(models.read_text().replace("mode: auto", "mode: replay"))
    run(config, tmp_path / "again")
    assert episode_bytes(tmp_path / "again") == episode_bytes(tmp_path / "live")
