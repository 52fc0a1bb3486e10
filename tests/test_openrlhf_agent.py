"""The dry run of engine=openrlhf: its agent file in the real executors, its command under the real parser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace as Space
from typing import Any

import orlhf
import pytest
import tinypolicy
import torch

from echo_env.agents.embedded.actor import EmbeddedActor
from echo_env.agents.loading import load_model
from echo_env.errors import ConfigError, EchoError, RoleFailure
from echo_env.trainers.advantages import trajectory_rewards
from echo_env.trainers.job import Job, make_job
from echo_env.trainers.local import LocalEngine, make_world, spoken_under
from echo_env.trainers.openrlhf import contract, fates, launch
from echo_env.trainers.openrlhf.settings import OpenRLHFSettings
from echo_env.trainers.openrlhf.talks import LOGS, CappedEngine, Played, Siblings, Verbatim, Written, settle
from echo_env.trainers.outcomes import Rollout, Task, draw_seed
from echo_env.trainers.sampler import Sampler
from echo_env.trainers.tasks import Order, subjects
from echo_env.trainers.trajectory import reward_table

pytestmark = [
    pytest.mark.openrlhf,
    pytest.mark.skipif(not (orlhf.FOLDER / "openrlhf").is_dir(), reason="make build/openrlhf/ready"),
]
PROGRAM = orlhf.FOLDER / "openrlhf" / "cli" / "train_ppo_ray.py"
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


@pytest.fixture(scope="module")
def theirs() -> orlhf.OpenRLHF:
    return orlhf.load()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy whose replies end by themselves about as often as they are cut."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = tinypolicy.tiny_tokenizer()
    model = tinypolicy.tiny_model(len(tokenizer))
    with torch.no_grad():
        usual = model.model(torch.arange(len(tokenizer))[None]).last_hidden_state.mean((0, 1))
        model.lm_head.weight[0] += 2 * usual / usual.square().sum()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


GROUPS = ("algo", "mode", "model", "engine", "logger")


@cache
def composed(choices: tuple[str, ...]) -> Any:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("dapo", [*choices, "out=x", "model.path=x"])


def a_job(folder: Path, out: Path, changes: Sequence[str] = ()) -> Job:
    """The job that the command line would make, but small."""
    from omegaconf import OmegaConf

    chosen = {"engine": "openrlhf", "model": "folder"} | dict(
        c.split("=") for c in changes if c.partition("=")[0] in GROUPS
    )
    small = [
        f"model.path={folder}", f"out={out}", "groups=2", "algo.group=2", "updates=1", "mode.reply_tokens=12",
        "mode.context=1024", "world.max_turns=3", "model.system='Be kind.'", "engine.gpus=1", "engine.vllm_engines=1",
        "engine.rollout_batch=1",
    ]  # fmt: skip
    single = [c for c in changes if c.partition("=")[0] not in GROUPS]
    base = composed(tuple(f"{k}={v}" for k, v in chosen.items()))
    settings = OmegaConf.merge(base, OmegaConf.from_dotlist([*small, *single]))
    return make_job(OmegaConf.to_container(settings, resolve=True))  # type: ignore[arg-type]


def prepared(job: Job) -> launch.Prepared:
    return launch.prepare(job, OpenRLHFSettings(**job.engine.settings()), job.out, PROGRAM)


class Engine:
    """Samples with Hugging Face as engine=local would the same sibling, and answers as vLLM does."""

    def __init__(self, sampler: Sampler, task: Task, tokenizer: Any) -> None:
        self.sampler, self.task, self.tokenizer, self.turn, self.asked = sampler, task, tokenizer, 0, list[Any]()

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        self.asked.append(sampling_params)
        seed = draw_seed(self.task, self.turn, 0)
        self.turn += 1
        await asyncio.sleep(0)
        drawn = self.sampler.sample([prompt_token_ids], sampling_params.max_tokens, [seed])[0]
        logprobs = [{t: Space(logprob=p)} for t, p in zip(drawn.ids, drawn.logprobs, strict=True)]
        reason = "stop" if drawn.stop == "end" else "length"
        text = self.tokenizer.decode(drawn.ids)
        return Space(outputs=[Space(token_ids=drawn.ids, text=text, finish_reason=reason, logprobs=logprobs)])


def played_by_openrlhf(
    theirs: orlhf.OpenRLHF, run: launch.Prepared, world: Any, tasks: Sequence[Task]
) -> tuple[list[dict[str, Any]], list[Engine]]:
    """All samples of a run's data set, as one of OpenRLHF's rollout actors plays them: siblings at the same time."""
    executor = theirs.engine._load_agent_executor(str(run.folder / "agent.py"))
    rows = [json.loads(line) for line in (run.folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    tokenizer = world.chat.tokenizer
    siblings = len(tasks) // len(rows)
    engines = [Engine(world.sampler, task, tokenizer) for task in tasks]

    async def play() -> list[dict[str, Any]]:
        samples = []
        for k, row in enumerate(rows):
            prompt, label = theirs.prompts.preprocess_data(row, None, run.flags["data.input_key"], "label", False)
            shared = Space(max_tokens=run.flags["rollout.max_new_tokens"], min_tokens=1, logprobs=1)
            samples += [
                executor.execute(
                    prompt=prompt, label=label, sampling_params=shared, max_length=run.flags["data.max_len"],
                    hf_tokenizer=tokenizer, llm_engine=engine,
                )
                for engine in engines[k * siblings : (k + 1) * siblings]
            ]  # fmt: skip
        return await asyncio.gather(*samples)

    return asyncio.run(play()), engines


def world_of(job: Job) -> Any:
    """Where engine=local would play the job."""
    tokenizer, model = load_model(Path(job.model.path), "cpu", None)
    return make_world(job, LocalEngine(), Space(model=model, tokenizer=tokenizer, spoken=spoken_under(job)))  # type: ignore[arg-type]


# ---- the agent file in the real executors ---------------------------------------------------------------------------


def same_samples(theirs: orlhf.OpenRLHF, responses: list[dict[str, Any]], local: list[Rollout], limit: int) -> None:
    """Ids, spans, log-probabilities, rewards, and OpenRLHF's own mask."""
    generator = theirs.samples.SamplesGenerator.__new__(theirs.samples.SamplesGenerator)
    for response, rollout in zip(responses, local, strict=True):
        assert rollout.trajectory is not None
        sequence = rollout.trajectory.sequences[-1]
        assert tuple(response["observation_tokens"]) == sequence.ids
        assert response["action_ranges"] == [(r.start, r.end) for r in sequence.replies]
        assert response["reward"] == pytest.approx(reward_of(rollout), abs=1e-9)
        experience = generator._process_response_into_experience(response, max_len=limit)
        mask = torch.zeros(len(sequence.ids), dtype=torch.bool)
        sampled = torch.zeros(len(sequence.ids))
        for reply in sequence.replies:
            mask[reply.start : reply.end] = True
            sampled[reply.start : reply.end] = torch.tensor(reply.logprobs)
        assert experience.sequences[0].tolist() == list(sequence.ids)
        assert experience.action_mask[0].bool().tolist() == mask[1:].tolist()
        assert torch.allclose(experience.rollout_log_probs[0], sampled[1:], atol=1e-4)
        assert experience.info.keys() >= {*LOGS}


def reward_of(rollout: Rollout) -> float:
    assert rollout.trajectory is not None
    return float(trajectory_rewards(reward_table([rollout.trajectory]))[0])


def test_conversations_are_those_of_the_local_engine(theirs: orlhf.OpenRLHF, folder: Path, tmp_path: Path) -> None:
    job = a_job(folder, tmp_path / "run")
    run, world = prepared(job), world_of(job)
    tasks = Order(subjects(job), job.seed).take(2, 2)
    local: list[Rollout] = world.collect(tasks)
    responses, engines = played_by_openrlhf(theirs, run, world, tasks)
    same_samples(theirs, responses, local, job.mode.context)
    assert [len(r.turns) for r in local] == [3, 3, 3, 3]
    assert all(r["truncated"] for r in responses), "three turns are the budget: cut off, not ended"
    stops = {reply.stop for r in local if r.trajectory for reply in r.trajectory.replies()}
    assert stops == {"end", "length"}, "both kinds of replies must be met"
    assert any("overlong" in part and part["overlong"] < 0 for r in local for part in r.parts)
    for response, rollout in zip(responses, local, strict=True):
        assert response["extra_logs"]["policy_tokens"] == sum(b - a for a, b in response["action_ranges"])
        assert response["extra_logs"]["turns"] == len(rollout.turns)
    asked = [p for engine in engines for p in engine.asked]
    assert len({id(p) for p in asked}) == len(asked) == 12, "nobody shares sampling parameters"
    assert {p.max_tokens for p in asked} == {12}, "the cap is a reply's in every turn"
    assert {tuple(p.stop_token_ids) for p in asked} == {tuple(sorted(world.chat.stops))}


def test_an_end_token_stands_once_after_every_reply(theirs: orlhf.OpenRLHF, folder: Path, tmp_path: Path) -> None:
    job = a_job(folder, tmp_path / "run")
    run, world = prepared(job), world_of(job)
    responses, _ = played_by_openrlhf(theirs, run, world, Order(subjects(job), job.seed).take(2, 2))
    end = world.chat.end[-1]
    for response in responses:
        ids, spans = response["observation_tokens"], response["action_ranges"]
        for (_, stop), (start, _) in pairwise(spans):
            closing = [k for k in range(stop - 1, start) if ids[k] == end]
            assert len(closing) == 2, "the reply's and the user's"
            assert closing[0] in (stop - 1, stop)


def test_single_replies_are_those_of_the_local_engine(theirs: orlhf.OpenRLHF, folder: Path, tmp_path: Path) -> None:
    from echo_env.agents.service.labels import prompt_of

    lines = tmp_path / "prompts.jsonl"
    talks = [
        ("train-0003", [], "I lost my job today."),
        ("train-0007", [("Hi.", "Hello.")], "Nobody calls me any more."),
    ]
    lines.write_text(
        "".join(
            json.dumps({
                "echo_env": 1, "id": f"p{k}", "scenario": scenario, "user": user,
                "history": [{"user": u, "reply": r} for u, r in history],
            }) + "\n"
            for k, (scenario, history, user) in enumerate(talks)
        )
    )  # fmt: skip
    job = a_job(folder, tmp_path / "run", ["mode=pseudo", f"data.prompts={lines}", "mode.reply_tokens=12"])
    run, world = prepared(job), world_of(job)
    tasks = Order(subjects(job), job.seed).take(2, 2)
    local: list[Rollout] = world.collect(tasks)
    responses, engines = played_by_openrlhf(theirs, run, world, tasks)
    same_samples(theirs, responses, local, job.mode.context)
    rows = [json.loads(line) for line in (run.folder / "train.jsonl").read_text().splitlines()]
    assert {prompt_of(row["label"]).scenario for row in rows} == {"train-0003", "train-0007"}
    assert all(type(r["prompt"]) is str for r in responses)
    assert len(engines) == 4


# ---- what nobody can score ------------------------------------------------------------------------------------------


class DeafJudge:
    """Judges nothing."""

    id = "deaf"
    rubric = "none"

    async def judge(self, view: Any) -> Any:
        raise RoleFailure("the line is dead")


class SilentActor(EmbeddedActor):
    """Never says a word."""

    async def speak(self, view: Any) -> str:
        raise RoleFailure("nobody picks up")


def test_whom_no_judge_scores_is_left_out_and_the_run_goes_on(
    theirs: orlhf.OpenRLHF, folder: Path, tmp_path: Path
) -> None:
    job = a_job(folder, tmp_path / "run", ["world.judge=test_openrlhf_agent:DeafJudge"])
    run, world = prepared(job), world_of(job)
    responses, _ = played_by_openrlhf(theirs, run, world, Order(subjects(job), job.seed).take(2, 2))
    for response in responses:
        assert response["reward"] == 0.0, "nobody has a reward, so that nobody's advantage is other than 0"
        assert response["scores"] == 0.0, "dynamic sampling replaces the group"
        assert response["extra_logs"]["unscored"] == 1.0
        assert sum(b - a for a, b in response["action_ranges"]) == 1


def test_a_person_who_never_speaks_is_left_out(theirs: orlhf.OpenRLHF, folder: Path, tmp_path: Path) -> None:
    job = a_job(folder, tmp_path / "run", ["world.actor=test_openrlhf_agent:SilentActor"])
    run, world = prepared(job), world_of(job)
    responses, engines = played_by_openrlhf(theirs, run, world, Order(subjects(job), job.seed).take(2, 2))
    assert [r["extra_logs"]["unscored"] for r in responses] == [1.0] * 4
    assert [e.asked[0].max_tokens for e in engines] == [1] * 4, "one token, since OpenRLHF wants some"
    generator = theirs.samples.SamplesGenerator.__new__(theirs.samples.SamplesGenerator)
    for response in responses:
        assert int(generator._process_response_into_experience(response, max_len=1024).action_mask.sum()) == 1


def sample(reward: float | None, score: float | None, k: int) -> Played:
    """A conversation of two replies, three tokens and two, with its whole reward in the second turn."""
    from trajectories import trajectory

    return Played(
        {
            "prompt": "p", "label": "l", "images": None, "mm_train_inputs": None, "observation_tokens": [*range(1, 13)],
            "action_ranges": [(3, 6), (9, 11)], "rollout_log_probs": None, "truncated": False, "reward": 0.0,
            "scores": 0.0, "extra_logs": {},
        },
        Rollout(Task("g", 0, number=k), trajectory([0.0, reward], [3, 2]).model_copy(update={"score": score})),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("dr_grpo", [2 / 3, -1 / 3, 0, -1 / 3]),
        ("group_norm", [2**0.5, -(2**-0.5), 0, -(2**-0.5)]),  # std of 1, 0, 1/3, 0 with n - 1 is sqrt(2/9)
        ("rloo", [8 / 9, -4 / 9, 0, -4 / 9]),  # 4/3 of what dr_grpo gives
    ],
)
def test_left_out_in_openrlhfs_own_estimators(theirs: orlhf.OpenRLHF, estimator: str, expected: list[float]) -> None:
    """Rewards 1, 0, none, 0: the mean of those that there are is 1/3."""
    group = [sample(r, s, k) for k, (r, s) in enumerate([(1.0, 1.0), (0.0, 0.0), (None, None), (0.0, 0.0)])]
    settle(group)
    generator = theirs.samples.SamplesGenerator.__new__(theirs.samples.SamplesGenerator)
    samples = [generator._process_response_into_experience(p.response, max_len=64) for p in group]
    maker = theirs.maker.RemoteExperienceMaker.__new__(theirs.maker.RemoteExperienceMaker)
    maker.advantage_estimator, maker.kl_ctl, maker.tokenizer = estimator, Space(value=0.0), Space(pad_token_id=0)
    advantage = Space(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    maker.args = Space(
        train=Space(dynamic_batch_enable=False), algo=Space(advantage=advantage),
        rollout=Space(n_samples_per_prompt=4, micro_batch_size=2, max_new_tokens=None), data=Space(max_len=64),
        reward=Space(clip_range=(-1e6, 1e6), overlong_buffer_len=None, stop_properly_penalty_coef=None),
    )  # fmt: skip
    maker.strategy = Space(args=maker.args)
    batches = maker.split_rollout_samples(samples)  # None for a reward, or other keys to log, would end here
    for batch in batches:
        batch.kl = torch.zeros_like(batch.action_mask, dtype=torch.float)
    made = maker.compute_advantages_and_returns(batches)
    found = torch.cat([b.advantages[b.action_mask.bool()] for b in made]).tolist()
    each = [a for a, n in zip(expected, [5, 5, 1, 5], strict=True) for _ in range(n)]
    assert found == pytest.approx(each, abs=1e-5)
    assert [float(b) for made_b in made for b in made_b.info["unscored"]] == [0, 0, 1, 0]


def test_scores_say_whether_a_group_has_spread() -> None:
    for scores, kept in (([0.2, 0.2], False), ([0.2, 0.9], True), ([1.0, None], False), ([-3.0, -1.0], True)):
        group = [sample(1.0, s, k) for k, s in enumerate(scores)]
        settle(group)
        mean = sum(p.response["scores"] for p in group) / 2
        assert (0 < mean < 1) is kept, "OpenRLHF's own rule, with the range 0 1 that the command gives"


def test_where_no_sibling_is_scored_the_usual_reward_stands_in() -> None:
    async def play() -> list[list[dict[str, Any]]]:
        siblings = Siblings(2)

        async def one(reward: float | None, k: int) -> Played:
            return sample(reward, reward, k)

        return [
            await asyncio.gather(*(siblings.join((name, "l"), one(r, k)) for k, r in enumerate(rewards)))
            for name, rewards in (("a", [1.0, 0.0]), ("b", [None, None]))
        ]

    first, second = asyncio.run(play())
    assert [r["reward"] for r in first] == [1.0, 0.0]
    assert [r["reward"] for r in second] == [0.5, 0.5]


def test_siblings_do_not_wait_for_one_whose_engine_died() -> None:
    async def play() -> list[Any]:
        siblings = Siblings(3)

        async def good() -> Played:
            return sample(1.0, 1.0, 0)

        async def dead() -> Played:
            await asyncio.sleep(0.01)
            raise OSError("the engine is gone")

        found = await asyncio.wait_for(
            asyncio.gather(*(siblings.join(("p", "l"), one()) for one in (good, dead, good)), return_exceptions=True), 5
        )
        return list(found)

    a, b, c = asyncio.run(play())
    assert isinstance(b, OSError)
    assert isinstance(a, EchoError)
    assert "engine is gone" in str(c)


def test_what_is_written_keeps_its_ids() -> None:
    tokenizer = tinypolicy.tiny_tokenizer()
    verbatim, odd = Verbatim(tokenizer), [5, 5, 0, 7]
    assert verbatim(text=Written("", odd), add_special_tokens=False, return_tensors="pt")["input_ids"].tolist() == [odd]
    plain = verbatim(text="I hear you.", add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert plain.tolist() == [tokenizer("I hear you.", add_special_tokens=False)["input_ids"]]
    nothing = verbatim(text=Written("", []))["input_ids"]
    assert nothing[0].tolist() == []


def test_the_capped_engine_leaves_shared_parameters_alone() -> None:
    asked: list[Any] = []

    class Inner:
        async def generate(self, ids: list[int], params: Any, multi_modal_data: Any = None) -> Any:
            asked.append(params)
            return Space(outputs=[Space(token_ids=[1], logprobs=None)])

    shared, engine = Space(max_tokens=None, min_tokens=1, logprobs=None), CappedEngine(Inner(), [3, 2])
    engine.room = 7
    asyncio.run(engine.generate([1], shared))
    shared.max_tokens = 4
    asyncio.run(engine.generate([1], shared))
    assert [(p.max_tokens, p.min_tokens, p.stop_token_ids) for p in asked] == [(7, 0, [2, 3]), (4, 0, [2, 3])]
    assert vars(shared) == {"max_tokens": 4, "min_tokens": 1, "logprobs": None}
    assert engine.logprobs == [0.0]


# ---- the command ----------------------------------------------------------------------------------------------------

PRESETS = sorted(f.stem for f in (CONFIGS / "algo").glob("*.yaml"))
REFUSED_PRESETS = {"dr_grpo": "constant", "peer": "PEER", "dapo_turn": "turn credit|no turns"}


def flags_for(job: Job) -> dict[str, Any]:
    fates.refuse(job)
    flags = launch.flags_of(
        job, OpenRLHFSettings(**job.engine.settings()), model="/models/m", folder=Path("/run"), evaluate=True
    )
    given = contract.parsed(launch.argv_of(flags), PROGRAM)
    contract.check_across(given)
    return given


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("mode", ["multiturn", "pseudo"])
def test_every_preset_is_taken_or_refused_in_words(preset: str, mode: str, tmp_path: Path) -> None:
    settings = [f"algo={preset}", f"mode={mode}", "algo.group=2"]
    if preset in REFUSED_PRESETS:
        with pytest.raises(ConfigError, match=REFUSED_PRESETS[preset]):
            flags_for(a_job(tmp_path, tmp_path / "run", settings))
    else:
        flags = flags_for(a_job(tmp_path, tmp_path / "run", settings))
        assert flags["rollout.n_samples_per_prompt"] == 2
        assert flags["algo.advantage.estimator"] != "gae", "a critic is nothing that a job can ask for"


def test_the_judges_run_of_echo_n1_as_flags(tmp_path: Path) -> None:
    changes = [
        "algo=echo_judge",
        "algo.group=8",
        "groups=8",
        "updates=1000",
        "optim.warmup=300",
        "optim.schedule=cosine",
    ]
    flags = flags_for(a_job(tmp_path, tmp_path / "run", changes))
    expected = {
        "actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": [3e-4, 4e-4], "algo.kl.use_loss": True,
        "actor.loss_agg_mode": "seq-mean-token-mean", "algo.kl.init_coef": 0.001, "algo.kl.estimator": "k3",
        "algo.advantage.estimator": "group_norm", "rollout.n_samples_per_prompt": 8, "train.batch_size": 64,
        "actor.adam.lr": 1e-6, "actor.lr_scheduler": "cosine", "algo.dynamic_filtering_range": [0.0, 1.0],
        "reward.clip_range": [-1e6, 1e6],
    }  # fmt: skip
    assert {k: flags[k] for k in expected} == expected
    assert flags["actor.lr_warmup_ratio"] == pytest.approx(0.3, abs=1e-8)
    assert "reward.overlong_buffer_len" not in flags, "it would count the user's tokens: the penalty is in our reward"


def test_flags_that_public_examples_use_are_refused() -> None:
    for words, named in (
        (["--prompt_max_len", "1024"], "prompt_max_len"),
        (["--algo.advantage.is_correction_enable"], "is_correction_enable"),
        (["--actor.eps_clip_low_high", "0.2"], "eps_clip_low_high"),
        (["--actor.policy_loss_type", "dapo"], "policy_loss_type"),
        (["--train.seed", "first"], "seed"),
        (["--reward.clip_range", "-1e6", "1e6"], "clip_range"),  # argparse takes -1e6 for a flag
        (["--actor.adam", "1"], "adam"),  # no abbreviations
    ):
        with pytest.raises(ConfigError, match=named):
            contract.parsed(words, PROGRAM)
    assert contract.parsed(["--ds.lora.target_modules", "q", "v"], PROGRAM) == {"ds.lora.target_modules": ["q", "v"]}


def test_the_rebuilt_parser_knows_every_option_of_the_program() -> None:
    source = PROGRAM.read_text(encoding="utf-8")
    parser = contract.parser_of(source)
    in_loop = source.count('f"--{prefix}.')
    assert len(parser._actions) - 1 == source.count("parser.add_argument(") + in_loop
    assert in_loop > 5


GOOD = {
    "actor.num_gpus_per_node": 2, "ref.num_gpus_per_node": 2, "vllm.num_engines": 2, "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 2, "train.batch_size": 8, "algo.advantage.estimator": "group_norm",
    "train.agent_func_path": "a.py", "train.colocate_all": True, "vllm.enable_sleep": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ref.num_gpus_per_node": 1}, "share GPUs"),
        ({"vllm.num_engines": 3}, "vLLM's engines"),
        ({"vllm.num_engines": 0}, "no vLLM engine"),
        ({"rollout.n_samples_per_prompt": 1}, "siblings"),
        ({"train.async_enable": True}, "sleep"),
        ({"train.partial_rollout_enable": True}, "partial"),
        ({"eval.dataset": "e", "train.agent_func_path": None}, "evaluation"),
        ({"rollout.vllm_generate_batch_size": 8}, "more prompts"),
        ({"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": [1, 0]}, "range"),
        ({"algo.dynamic_filtering_enable": True, "train.agent_func_path": None}, "filtering"),
        (
            {"algo.dynamic_filtering_enable": True, "rollout.n_samples_per_prompt": 1, "rollout.batch_size": 8,
             "algo.advantage.estimator": "reinforce"},
            "no spread",
        ),
        ({"rollout.micro_batch_size": 8}, "micro-batches"),
        ({"train.batch_size": 9}, "do not divide"),
        ({"actor.dual_clip": 0.9}, "dual"),
        ({"algo.advantage.is_correction_mode": "clip", "algo.advantage.is_correction_level": "seq"}, "clip"),
        (
            {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_gating": "tv",
             "algo.advantage.is_correction_threshold": [0.1, 0.5]},
            "upper bound",
        ),
        ({"reward.overlong_buffer_len": 50, "rollout.max_new_tokens": 40}, "overlong"),
    ],
)  # fmt: skip
def test_rules_across_flags(change: dict[str, Any], told: str) -> None:
    contract.check_across(GOOD)
    with pytest.raises(ConfigError, match=told):
        contract.check_across({**GOOD, **change})


def leaves(kind: Any, before: str = "") -> Iterator[str]:
    """Names of all settings of a record; a record within that may be missing is a setting, too."""
    from typing import get_args

    from pydantic import BaseModel

    for name, field in kind.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if inner is None or name == "engine":
            yield before + name
        else:
            if type(None) in kinds:
                yield before + name
            yield from leaves(inner, f"{before}{name}.")


REFUSED = {
    "minutes": ["minutes=10"],
    "mode.history": ["mode.history=rerender"],
    "algo.credit": ["algo.credit=turn"],
    "algo.redundancy": ["algo.redundancy=true"],
    "monitor.held_out": ["monitor.held_out=second"],
    "monitor.stop_on": ["monitor.stop_on=[length]"],
}
PARTLY_REFUSED = {
    "constant": ["algo.objective.aggregation=constant", "algo.objective.constant=64"],
    "one coefficient": ["algo=reinforce_pp", "algo.group=2", "algo.objective.kl_coef=0.1"],
    "without a baseline": ["algo.baseline=none"],
    "REINFORCE": ["algo=reinforce_pp", "algo.group=2", "algo.baseline=rloo"],
    "discount": ["algo=reinforce_pp", "algo.group=2", "algo.token_discount=0.9"],
    "optimiser steps": ["algo.minibatches=3"],
    "alpha": ["model.lora={rank: 8, alpha: 1.5, targets: all-linear}"],
    "names there": ["model.lora={rank: 8, alpha: 16, targets: '.*proj'}"],
}


def test_every_setting_has_a_fate() -> None:
    assert {*leaves(Job)} == {*fates.FATES}
    assert {name for name, fate in fates.FATES.items() if fate == "refused"} == {*REFUSED}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED.keys())
def test_what_it_cannot_do_is_refused(changes: list[str], tmp_path: Path) -> None:
    fates.refuse(a_job(tmp_path, tmp_path / "run"))
    with pytest.raises(ConfigError, match="engine=openrlhf"):
        fates.refuse(a_job(tmp_path, tmp_path / "run", changes))


@pytest.mark.parametrize(("told", "changes"), PARTLY_REFUSED.items(), ids=PARTLY_REFUSED.keys())
def test_values_that_it_cannot_do_are_refused(told: str, changes: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        fates.refuse(a_job(tmp_path, tmp_path / "run", changes))


CHANGED = {
    "name": ["name=other"], "out": ["out=/elsewhere"], "resume": ["resume=true"], "seed": ["seed=7"],
    "groups": ["groups=4"], "model.lora": ["model.lora={rank: 8, alpha: 16, targets: all-linear}"],
    "mode.context": ["mode.context=512"], "mode.temperature": ["mode.temperature=0.8"],
    "mode.top_p": ["mode.top_p=0.9"],
    "algo.group": ["algo.group=4"], "algo.estimator": ["algo=reinforce_pp"], "algo.baseline": ["algo.baseline=rloo"],
    "algo.objective.clip.low": ["algo.objective.clip.low=0.1"],
    "algo.objective.clip.high": ["algo.objective.clip.high=0.1"],
    "algo.objective.clip.dual": ["algo.objective.clip.dual=3"],
    "algo.objective.ratio": ["algo.objective.ratio=sequence", "algo.objective.aggregation=sequence"],
    "algo.objective.aggregation": ["algo.objective.aggregation=sequence"],
    "algo.objective.correction": ["algo.objective.correction={level: token}"],
    "algo.objective.kl_coef": ["algo.objective.kl_coef=0.1"], "algo.objective.kl": ["algo.objective.kl=k2"],
    "algo.objective.kl_exact": ["algo.objective.kl_coef=0.1", "algo.objective.kl_exact=true"],
    "algo.objective.entropy_coef": ["algo.objective.entropy_coef=0.01"],
    "algo.dynamic_sampling": ["algo.dynamic_sampling=false"],
    "algo.reward_kl": ["algo=reinforce_pp", "algo.reward_kl=0.5"],
    "algo.token_discount": ["algo=reinforce_pp", "mode=pseudo", "algo.token_discount=0.9"],
    "algo.reward_clip": ["algo=reinforce_pp", "algo.reward_clip=[-1,1]"],
    "algo.epochs": ["algo.epochs=2"], "algo.minibatches": ["algo.minibatches=2"],
    "optim.lr": ["optim.lr=1e-5"], "optim.betas": ["optim.betas=[0.8,0.9]"], "optim.eps": ["optim.eps=1e-6"],
    "optim.weight_decay": ["optim.weight_decay=0.1"], "optim.schedule": ["optim.schedule=linear"],
    "optim.warmup": ["updates=10", "optim.warmup=7"], "optim.max_grad_norm": ["optim.max_grad_norm=0.5"],
    "monitor.eval_every": ["monitor.eval_every=5"], "checkpoints.every": ["checkpoints.every=3"],
    "checkpoints.keep": ["checkpoints.keep=5"], "logger.name": ["logger=wandb"],
    "logger.project": ["logger=wandb", "logger.project=mine"],
}  # fmt: skip


def test_a_setting_that_is_a_flag_changes_the_command(tmp_path: Path) -> None:
    whole = {n for n, fate in fates.FATES.items() if fate == "flag" and not n.startswith("model.lora.")}
    assert whole - {"model.path", "engine"} - {n for n in whole if ".correction." in n} == {*CHANGED}
    seen = {}
    for name, changes in CHANGED.items():
        job = a_job(tmp_path, tmp_path / "run", changes)
        flags = launch.flags_of(job, OpenRLHFSettings(), model="m", folder=job.out, evaluate=job.monitor.eval_every > 0)
        seen[name] = launch.argv_of(flags)
    plain = a_job(tmp_path, tmp_path / "run")
    before = launch.argv_of(launch.flags_of(plain, OpenRLHFSettings(), model="m", folder=plain.out, evaluate=False))
    assert [name for name, words in seen.items() if words == before] == []


def test_no_key_is_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef-secret")
    run = prepared(
        a_job(folder, tmp_path / "run", ["logger=wandb", "monitor.eval_every=2", "monitor.eval_scenarios=3"])
    )
    assert "0123456789abcdef-secret" not in "".join(f.read_text() for f in run.folder.iterdir() if f.is_file())
    assert run.flags["logger.wandb.key"] == "env"
    assert '"WANDB_MODE": "offline"' in " ".join(run.submit)
    assert run.parsed
    assert run.evaluated == len((run.folder / "eval.jsonl").read_text().splitlines()) == 3
    assert run.flags["eval.n_samples_per_prompt"] == 2, "the agent file waits for as many"
    assert json.loads((run.folder / "command.json").read_text())["argv"] == list(run.argv)
    assert list(run.argv[:3]) == ["python3", "-m", "openrlhf.cli.train_ppo_ray"]


def test_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = a_job(folder, tmp_path / "run")
    assert launch.run(job) == 0
    told = capsys.readouterr().out
    assert "2 groups of 2" in told
    assert f"sh {job.out / 'submit.sh'}" in told
    with pytest.raises(EchoError, match="already"):
        launch.run(job)
    with pytest.raises(ConfigError, match="not started from here"):
        launch.run(a_job(folder, tmp_path / "other", ["engine.dry_run=false"]))
    with pytest.raises(ConfigError, match=r"engine\.gpus"):
        launch.run(a_job(folder, tmp_path / "other", ["engine.gpus=0"]))
    assert not (tmp_path / "other").exists()


def test_a_prompt_that_leaves_no_room_is_left_out(folder: Path, tmp_path: Path) -> None:
    lines = tmp_path / "prompts.jsonl"
    said = ["I am tired.", "word " * 900]
    lines.write_text("".join(json.dumps({"echo_env": 1, "id": f"p{k}", "user": u}) + "\n" for k, u in enumerate(said)))
    run = prepared(a_job(folder, tmp_path / "run", ["mode=pseudo", f"data.prompts={lines}", "mode.reply_tokens=12"]))
    assert (run.groups, run.left_out) == (1, 1)
    assert "1 prompts leave no room" in (run.folder / "README.txt").read_text()


def test_the_other_machine_must_have_the_same_scenario(folder: Path, tmp_path: Path) -> None:
    from echo_env.trainers.openrlhf.rows import Spec

    run = prepared(a_job(folder, tmp_path / "run"))
    first = json.loads((run.folder / "train.jsonl").read_text().splitlines()[0])
    spec = Spec.model_validate_json(first["label"])
    assert spec.known().id == spec.scenario
    with pytest.raises(ConfigError, match="not here what it was"):
        spec.model_copy(update={"digest": "0" * 16}).known()
