"""The dry run of engine=openrlhf: its agent file in OpenRLHF's real executors, its command under OpenRLHF's real parser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace as Space
from typing import Any

import orlhf
import pytest
import tinypolicy
import torch

from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.job import Job, make_job
from echo_env.trainers.local import LocalEngine, make_world
from echo_env.trainers.openrlhf import launch
from echo_env.trainers.openrlhf.settings import OpenRLHFSettings
from echo_env.trainers.outcomes import Rollout, Task, draw_seed
from echo_env.trainers.sampler import Sampler
from echo_env.trainers.tasks import Order, subjects

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
        model.lm_head.weight[0] += 3 * usual / usual.square().sum()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def a_job(folder: Path, out: Path, changes: Sequence[str] = ()) -> Job:
    """The job that the command line would make."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    small = [
        "engine=openrlhf", "model=folder", f"model.path={folder}", f"out={out}", "groups=2", "algo.group=2", "updates=1",
        "mode.reply_tokens=12", "mode.context=1024", "world.max_turns=3", "model.system='Be kind.'",
        "engine.gpus=1", "engine.vllm_engines=1", "engine.rollout_batch=1",
    ]  # fmt: skip
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composed = compose("dapo", [*small, *changes])
    return make_job(OmegaConf.to_container(composed, resolve=True))  # type: ignore[arg-type]


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
    tokenizer, model = launch.import_module("echo_env.agents.loading").load_model(Path(job.model.path), "cpu", None)
    return make_world(job, LocalEngine(), Space(model=model, tokenizer=tokenizer))  # type: ignore[arg-type]


def test_conversations_are_those_of_the_local_engine(theirs: orlhf.OpenRLHF, folder: Path, tmp_path: Path) -> None:
    job = a_job(folder, tmp_path / "run")
    run, world = prepared(job), world_of(job)
    tasks = Order(subjects(job), job.seed).take(2, 2)
    local: list[Rollout] = world.collect(tasks)
    responses, engines = played_by_openrlhf(theirs, run, world, tasks)
    for r in responses:
        print(r["action_ranges"], r["reward"], r["scores"], r["extra_logs"], r["truncated"])
