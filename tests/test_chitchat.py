"""Chit-chat: ten people without a deficit, the humanlike reward alone, and nothing that EPM says about it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import gymnasium as gym
import pytest
from typer.testing import CliRunner

import echo_env  # noqa: F401  registers the environments
from echo_env import cli
from echo_env.agents.embedded.language import read
from echo_env.agents.rejudge import rejudge_runs
from echo_env.agents.rollout import RunConfig, run
from echo_env.build import CHAT_TURNS, WorldConfig, build_policy, build_session, episode_header
from echo_env.driving import run_now
from echo_env.env import CompanionEnv
from echo_env.errors import ConfigError, ScenarioError
from echo_env.profiles import benchmark, data_root, get_scenario, load_scenario, scenario_ids
from echo_env.report import collect, to_csv, to_json, write_html
from echo_env.rewards import group_rewards
from echo_env.roles import JudgeView
from echo_env.scorers import NO_EPM, StrictScorer, get_scorer
from echo_env.session import Advance, DialogueSession
from echo_env.types import Episode, Judgement
from echo_env.yamlfiles import read_yaml

TEN = list(benchmark("chitchat").values())
each = pytest.mark.parametrize("name", [s.id for s in TEN])
WORLD = WorldConfig(recipe="humanlike")
REPLIES = (
    "Ha, go on. What happened then?", "I'd never have thought of that.", "Was anybody cross with you?",
    "We had one of those at home.", "And who had to clear it up?", "You can't say that and stop there.",
    "I burnt mine on Saturday.", "What did it cost you, in the end?", "My sister does the same, it drives us mad.",
    "I'd have gone home by then.", "Did you take a picture of it?", "That's the best bit.", "Who told you so?",
)  # fmt: skip


class Watches:
    """A judge that counts how often it is asked."""

    id = "watches-1"
    rubric = "none"
    asked = 0

    async def judge(self, view: JudgeView) -> Judgement | None:
        type(self).asked += 1
        return None


def chat(name: str, world: WorldConfig = WORLD, policy: str | None = None) -> tuple[DialogueSession, list[Advance]]:
    session = build_session(world, get_scenario(name), seed=1)
    observation, steps = run_now(session.open()), []
    player = build_policy(policy) if policy else None
    while session.outcome is None:
        reply = run_now(player.respond(observation)) if player else REPLIES[len(steps) % len(REPLIES)]
        steps.append(run_now(session.reply(reply)))
        observation = steps[-1].observation
    return session, steps


# ---- the people ------------------------------------------------------------------------------------------------------


def test_there_are_ten_of_them_with_something_to_tell_and_nothing_to_heal() -> None:
    assert scenario_ids("chitchat") == [f"chitchat-{k:02}" for k in range(1, 11)]
    for s in TEN:
        assert (s.split, s.domain, s.language, s.chitchat) == ("chitchat", "chitchat", "en", True)
        assert s.p0 == (0.0, 0.0, 0.0)
        assert (s.needs, s.iedr) == ((), {})
        assert 15 <= len(list(s.lines())) <= 20
    assert len({s.persona.name for s in TEN}) == len({s.persona.job for s in TEN}) == 10
    assert not {s.persona.name for s in TEN} & {s.persona.name for s in benchmark().values()}


@each
def test_lines_are_short_and_share_a_word_with_what_they_are_about(name: str) -> None:
    for item, line in get_scenario(name).items():
        assert len(line.say.split()) <= 30, item
        assert read(line.about).content & read(line.say).content, f"{item}: {line.about}"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"iedr": {"A.1": {"level": 2, "reason": "x"}}}, "needs: chit-chat has neither needs nor ratings"),
        ({"domain": "family"}, "must rank each axis once"),
    ],
)
def test_needs_and_ratings_go_with_a_deficit(tmp_path: Path, changed: dict[str, object], told: str) -> None:
    data = read_yaml(data_root() / "chitchat" / "chitchat-01.yaml")
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps(data | changed))
    with pytest.raises(ScenarioError, match=told):
        load_scenario(file)


# ---- a conversation --------------------------------------------------------------------------------------------------


@each
def test_it_goes_to_its_limit_and_says_goodbye(name: str) -> None:
    session, steps = chat(name)
    assert session.outcome is not None
    assert (session.outcome.end, session.outcome.turns) == ("budget", CHAT_TURNS)
    assert steps[-1].truncated
    assert not steps[-1].terminated
    assert session.outcome.closing in session.scenario.ending.says
    said = [a.turn.user for a in steps] + [session.outcome.closing]
    assert len(set(said)) == len(said)
    assert said[0] == session.scenario.opening.say
    for advance in steps:
        turn = advance.turn
        assert (turn.judgement, turn.epm, turn.failure) == (None, None, "")
        assert turn.reward in (0.0, 1.0)
        assert turn.reward_parts == {"humanlike": turn.reward}


@each
def test_the_story_comes_in_its_order(name: str) -> None:
    """Beats come in order, whatever else is told between."""
    _, steps = chat(name, policy="adviser")
    text = [a.turn.user for a in steps]
    told = [
        (turn, item)
        for item, line in get_scenario(name).items()
        if item.startswith("beat")
        for turn, said in enumerate(text)
        if line.say in said
    ]
    assert len(told) >= 5
    assert [item for _, item in sorted(told)] == sorted(item for _, item in told)


def test_the_same_seed_gives_the_same_chat() -> None:
    assert [a.turn for a in chat(TEN[0].id)[1]] == [a.turn for a in chat(TEN[0].id)[1]]


def test_an_odd_reply_is_remarked_on() -> None:
    session = build_session(WORLD, TEN[3], seed=1)
    run_now(session.open())
    silent = run_now(session.reply(""))
    assert silent.turn.reward == 0.0
    said = silent.observation.user
    told = next(line.say for line in TEN[3].lines() if line.say in said)
    assert len(said) > len(told), "it says something about the silence too"


def test_the_epm_judge_is_not_asked_and_its_silence_is_no_failure() -> None:
    world = WorldConfig(recipe="humanlike", judge=f"{__name__}:Watches", max_turns=5)
    session, steps = chat(TEN[1].id, world)
    assert Watches.asked == 0
    assert session.outcome is not None
    assert session.outcome.turns == len(steps) == 5


def test_what_the_environment_gives() -> None:
    env = gym.make("echo/Companion-v0", split="chitchat", recipe="echo_n1")
    message, info = env.reset(seed=5)
    assert info["epm"] is None
    assert get_scenario(info["scenario"]).opening.say == message
    _, reward, terminated, truncated, info = env.step("No! And what did you do with the rest of it?")
    assert not math.isnan(reward)
    assert (terminated, truncated, info["judge_failed"]) == (False, False, False)
    assert info["reward_parts"] == {"humanlike": reward}
    assert [v.kind for v in info["verdicts"]] == ["humanlike"]
    assert info["epm"] is None
    assert info["evidence"] == ()


def test_numbers_at_both_ends_work_too() -> None:
    env = gym.make("echo/Strategy-v0", split="chitchat", recipe="humanlike")
    env.reset(seed=1)
    rewards = [env.step(env.action_space.sample())[1] for _ in range(3)]
    assert not any(map(math.isnan, rewards))


@pytest.mark.parametrize("options", [{"split": "chitchat"}, {"scenario": "chitchat-01"}])
def test_epm_on_chit_chat_is_an_error_that_says_what_to_do(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as error:
        CompanionEnv(**options)  # type: ignore[arg-type]
    assert "does not apply to chit-chat" in str(error.value)
    assert "recipe='humanlike' or 'echo_n1'" in str(error.value)
    with pytest.raises(ConfigError):
        get_scorer("none")


# ---- records and reports ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One policy with three chats, another with a chat and a person in need."""
    out = tmp_path_factory.mktemp("runs")
    world = WorldConfig(recipe="echo_n1", max_turns=4)
    run(RunConfig(policy="adviser", scenarios=tuple(scenario_ids("chitchat")[:3]), world=world), out)
    run(RunConfig(policy="template", scenarios=("chitchat-01", "leisure-04"), world=world), out)
    return out


def test_reports_show_chit_chat_apart(runs: Path, tmp_path: Path) -> None:
    report = collect(runs)
    assert report.scorer == StrictScorer().id
    assert {case.scenario for case in report.cases} == {"leisure-04"}
    chats = {model.summary.model: model.chat for model in report.models}
    assert chats["adviser"] is not None
    assert chats["template"] is not None
    assert (chats["adviser"].conversations, chats["adviser"].turns, chats["adviser"].unrewarded) == (3, 12, 0)
    assert chats["template"].conversations == 1
    rewards = [t.reward for e in _episodes(runs, "adviser") for t in e.turns]
    assert chats["adviser"].mean_reward == pytest.approx(sum(r or 0.0 for r in rewards) / 12)
    assert {m["model"]: m["chat"]["conversations"] for m in to_json(report)["models"]} == {"adviser": 3, "template": 1}  # type: ignore[index,attr-defined]
    json.dumps(to_json(report), allow_nan=False)
    assert to_csv(report).count("\n") == 3
    write_html(report, tmp_path / "page.html")
    assert "3 of chit-chat (no EPM), mean reward a turn" in (tmp_path / "page.html").read_text()


def _episodes(runs: Path, model: str) -> list[Episode]:
    from echo_env.record import RunFolder

    return list(RunFolder(runs / model).episodes())


def test_the_command_line_reports_scores_and_lists_them(runs: Path) -> None:
    runner = CliRunner()
    for command in (["report", str(runs)], ["score", str(runs), "--scorer", "official"]):
        done = runner.invoke(cli.app, command)
        assert done.exit_code == 0, done.output
        assert "3 of chit-chat (no EPM)" in done.output
    listed = runner.invoke(cli.app, ["list", "scenarios", "--split", "chitchat"])
    assert len(listed.output.splitlines()) == 10
    assert "chitchat" in runner.invoke(cli.app, ["list", "split"]).output


def test_a_chat_is_replayed_rewarded_again_and_not_rejudged(runs: Path, tmp_path: Path) -> None:
    world = WorldConfig(recipe="echo_n1", max_turns=4)
    config = RunConfig(policy="adviser", scenarios=tuple(scenario_ids("chitchat")[:3]), world=world)
    file = runs / "adviser" / "episodes" / "chitchat-02.0.jsonl"
    whole = file.read_bytes()
    file.write_bytes(b"\n".join(whole.split(b"\n")[:3]) + b"\n")
    run(config, runs, resume=True)
    assert file.read_bytes() == whole
    episodes = _episodes(runs, "adviser")
    session = build_session(world, TEN[0], 0)
    again = group_rewards(session.recipe, episodes, StrictScorer())
    assert again == [[t.reward for t in e.turns] for e in episodes]
    rejudge_runs(runs, tmp_path, "deaf")
    kept = _episodes(tmp_path, "adviser")
    assert [e.turns for e in kept] == [e.turns for e in episodes]


def test_the_header_says_that_nothing_was_scored() -> None:
    session, _ = chat(TEN[0].id)
    header = episode_header(session, "x", 0, 0)
    assert (header.scorer, header.p0, header.domain) == ("none-1", (0.0, 0.0, 0.0), "chitchat")
    assert NO_EPM.indices(session.state) is None
    assert session.state.turns == CHAT_TURNS
    assert header.max_turns == CHAT_TURNS
