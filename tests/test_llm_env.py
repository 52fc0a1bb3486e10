"""Environments in the language-model world, in Chinese and against a server: wherever `step()` may be called from.

A plain script, a running event loop (a notebook), vectors in this process and in others, forked or spawned.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from faultserver import Call, FaultServer, Said
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

import echo_env  # noqa: F401  (registers the environments)
from echo_env.agents.llm.asks import LlmFailure
from echo_env.agents.llm.client import LlmClient
from echo_env.agents.llm.config import models_config
from echo_env.agents.nee import panel_of, review_runs
from echo_env.agents.rollout import RunConfig, run
from echo_env.agents.synthesis import converse
from echo_env.agents.synthesis.facets import draw
from echo_env.build import WorldConfig
from echo_env.record import RunFolder
from echo_env.types import Turn

REPLY = "矿灯还亮着，那个读数你一直记到今天。"
STEPPED = f"<think><history>他讲了那一夜，探索</history><emotion>内疚</emotion><strategy>复述</strategy></think>{REPLY}"
TURNS = 3


def says(call: Call) -> Said:
    """Every role says something in Chinese that depends on what it was sent, and not on when."""
    heard = zlib.crc32(json.dumps(call.messages).encode())
    if call.tools:
        name = "stay" if "stay" in call.tools else "continue_naturally"
        said = {"reason": "顺着走", "words": "顺着刚才的话说。", "direction": "接着说那件事。"}
        fields = call.tools[name]["properties"]
        return {"name": name, "arguments": {k: v for k, v in said.items() if k in fields}}
    if call.title in ("Verdict", "BriefVerdict"):
        return {
            "evidence": [{"quote": "那个读数", "reason": "那一夜的读数", "anchor": "C.prog.1.reflects", "item": ""}],
            "summary": "他讲了那一夜。",
        }
    if call.title == "Review":
        marks = {"naturalness": 20, "pacing": 30, "narrative": 20}
        return {"diagnosis": "他要的是有人把那一夜按先后捋清楚。", **marks, "comment": "好。差。"}
    if not call.title and not call.system:  # a policy has none
        return f"{REPLY}（{heard}）"
    return None if call.title else f"那一夜的事我一直没放下，心里翻来覆去，第{heard}回了。"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer(answer=says) as server:
        yield server


@pytest.fixture
def models(server: FaultServer, tmp_path: Path) -> str:
    """What stands behind `llm:`; two models, so that nobody is warned of one that does everything."""
    file = tmp_path / "models.yaml"
    file.write_text(
        f"default: {{model: hosted_vllm/any, api_base: '{server.url}', retries: 0, timeout: 20}}\n"
        "roles: {judge: {model: hosted_vllm/other}}\ncache: {mode: 'off'}\n"
    )
    return str(file)


def make(models: str, **options: Any) -> gym.Env[str, str]:
    return gym.make(
        "echo/Companion-v0", **{"backend": f"llm:{models}", "split": "benchmark-zh", "max_turns": TURNS, **options}
    )


def played(env: gym.Env[str, str], reply: str = REPLY, seed: int = 3) -> list[tuple[str, float, dict[str, Any]]]:
    """A whole episode."""
    env.reset(seed=seed)
    steps, done = [], False
    while not done:
        message, reward, terminated, truncated, info = env.step(reply)
        steps.append((message, float(reward), info))
        done = terminated or truncated
    return steps


def turns_of(steps: list[tuple[str, float, dict[str, Any]]]) -> list[Turn]:
    return [info["turn"] for *_, info in steps]


# ---- an episode ----------------------------------------------------------------------------------------------------


def test_a_chinese_episode(models: str) -> None:
    steps = played(make(models))
    assert len(steps) == TURNS
    for message, reward, info in steps:
        assert "那一夜" in message
        assert math.isfinite(reward)
        assert not info["judge_failed"]
        assert info["turn"].failure == ""
        assert info["evidence"][0].quote == "那个读数"
        assert info["turn"].judgement.usage.calls == 1
    assert steps[-1][2]["outcome"].end == "budget"


@pytest.mark.parametrize(
    ("recipe", "kinds", "calls"),
    [
        ("echo_n1", ["empathy", "humanlike"], [2, 1]),
        ("humanlike", ["humanlike"], [1]),
        ("peer", ["unifireward"], [4]),
        ("sage", ["sage"], [1]),
    ],
)
def test_recipes_ask_their_own_judges(models: str, recipe: str, kinds: list[str], calls: list[int]) -> None:
    options = {"judges": f"llm:{models}"}
    for _, reward, info in played(make(models, recipe=recipe, recipe_options=options), STEPPED):
        assert math.isfinite(reward)
        assert info["turn"].failure == ""
        assert [v.kind for v in info["verdicts"]] == kinds
        assert [v.usage.calls for v in info["verdicts"]] == calls
        assert all(v.usage.prompt_tokens > 0 for v in info["verdicts"])
        assert reward == pytest.approx(sum(info["reward_parts"].values()))


@pytest.mark.filterwarnings("ignore:.*reward is a NaN")
@pytest.mark.parametrize(
    ("recipe", "title"),
    [("epm", "Verdict"), ("echo_n1", "HumanlikeAnswer"), ("peer", "PairAnswer"), ("sage", "Plan")],
)
def test_a_judge_that_fails_is_nan_and_told_and_the_next_turn_is_judged(
    server: FaultServer, models: str, recipe: str, title: str
) -> None:
    options = {} if recipe == "epm" else {"judges": f"llm:{models}"}
    env = make(models, recipe=recipe, recipe_options=options)
    env.reset(seed=1)
    server.behave = lambda call: "500" if call.title == title else "ok"
    message, reward, terminated, truncated, info = env.step(STEPPED)
    assert "那一夜" in message, "the conversation goes on"
    assert math.isnan(reward)
    assert info["judge_failed"]
    assert (terminated, truncated) == (False, False)
    assert "LlmFailure" in info["turn"].failure
    assert info["turn"].reward is None
    assert not [v for v in info["verdicts"] if v.failure and v.value is not None]
    server.behave = lambda call: "ok"
    _, reward, *_, info = env.step(STEPPED)
    assert math.isfinite(reward)
    assert not info["judge_failed"]


@pytest.mark.filterwarnings("ignore:.*reward is a NaN")
def test_a_person_who_cannot_be_reached_ends_it_and_a_dead_server_is_an_error_at_the_start(tmp_path: Path) -> None:
    with FaultServer(answer=says) as server:
        file = tmp_path / "models.yaml"
        file.write_text(f"default: {{model: hosted_vllm/any, api_base: '{server.url}', retries: 0, timeout: 5}}\n"
                        "roles: {judge: {model: hosted_vllm/other}}\ncache: {mode: 'off'}\n")  # fmt: skip
        env = make(str(file))
        env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step(REPLY)
    assert math.isnan(reward)
    assert (terminated, truncated) == (False, True)
    assert info["outcome"].end == "unreachable"
    with pytest.raises(LlmFailure, match="connection"):
        env.reset(seed=2)


def test_every_role_plays_reviews_and_writes_chinese(models: str, tmp_path: Path) -> None:
    world = WorldConfig(backend=f"llm:{models}", actor=f"sentient:{models}", max_turns=TURNS)
    config = RunConfig(policy=f"llm:{models}", scenarios=("zh-career-01", "zh-family-02"), world=world)
    result = run(config, tmp_path / "runs")
    assert not result.failures
    (folder,) = [p for p in (tmp_path / "runs").iterdir() if p.is_dir()]
    for episode in RunFolder(folder).episodes():
        assert [t.failure for t in episode.turns] == [""] * TURNS
    reviewed = review_runs(tmp_path / "runs", panel_of([f"llm:{models}"]))
    assert reviewed.models[0].nee == pytest.approx(70.0)
    talk = asyncio.run(converse(LlmClient(models_config(models)), draw("zh", 0, 1)))
    assert talk.meta.language == "zh"


# ---- where it is called from ---------------------------------------------------------------------------------------


def test_inside_a_running_event_loop_it_plays_the_same(models: str) -> None:
    async def cell() -> list[Turn]:
        return turns_of(played(make(models)))

    assert asyncio.run(cell()) == turns_of(played(make(models)))


SCRIPT = """
import sys
import gymnasium as gym, echo_env
env = gym.make("echo/Companion-v0", backend=f"llm:{sys.argv[1]}", split="benchmark-zh", max_turns=3)
env.reset(seed=3)
done = False
while not done:
    message, reward, terminated, truncated, info = env.step(sys.argv[2])
    done = terminated or truncated
    print(reward, info["judge_failed"])
"""


@pytest.mark.slow
def test_a_plain_script_ends_by_itself_and_says_nothing_else(models: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, models, REPLY], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{reward} False" for _, reward, _ in played(make(models))]


@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_copy_made_mid_episode_goes_on_in_the_same_way(models: str, copied: Callable[[Any], Any]) -> None:
    env = make(models, recipe="echo_n1", recipe_options={"judges": f"llm:{models}"})
    env.reset(seed=4)
    env.step(REPLY)
    twin = copied(env)
    assert twin.step(REPLY)[4]["turn"] == env.step(REPLY)[4]["turn"]


def compare(vector: VectorEnv[Any, Any, Any], models: str, number: int) -> None:
    """Over one episode, a vector's environments play as single ones do."""
    singles = [turns_of(played(make(models), seed=7 + i)) for i in range(number)]
    vector.reset(seed=7)
    for turn in range(TURNS):
        _, rewards, terminations, truncations, infos = vector.step([REPLY] * number)
        assert [infos["turn"][i] for i in range(number)] == [single[turn] for single in singles]
        assert list(rewards) == [single[turn].reward for single in singles]
        assert not any(terminations)
        assert list(truncations) == [turn == TURNS - 1] * number
        assert not any(infos["judge_failed"])
    assert not any(t.failure for single in singles for t in single)


def test_a_vector_in_this_process(models: str) -> None:
    compare(SyncVectorEnv([partial(make, models)] * 2), models, 2)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_vector_of_processes(models: str, context: str) -> None:
    played(make(models))  # a fork comes from a process whose own loop is running
    vector = AsyncVectorEnv([partial(make, models)] * 2, context=context)
    try:
        compare(vector, models, 2)
    finally:
        vector.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(ERROR|Traceback)")
def test_a_failure_in_a_worker_reaches_the_caller_whole(tmp_path: Path) -> None:
    with FaultServer() as dead:
        url = dead.url
    file = tmp_path / "models.yaml"
    file.write_text(f"default: {{model: hosted_vllm/any, api_base: '{url}', retries: 0}}\ncache: {{mode: 'off'}}\n")
    with pytest.warns(UserWarning, match="one model plays"):
        vector = AsyncVectorEnv([partial(make, str(file))] * 2, context="fork")
    try:
        with pytest.raises(LlmFailure, match="connection"):
            vector.reset(seed=1)
    finally:
        vector.close(terminate=True)
