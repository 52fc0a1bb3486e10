"""The contract of the Gymnasium edge: one set of tests over everything that is registered under `echo/`."""

from __future__ import annotations

import copy
import math
import pickle
import random
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces.utils import flatten, unflatten
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import echo_env  # noqa: F401  (registers the environments)
from echo_env import registry
from echo_env.env import CompanionEnv
from echo_env.errors import ConfigError, EchoError, EpisodeOver, ScenarioError
from echo_env.profiles import get_scenario
from echo_env.roles import JudgeView
from echo_env.spaces import UnicodeText
from echo_env.strategy import StrategyEnv
from echo_env.types import Direction, EpmDelta, Evidence, Judgement, Levels, Outcome, Turn

IDS = sorted(name for name in gym.registry if name.startswith("echo/"))
REPLIES = (
    "I'm sorry. What happened then?",
    "<think>they sound tired</think>That sounds exhausting, and it makes sense that you are angry.",
    "",
    "You should just move on. Others have it worse.",
    "Ich verstehe dich 🙂 你好",
    "It seems to me that you already know what you want. What would the first step be?",
)
INFO = {"epm", "evidence", "reward_parts", "direction", "turn", "judge_failed"}
HIDDEN_WORDS = re.compile(r"\b(epm|prog|neg|rubric|anchor|reward)\b|empathy score|[][{}]", re.IGNORECASE)

each_id = pytest.mark.parametrize("env_id", IDS)


class EveryThird:
    """A judge that is plugged in by name: gives no judgement on every third reply."""

    id, rubric = "every-third-1", "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        if len(view.history) % 3 == 2:
            return None
        return Judgement(levels=Levels(a_prog=1), judge=self.id)


class Mute:
    """A judge that never answers."""

    id, rubric = "mute-1", "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        raise TimeoutError("no answer within 60 s")


def make(env_id: str, **options: Any) -> gym.Env[Any, Any]:
    return gym.make(env_id, disable_env_checker=True, **options)


def actions_for(env: gym.Env[Any, Any], n: int, seed: int = 0) -> list[Any]:
    """Sensible and odd actions of an environment's own kind, always the same for a seed."""
    env.action_space.seed(seed)
    sampled = [env.action_space.sample() for _ in range(n)]
    if isinstance(env.action_space, UnicodeText):
        return [REPLIES[(k + seed) % len(REPLIES)] if k % 4 else sampled[k] for k in range(n)]
    return sampled


def play(env: gym.Env[Any, Any], seed: int | None, n: int, options: dict[str, Any] | None = None) -> list[Any]:
    """Reset and take up to `n` steps; everything that came back, in order."""
    seen: list[Any] = [env.reset(seed=seed, options=options)]
    return seen + go_on(env, actions_for(env, n))


def go_on(env: gym.Env[Any, Any], actions: list[Any]) -> list[Any]:
    seen: list[Any] = []
    for action in actions:
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            break
    return seen


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal in value and type, arrays included."""
    return bool(data_equivalence(one, other)) and repr(one) == repr(other)


# ---- every registered environment ----------------------------------------------------------------------------------


def test_both_environments_are_registered() -> None:
    assert IDS == ["echo/Companion-v0", "echo/Strategy-v0"]


@each_id
def test_gymnasiums_checker_finds_nothing(env_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(env_id, render_mode="ansi").unwrapped)
        env = gym.make(env_id)  # with the passive checker, which looks at every first reset, step and render
        play(env, 3, 4)
        env.close()


@each_id
def test_a_seed_decides_everything(env_id: str) -> None:
    one, other = make(env_id), make(env_id)
    first = play(one, 11, 16)
    assert same(first, play(other, 11, 16)), "a fresh environment with the same seed plays another episode"
    assert same(first, play(one, 11, 16)), "reset(seed) twice on one environment plays another episode"
    assert not same(first, play(one, 12, 16))
    assert same(one.reset(), other_after(env_id, 12)), "reset without a seed goes on from the seed before"


def other_after(env_id: str, seed: int) -> Any:
    env = make(env_id)
    play(env, seed, 16)
    return env.reset()


@each_id
def test_seeds_meet_different_people(env_id: str) -> None:
    env = make(env_id)
    assert len({env.reset(seed=s)[1]["scenario"] for s in range(40)}) > 12


@each_id
def test_environments_share_nothing_and_leave_the_global_generators_alone(env_id: str) -> None:
    alone = [play(make(env_id, scenario="career-01"), s, 8) for s in (1, 2)]
    random.seed(5)
    np.random.seed(5)
    before = (random.getstate(), np.random.get_state()[1].tobytes())
    envs = [make(env_id, scenario="career-01") for _ in (1, 2)]
    together: list[list[Any]] = [[env.reset(seed=s)] for env, s in zip(envs, (1, 2), strict=True)]
    for action in actions_for(envs[0], 8):
        for env, seen in zip(envs, together, strict=True):
            seen.append(env.step(action))
    assert same(together, alone)
    assert before == (random.getstate(), np.random.get_state()[1].tobytes())


@each_id
@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_copy_made_mid_episode_goes_on_in_the_same_way(env_id: str, copied: Callable[[Any], Any]) -> None:
    env = make(env_id, render_mode="ansi")
    actions = actions_for(env, 14)
    env.reset(seed=4)
    go_on(env, actions[:6])
    twin = copied(env)
    assert same(go_on(twin, actions[6:]), go_on(env, actions[6:]))
    assert twin.render() == env.render()
    assert same(twin.unwrapped.np_random.bit_generator.state, env.unwrapped.np_random.bit_generator.state)
    assert same(twin.reset(), env.reset()), "the copy's generator is not where the original's is"


@each_id
def test_a_new_environment_and_its_spaces_can_be_pickled(env_id: str) -> None:
    env = make(env_id)
    twin = pickle.loads(pickle.dumps(env))
    assert (twin.observation_space, twin.action_space) == (env.observation_space, env.action_space)
    assert same(play(twin, 1, 3), play(env, 1, 3))


@each_id
def test_observations_are_in_the_space_and_sampled_actions_are_valid(env_id: str) -> None:
    env = make(env_id)
    env.action_space.seed(9)
    for seed in (0, 1):
        observation, _ = env.reset(seed=seed)
        assert observation in env.observation_space
        for _ in range(20):
            action = env.action_space.sample()
            assert action in env.action_space
            observation, reward, terminated, truncated, _ = env.step(action)
            assert observation in env.observation_space
            assert isinstance(reward, float)
            assert (type(terminated), type(truncated)) == (bool, bool)
            if terminated or truncated:
                break


@each_id
def test_info_is_typed_and_its_parts_sum_to_the_reward(env_id: str) -> None:
    env = make(env_id)
    _, info = env.reset(seed=2)
    assert isinstance(info["epm"], EpmDelta)
    assert info["epm"].position == get_scenario(info["scenario"]).p0
    distance = info["epm"].distance
    steps = go_on(env, actions_for(env, 50))
    assert steps[-1][2], "the person's patience ends the conversation by turn 45"
    for k, (_, reward, terminated, truncated, info) in enumerate(steps, start=1):
        assert set(info) >= INFO
        assert isinstance(info["epm"], EpmDelta)
        assert isinstance(info["turn"], Turn)
        assert info["turn"].index == k
        assert isinstance(info["evidence"], tuple)
        assert all(isinstance(e, Evidence) for e in info["evidence"])
        assert info["judge_failed"] is False
        assert reward == pytest.approx(sum(info["reward_parts"].values()), abs=1e-12)
        assert info["epm"].work == pytest.approx(distance - info["epm"].distance, abs=1e-9)
        distance = info["epm"].distance
        ended = terminated or truncated
        assert isinstance(info["direction"], Direction) != (ended and info["direction"] is None)
        assert ("outcome" in info) == ended
    assert isinstance(steps[-1][4]["outcome"], Outcome)
    assert steps[-1][4]["outcome"].turns == len(steps)


@each_id
def test_evidence_quotes_the_reply(env_id: str) -> None:
    env = make(env_id)
    env.reset(seed=3)
    quoted = 0
    for step in go_on(env, actions_for(env, 12, seed=3)):
        for e in step[4]["evidence"]:
            assert e.quote in step[4]["turn"].reply
            quoted += bool(e.quote)
    assert quoted


@each_id
def test_step_before_reset_and_after_the_end_are_refused(env_id: str) -> None:
    env = gym.make(env_id, max_turns=1).unwrapped  # without the wrapper that refuses a step before reset by itself
    action = actions_for(env, 1)[0]
    with pytest.raises(EpisodeOver, match="reset"):
        env.step(action)
    env.reset(seed=0)
    step = env.step(action)
    assert step[3]
    for _ in range(2):
        with pytest.raises(EpisodeOver, match=r"ended after turn 1 \(budget\)[\s\S]*reset"):
            env.step(action)
    env.reset()
    assert len(env.step(action)) == 5, "a reset makes it playable again"


@each_id
def test_a_budget_truncates(env_id: str) -> None:
    steps = play(make(env_id, max_turns=3), 5, 9)[1:]
    assert [s[2:4] for s in steps] == [(False, False), (False, False), (False, True)]
    assert steps[-1][4]["outcome"].end == "budget"
    assert steps[-1][4]["reward_parts"]["terminal"] == 0
    assert steps[-1][0] in make(env_id).observation_space


@each_id
def test_gymnasiums_own_time_limit_works(env_id: str) -> None:
    env = gym.wrappers.RecordEpisodeStatistics(make(env_id, max_episode_steps=2))
    steps = play(env, 5, 9)[1:]
    assert [s[3] for s in steps] == [False, True]
    assert steps[-1][4]["episode"]["l"] == 2


@each_id
def test_render(env_id: str) -> None:
    silent = make(env_id)
    silent.reset(seed=1)
    assert silent.unwrapped.render() is None
    env = make(env_id, render_mode="ansi", scenario="career-01")
    env.reset(seed=1)
    steps = go_on(env, actions_for(env, 4))
    text = env.render()
    assert isinstance(text, str)
    assert get_scenario("career-01").persona.name in text
    assert text.count("EPM  C ") == len(steps)
    for step in steps:
        turn = step[4]["turn"]
        assert turn.user in text
        assert turn.reply in text
    assert "<think>" not in text
    env.reset(seed=2)
    assert env.render().count("EPM") == 0, "a new conversation starts with an empty page"


# ---- vectors -------------------------------------------------------------------------------------------------------


def singles(env_id: str, n: int, steps: int, mode: AutoresetMode, **options: Any) -> list[list[Any]]:
    """What `n` single environments give under the rules of an autoreset mode: row 0 the resets, then one row a step."""
    envs = [make(env_id, **options) for _ in range(n)]
    rows = [[(*env.reset(seed=100 + i), None) for i, env in enumerate(envs)]]
    over = [False] * n
    for actions in batches(env_id, n, steps):
        row = []
        for i, env in enumerate(envs):
            if over[i] and mode is AutoresetMode.NEXT_STEP:
                observation, info = env.reset()
                row.append((observation, 0.0, False, False, info, None))
                over[i] = False
                continue
            observation, reward, terminated, truncated, info = env.step(actions[i])
            over[i] = terminated or truncated
            final = None
            if over[i] and mode is AutoresetMode.SAME_STEP:
                final = observation
                observation, info = env.reset()
                over[i] = False
            row.append((observation, reward, terminated, truncated, info, final))
        rows.append(row)
    return rows


@cache
def batches(env_id: str, n: int, steps: int) -> list[list[Any]]:
    env = make(env_id)
    return [actions_for(env, n, seed=t) for t in range(steps)]


def compare_vector(vector: VectorEnv[Any, Any, Any], env_id: str, mode: AutoresetMode, **options: Any) -> None:
    n, steps = vector.num_envs, 7
    expected = singles(env_id, n, steps, mode, **options)
    observations, infos = vector.reset(seed=[100 + i for i in range(n)])
    first = observations
    kept = copy.deepcopy(first)
    assert observations in vector.observation_space
    for i, (observation, info, _) in enumerate(expected[0]):
        assert same(observations[i], observation)
        assert infos["epm"][i] == info["epm"]
        assert infos["scenario"][i] == info["scenario"]
    for t, actions in enumerate(batches(env_id, n, steps), start=1):
        batch = tuple(actions) if isinstance(actions[0], str) else np.stack(actions)
        observations, rewards, terminations, truncations, infos = vector.step(batch)
        assert observations in vector.observation_space
        for i, (observation, reward, terminated, truncated, info, final) in enumerate(expected[t]):
            where = f"step {t}, environment {i}"
            assert same(observations[i], observation), where
            assert rewards[i] == reward, where
            assert (terminations[i], truncations[i]) == (terminated, truncated), where
            assert infos["epm"][i] == info["epm"], where
            if "turn" in info:
                assert infos["turn"][i] == info["turn"], where
                assert infos["evidence"][i] == info["evidence"], where
            if final is not None:
                assert same(infos["final_obs"][i], final), where
                assert infos["final_info"]["outcome"][i].end == "budget"
    assert same(first, kept), "observations handed out change afterwards"


@each_id
@pytest.mark.parametrize("how", ["default", "sync", "async"])
def test_make_vec_equals_single_environments(env_id: str, how: str) -> None:
    mode = {} if how == "default" else {"vectorization_mode": how}
    vector = gym.make_vec(env_id, num_envs=3, **mode, max_turns=3)
    try:
        assert isinstance(vector, AsyncVectorEnv if how == "async" else SyncVectorEnv)
        compare_vector(vector, env_id, AutoresetMode.NEXT_STEP, max_turns=3)
    finally:
        vector.close()


@each_id
@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda m: m.name)
def test_async_vectors_equal_single_environments(env_id: str, shared_memory: bool, mode: AutoresetMode) -> None:
    turns = 30 if mode is AutoresetMode.DISABLED else 3
    makers = [lambda: make(env_id, max_turns=turns)] * 2
    vector = AsyncVectorEnv(makers, shared_memory=shared_memory, autoreset_mode=mode)
    try:
        compare_vector(vector, env_id, mode, max_turns=turns)
    finally:
        vector.close()


@each_id
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED], ids=lambda m: m.name)
def test_sync_vectors_equal_single_environments(env_id: str, mode: AutoresetMode) -> None:
    turns = 30 if mode is AutoresetMode.DISABLED else 3
    vector = SyncVectorEnv([lambda: make(env_id, max_turns=turns)] * 2, autoreset_mode=mode)
    compare_vector(vector, env_id, mode, max_turns=turns)


def test_whole_conversations_cross_shared_memory() -> None:
    options = {"observe": "conversation", "max_turns": 3}
    vector = gym.make_vec("echo/Companion-v0", num_envs=2, vectorization_mode="async", **options)
    try:
        compare_vector(vector, "echo/Companion-v0", AutoresetMode.NEXT_STEP, **options)
    finally:
        vector.close()


@pytest.mark.filterwarnings("ignore:.*ERROR")
def test_an_error_in_a_worker_reaches_the_caller_whole() -> None:
    vector = AsyncVectorEnv([lambda: make("echo/Companion-v0")] * 2)
    try:
        with pytest.raises(ConfigError, match="did you mean 'career-01'"):
            vector.reset(seed=1, options={"scenario": "carer-01"})
    finally:
        vector.close(terminate=True)


# ---- echo/Companion-v0 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [None, 3, b"hello", ["hello"], np.str_("hello").encode(), object()])
def test_an_action_must_be_a_string(action: Any) -> None:
    env = CompanionEnv(scenario="career-01")
    env.reset(seed=0)
    with pytest.raises(TypeError, match=f"string, got {type(action).__name__}"):
        env.step(action)
    assert env.step("Hello.")[4]["turn"].index == 1, "the refused action was no turn"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scenario": "carer-01"}, "did you mean 'career-01'"),
        ({"scenario": "train-9999"}, "did you mean 'train-"),
        ({"scenario": "nowhere.yaml"}, "no such file"),
        ({"split": "benchmrk"}, "did you mean 'benchmark'"),
        ({"scorer": "strct"}, "did you mean 'strict'"),
        ({"recipe": "emp"}, "did you mean 'epm'"),
        ({"backend": "embeddd"}, "did you mean 'embedded'"),
        ({"judge": "embeddd"}, "did you mean 'embedded'"),
        ({"judge": "no_such_module:Judge"}, "no_such_module"),
        ({"judge": f"{__name__}:NoSuchJudge"}, "NoSuchJudge"),
        ({"observe": "massage"}, "'message' or 'conversation'"),
        ({"render_mode": "human"}, "'ansi' or None"),
        ({"max_turns": 0}, "max_turns must be a whole number from 1"),
        ({"max_turns": -3}, "max_turns must be a whole number from 1"),
        ({"max_turns": 2.5}, "max_turns must be a whole number from 1"),
        ({"max_turns": "12"}, "max_turns must be a whole number from 1"),
        ({"max_turns": True}, "max_turns must be a whole number from 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [CompanionEnv, StrategyEnv])
def test_a_wrong_option_is_an_error_at_construction(kind: type, options: dict[str, Any], said: str) -> None:
    if kind is StrategyEnv and "observe" in options:
        pytest.skip("no option of this environment")
    with pytest.raises((ConfigError, ScenarioError), match=re.escape(said)):
        kind(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"scenario": 5},
        {"scenario": 0},
        {"split": 5},
        {"split": None},
        {"scorer": 5},
        {"recipe": None},
        {"judge": 5},
        {"judge": 0},
    ],
    ids=str,
)
def test_an_option_of_the_wrong_type_is_a_clear_error(options: dict[str, Any]) -> None:
    with pytest.raises((EchoError, TypeError, ValueError), match=rf"(?i){next(iter(options))}"):
        CompanionEnv(**options)


def test_an_unknown_option_is_an_error() -> None:
    for kind in (CompanionEnv, StrategyEnv):
        with pytest.raises(TypeError, match="scenrio"):
            kind(scenrio="career-01")


def test_a_split_beside_a_scenario_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="did you mean 'benchmark'"):
        CompanionEnv(scenario="career-01", split="benchmrk")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scenrio": "career-01"}, "unknown reset option 'scenrio'[\\s\\S]*scenario"),
        ({"scenario": "carer-01"}, "did you mean 'career-01'"),
        ({"scenario": ""}, "scenario"),
        ({"scenario": None}, "scenario"),
        ({"scenario": 5}, "scenario"),
        ({"scenario": ["career-01"]}, "scenario"),
        (["scenario"], "option"),
    ],
    ids=str,
)
def test_a_bad_reset_option_is_a_clear_error(options: Any, said: str) -> None:
    env = CompanionEnv()
    env.reset(seed=0)
    with pytest.raises((EchoError, TypeError, ValueError), match=said):
        env.reset(options=options)
    env.reset(seed=0)
    assert env.step("Hello.")[4]["turn"].index == 1


def test_reset_options_meet_a_certain_person() -> None:
    env = CompanionEnv()
    assert env.reset(seed=0, options={"scenario": "values-05"})[1]["scenario"] == "values-05"
    assert env.reset(seed=0, options={"scenario": "dev-0003"})[1]["scenario"] == "dev-0003"
    assert env.reset(seed=0, options={})[1]["scenario"] == CompanionEnv().reset(seed=0)[1]["scenario"]


@pytest.mark.parametrize("split", ["train", "dev"])
def test_the_generated_splits_are_played(split: str) -> None:
    steps = play(CompanionEnv(split=split), 3, 3)
    assert steps[0][1]["scenario"].startswith(split)


@pytest.mark.parametrize("scorer", ["official", "paper", "strict"])
def test_every_scorer_ends_an_episode(scorer: str) -> None:
    env = CompanionEnv(scenario="career-01", scorer=scorer)
    env.reset(seed=1)
    steps = go_on(env, ["You should be grateful for what you have."] * 50)
    assert steps[-1][2]
    assert steps[-1][4]["reward_parts"]["terminal"] == -1


def test_the_observation_is_the_conversation_and_nothing_else() -> None:
    message, whole = CompanionEnv(scenario="career-01"), CompanionEnv(scenario="career-01", observe="conversation")
    opening, _ = message.reset(seed=8)
    assert opening == get_scenario("career-01").opening.say
    assert whole.reset(seed=8)[0] == f"user: {opening}"
    said = [f"user: {opening}"]
    user = opening
    for action in actions_for(message, 14):
        turn = message.step(action)[4]["turn"]
        observation, _, terminated, truncated, _ = whole.step(action)
        assert turn.user == user
        user = message.unwrapped.session.observation.user
        said += [f"companion: {turn.reply}", f"user: {user}"]
        assert observation == "\n".join(said)
        assert "<think>" not in observation
        assert not HIDDEN_WORDS.search(user)
        if terminated or truncated:
            break


@pytest.mark.parametrize("reply", ["", " \n\t", "!" * 50_000, "word " * 9_000, "\x00\x01", "😀" * 30_000, "a\u2028b"])
def test_odd_replies_get_a_defined_answer(reply: str) -> None:
    env = CompanionEnv(scenario="family-02")
    env.reset(seed=0)
    for _ in range(3):
        observation, reward, _, _, info = env.step(reply)
        assert observation in env.observation_space
        assert observation
        assert math.isfinite(reward)
        assert not info["judge_failed"]


def test_half_a_surrogate_pair_can_be_recorded() -> None:
    """Half of an emoji, as a tokenizer may leave it: the space contains it, so it must survive to the record."""
    env = CompanionEnv(scenario="family-02")
    env.reset(seed=0)
    reply = "I hear you \ud83d"
    turn = env.step(reply)[4]["turn"]
    assert Turn.model_validate_json(turn.model_dump_json()) == turn


# ---- judges that are plugged in ------------------------------------------------------------------------------------


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setitem(registry._TARGETS, "judge", dict(registry._TARGETS["judge"]))
    registry.register("judge", "every-third", f"{__name__}:EveryThird")
    return "every-third"


@pytest.mark.parametrize("by", ["name", "module:attribute"])
@each_id
def test_an_unjudged_turn_has_no_reward_and_the_conversation_goes_on(env_id: str, by: str, plugged: str) -> None:
    env = make(env_id, judge=plugged if by == "name" else f"{__name__}:EveryThird", scenario="career-01")
    steps = play(env, 1, 9)[1:]
    assert len(steps) == 9
    before = None
    for k, (observation, reward, terminated, truncated, info) in enumerate(steps, start=1):
        failed = k % 3 == 0
        assert math.isnan(reward) == failed
        assert info["judge_failed"] is failed
        assert (info["epm"] is None) == failed
        assert not terminated
        assert not truncated
        assert observation in env.observation_space
        if failed:
            assert (info["evidence"], info["reward_parts"]) == ((), {})
            assert info["turn"].reward is None
        else:
            assert info["evidence"] == ()
            assert before is None or info["epm"].position[1] == before + 1, "an unjudged turn moved the state"
            before = info["epm"].position[1]


@each_id
def test_three_unjudged_turns_in_a_row_truncate(env_id: str) -> None:
    steps = play(make(env_id, judge=f"{__name__}:Mute", render_mode="ansi"), 1, 9)[1:]
    assert [(math.isnan(s[1]), s[2], s[3]) for s in steps] == [(True, False, False)] * 2 + [(True, False, True)]
    assert steps[-1][4]["outcome"].end == "unjudged"
    assert "TimeoutError: no answer within 60 s" in steps[-1][4]["turn"].failure


def test_an_unjudged_turn_is_rendered_as_such() -> None:
    env = CompanionEnv(judge=f"{__name__}:Mute", render_mode="ansi")
    play(env, 1, 1)
    assert "not judged (judge: TimeoutError: no answer within 60 s)" in str(env.render())


def test_an_unknown_name_of_every_kind_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in registry.KINDS:
        known = registry.names(kind)[0]
        with pytest.raises(ConfigError, match=f"unknown {kind} '{known}x'[\\s\\S]*did you mean '{known}'"):
            registry.resolve(kind, f"{known}x")
    with pytest.raises(ConfigError, match="module:attribute"):
        registry.register("judge", "bad", "no_colon")


# ---- echo/Strategy-v0 ----------------------------------------------------------------------------------------------


def test_features_are_named_and_within_range() -> None:
    env = StrategyEnv()
    size = len(env.feature_names)
    assert env.observation_space.shape == (size,) == (len(set(env.feature_names)),)
    assert f"({size},)" in str(StrategyEnv.__doc__), "the docstring names another shape"
    assert env.action_space.nvec.tolist() == [len(env.strategies), len(env.intensities)] == [8, 3]
    seen = []
    for seed in range(3):
        steps = play(env, seed, 45)
        seen += [s[0] for s in steps]
    stacked = np.stack(seen)
    assert stacked.dtype == np.float32
    assert np.isfinite(stacked).all()
    assert stacked.min() >= 0
    assert stacked.max() <= 1
    constant = [n for n, spread in zip(env.feature_names, np.ptp(stacked, axis=0), strict=True) if spread == 0]
    assert not constant, f"features that never change: {constant}"


def test_features_follow_the_actions() -> None:
    env = StrategyEnv(scenario="career-01")
    names = env.feature_names
    env.reset(seed=0)
    for action in ((2, 1), (2, 0), (5, 2)):
        observation = env.step(np.array(action))[0]
    value = dict(zip(names, observation.tolist(), strict=True))
    assert value["turn"] == pytest.approx(3 / 45)
    assert (value["used_resonate"], value["used_affirm"], value["used_advise"]) == pytest.approx((0.4, 0.2, 0))
    assert (value["last_single"], value["last_warm"], value["last_full"]) == (0, 0, 1)


def test_every_action_says_something_of_its_own() -> None:
    env = StrategyEnv(scenario="career-01")
    replies = {}
    for strategy in range(8):
        for intensity in range(3):
            env.reset(seed=6)
            info = env.step(np.array([strategy, intensity]))[4]
            assert info["reply"] == info["turn"].reply
            assert isinstance(info["message"], str)
            replies[strategy, intensity] = info["reply"]
    assert all(replies.values())
    assert len(set(replies.values())) >= 16  # "connect" has nothing to tie to at first, "resonate" is warm already


@pytest.mark.parametrize(
    "action",
    [None, "question", 3, [0], [0, 0, 0], [8, 0], [0, 3], [-1, 0], [[1, 1]], [1.7, 0.2], ["a", "b"], [math.nan, 0]],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_invalid_strategy_actions_are_refused(action: Any) -> None:
    env = StrategyEnv(scenario="career-01")
    env.reset(seed=0)
    with pytest.raises((ValueError, TypeError), match=r"strategy 0\.\.7, intensity 0\.\.2"):
        env.step(action)


@pytest.mark.parametrize("action", [(1, 2), [1, 2], np.array([1, 2], dtype=np.int32), np.array([1, 2], dtype=np.uint8)])
def test_whole_numbers_of_any_type_are_taken(action: Any) -> None:
    env = StrategyEnv(scenario="career-01")
    env.reset(seed=0)
    assert env.step(action)[4]["turn"].index == 1


# ---- the text space ------------------------------------------------------------------------------------------------


@given(st.text(st.characters(codec=None), max_size=60))
@settings(max_examples=100, deadline=None)
def test_text_survives_flattening(text: str) -> None:
    space = UnicodeText(64)
    assert text in space
    assert unflatten(space, flatten(space, text)) == text
    assert gym.spaces.utils.flatten_space(space).contains(flatten(space, text))


def test_the_text_space() -> None:
    space, other = UnicodeText(30, min_length=2, seed=4), UnicodeText(30, min_length=2, seed=4)
    sampled = [space.sample() for _ in range(50)]
    assert sampled == [other.sample() for _ in range(50)]
    assert all(s in space and 2 <= len(s) <= 30 for s in sampled)
    assert any(not s.isascii() for s in sampled)
    assert "a" not in space
    assert "a" * 31 not in space
    assert 5 not in space
    assert pickle.loads(pickle.dumps(space)) == space == copy.deepcopy(space) != UnicodeText(31, min_length=2)
    assert space.from_jsonable(space.to_jsonable(sampled)) == sampled
    with pytest.raises(ValueError, match="no mask"):
        space.sample(mask=(3, None))
