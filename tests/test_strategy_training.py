"""RLlib on `echo/Strategy-v0`: the typed job, the network without RLlib, fixed plans, and a short real run."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import chdir, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from echo_env.agents.embedded.strategies import FEATURES, INTENSITIES, STRATEGIES
from echo_env.agents.strategypolicy import Network
from echo_env.build import build_policy
from echo_env.errors import ConfigError, MissingExtra, RoleFailure
from echo_env.profiles import scenario_ids
from echo_env.strategy import StrategyEnv
from echo_env.trainers import strategyplay, strategyppo
from echo_env.trainers.job import checked
from echo_env.trainers.strategyplay import CONSTANTS, Choice, Meeting, Plan, Played, play, search_plan
from echo_env.trainers.strategyppo import FIGURES, Lean, Results, StrategyJob

SCORES = len(STRATEGIES) + len(INTENSITIES)


def network(seed: int = 0) -> Network:
    """A network with random weights, whose choice depends on what it reads."""
    random = np.random.default_rng(seed)
    shapes = ((16, len(FEATURES)), (SCORES, 16))
    return Network(
        tuple(
            (random.normal(size=s).astype(np.float32), random.normal(size=s[0]).astype(np.float32) / 4) for s in shapes
        )
    )


# ---- the job -------------------------------------------------------------------------------------------------------


def test_the_shipped_settings_are_those_of_the_typed_model() -> None:
    hydra = pytest.importorskip("hydra")
    from omegaconf import OmegaConf

    configs = Path(strategyppo.__file__).resolve().parents[1] / "configs"
    with hydra.initialize_config_dir(str(configs), version_base="1.3"):
        composed: Any = OmegaConf.to_container(hydra.compose("strategy"), resolve=True)
    assert checked(StrategyJob, composed) == StrategyJob(name="strategy", out=Path("runs/strategy"))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"split": "benchmark"}, "never trained on"),
        ({"split": "dev", "evaluation": {"split": "dev"}}, "never trained on"),
        ({"resume": True, "overwrite": True}, "contradict"),
        ({"ppo": {"minibatch": 5000}}, "more than ppo.turns"),
        ({"ppo": {"lrr": 1}}, "there is no setting 'ppo.lrr'"),
    ],
)
def test_a_job_that_cannot_be_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        checked(StrategyJob, {"name": "x", "out": "x", **settings})


def test_without_ray_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(strategyppo, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'echo-env\[rllib\]'"):
        strategyppo.train(StrategyJob(name="x", out=tmp_path / "x"))
    assert not (tmp_path / "x").exists()


# ---- what RLlib sees -----------------------------------------------------------------------------------------------


class Judgeless(gym.Env[Any, Any]):
    """An environment whose judge fails."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return None, math.nan, False, False, {}


def test_a_missing_reward_is_never_trained_on() -> None:
    with pytest.raises(RoleFailure, match="no reward"):
        Lean(Judgeless()).step(None)


def test_no_record_travels_with_a_turn() -> None:
    env = Lean(StrategyEnv(scenario="career-01", max_turns=2))
    assert env.reset(seed=0)[1] == {}
    assert env.step(np.array([0, 0]))[4] == {}
    *_, truncated, info = env.step(np.array([0, 0]))
    assert truncated
    assert info == {"success": 0.0}


def test_the_network_is_that_of_rllib() -> None:
    pytest.importorskip("ray.rllib")
    torch = pytest.importorskip("torch")
    job = StrategyJob.model_validate({"name": "x", "out": "x", "ppo": {"hidden": (8, 6)}})
    module = strategyppo.make_config(job).get_rl_module_spec(env=StrategyEnv()).build()
    mine = strategyppo.network_of(module)
    assert [w.shape for w, _ in mine.layers] == [(8, 24), (6, 8), (SCORES, 6)]
    for features in np.random.default_rng(0).random((20, 24), dtype=np.float32):
        theirs = module.forward_inference({"obs": torch.from_numpy(features[None])})["action_dist_inputs"][0]
        assert mine.scores(features) == pytest.approx(theirs.detach().numpy(), abs=1e-5)


# ---- the policy without RLlib --------------------------------------------------------------------------------------


def test_a_network_scores_by_hand() -> None:
    """tanh(0.5 * x0) on the way to the second strategy and the last intensity; all else 0."""
    first, last = np.zeros((1, len(FEATURES)), dtype=np.float32), np.zeros((SCORES, 1), dtype=np.float32)
    first[0, 0], last[1, 0], last[SCORES - 1, 0] = 0.5, 2.0, 3.0
    net = Network(((first, np.zeros(1, np.float32)), (last, np.zeros(SCORES, np.float32))))
    features = np.zeros(len(FEATURES), dtype=np.float32)
    features[0] = 1.0
    assert net.scores(features)[1] == pytest.approx(2 * math.tanh(0.5))
    assert net.act(features) == (1, len(INTENSITIES) - 1)


def test_a_saved_network_is_the_same(tmp_path: Path) -> None:
    network().save(tmp_path / "policy.npz")
    again = Network.load(tmp_path / "policy.npz")
    for (w, b), (w2, b2) in zip(network().layers, again.layers, strict=True):
        assert np.array_equal(w, w2)
        assert np.array_equal(b, b2)


def test_what_is_no_policy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="holds no strategy policy"):
        build_policy(f"strategy:{tmp_path / 'none.npz'}")
    (tmp_path / "text.npz").write_text("weights")
    with pytest.raises(ConfigError, match="holds no strategy policy"):
        build_policy(f"strategy:{tmp_path / 'text.npz'}")
    network().save(tmp_path / "policy.npz")
    monkeypatch.setattr("echo_env.agents.strategypolicy.FEATURES", (*FEATURES[:-1], "another"))
    with pytest.raises(ConfigError, match="other features"):
        build_policy(f"strategy:{tmp_path / 'policy.npz'}")


def test_the_policy_says_what_the_environment_would(tmp_path: Path) -> None:
    """The same choices from the bare conversation, where nobody keeps a list of actions."""
    network().save(tmp_path / "policy.npz")
    env = StrategyEnv(scenario="career-01")
    features, _ = env.reset(seed=3)
    env._voice = 5
    features = env._observe()
    policy = build_policy(f"strategy:{tmp_path / 'policy.npz'}", seed=5)
    for _ in range(8):
        said = asyncio.run(policy.respond(env._companion.session.observation))
        features, *_, info = env.step(np.array(network().act(features)))
        assert said == info["reply"]


# ---- fixed plans ---------------------------------------------------------------------------------------------------


def test_a_plan_goes_by_the_clock() -> None:
    """Two actions in turn: what the environment gives for them, and the same again."""
    meeting, plan = Meeting("career-01", 4), ((1, 1), (6, 2))
    env = StrategyEnv(scenario="career-01")
    env.reset(seed=4)
    rewards, over = [], False
    while not over:
        _, reward, terminated, truncated, info = env.step(np.array(plan[len(rewards) % 2]))
        rewards.append(reward)
        over = terminated or truncated
    (played,) = play(plan, [meeting])
    assert (played.turns, played.end) == (len(rewards), info["outcome"].end)
    assert played.reward == pytest.approx(sum(rewards))
    assert play(plan, [meeting]) == [played]


def test_everybody_is_met_once() -> None:
    benchmark = strategyplay.meetings("benchmark")
    assert [m.scenario for m in benchmark] == scenario_ids("benchmark")
    some = strategyplay.meetings("train", 60, seed=1)
    assert len({m.scenario for m in some}) == len({m.seed for m in some}) == 60
    assert some != strategyplay.meetings("train", 60, seed=2)


class Counted:
    """A world that pays 1 for each of the first ten turns in which action (turn mod 8, 1) is taken."""

    def __init__(self) -> None:
        self.met: set[str] = set()
        self.turns = 0

    def __call__(self, choices: Sequence[Choice], people: Sequence[Meeting]) -> list[list[Played]]:
        self.met |= {m.scenario for m in people}
        self.turns += 10 * len(choices) * len(people)
        return [
            [Played(scenario=m.scenario, end="patience", reward=self.worth(c), turns=10) for m in people]
            for c in choices
            if not isinstance(c, Network)
        ]

    @staticmethod
    def worth(plan: Plan) -> float:
        return float(sum(plan[t % len(plan)] == (t % 8, 1) for t in range(10)))


def test_the_search_finds_a_better_plan_than_any_constant() -> None:
    world = Counted()
    found = search_plan(world, "train", budget=40_000, people=2, seed=0)
    assert found.turns == world.turns
    assert found.reward == Counted.worth(found.plan) >= 6  # the best constant has 2
    assert world.met <= set(scenario_ids("train"))
    assert search_plan(Counted(), "train", budget=40_000, people=2, seed=0) == found
    small = search_plan(Counted(), "train", budget=0, people=2, seed=0)
    assert small.tried == len(CONSTANTS) + strategyplay.CYCLES  # all constants among them, whatever the budget


def test_a_row_sums_up() -> None:
    played = [Played(scenario="a", end=e, reward=r, turns=t) for e, r, t in (("success", 1, 10), ("collapse", -2, 5))]
    row = strategyplay.row("x", played)
    assert (row.success, row.successes, row.conversations, row.reward, row.turns) == (0.5, 1, 2, -0.5, 7.5)


# ---- a short run with Ray ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str], Results]]:
    """A run that Ctrl-C ends after its first update, gone on with for two more; Ray starts once for both parts."""
    pytest.importorskip("ray.rllib")
    with strategyppo._ray(2), pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategyppo, "_ray", lambda processors: nullcontext())
        yield _short_run(tmp_path_factory)


def _short_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], Results]:
    base, out = tmp_path_factory.mktemp("runs"), Path("short")  # as a user would give it
    small: dict[str, Any] = {
        "name": "short", "out": out, "runners": 1, "conversations": 2,
        "ppo": {"turns": 30, "minibatch": 15, "epochs": 1, "hidden": (8,)},
        "evaluation": {"split": "dev", "conversations": 1, "plan_turns": 0, "plan_people": 1},
    }  # fmt: skip
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with chdir(base):
        assert strategyppo.train(StrategyJob.model_validate(small | {"updates": 9}), say) is None
        assert (out / "policy.npz").exists()
        assert not (out / "results.json").exists()
        results = strategyppo.train(StrategyJob.model_validate(small | {"updates": 3, "resume": True}), say)
    assert results is not None
    return base / out, lines, results


@pytest.mark.slow
def test_a_resumed_run_goes_on(runs: tuple[Path, list[str], Results]) -> None:
    out, lines, results = runs
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [m["update"] for m in metrics] == [1, 2, 3]
    assert all(tuple(sorted(m)) == tuple(sorted(FIGURES)) for m in metrics)
    for key in ("turns", "elapsed_s", "processor_s"):
        assert metrics[0][key] < metrics[1][key] < metrics[2][key]
    assert metrics[2]["turns"] >= 90
    assert all(0 < m["entropy"] <= math.log(24) + 1e-6 for m in metrics)
    assert [line.split(":")[0] for line in lines[:3]] == ["update 1", "update 2", "update 3"]
    assert (results.updates, results.turns) == (3, metrics[2]["turns"])


@pytest.mark.slow
def test_the_table_has_all_rows(runs: tuple[Path, list[str], Results]) -> None:
    out, _, results = runs
    assert Results.model_validate_json((out / "results.json").read_text()) == results
    assert [row.name for row in results.rows[:2]] == ["PPO (RLlib)", "best fixed sequence"]
    assert {row.name for row in results.rows[2:]} == set(CONSTANTS)
    assert all(row.conversations == 1 for row in results.rows)
    again = play(Network.load(out / "policy.npz"), strategyplay.meetings("dev", 1))
    assert results.rows[0].reward == pytest.approx(fmean(p.reward for p in again))
