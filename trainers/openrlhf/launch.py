"""The dry run: everything that OpenRLHF takes, written into the run's folder and checked.

A run's folder holds

    agent.py       the agent file; agent.json beside it is what it reads
    train.jsonl    the data set, a line for each group; eval.jsonl where there is an evaluation
    submit.sh      hands the job to Ray; command.json holds the same as lists of words
    README.txt     what it takes to run it, and what is otherwise than under engine=local
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from echo_env.agents.loading import offline, stop_tokens
from echo_env.agents.modelrecord import recorded_models
from echo_env.build import build_session
from echo_env.errors import ConfigError, redact
from echo_env.profiles import Scenario
from echo_env.record import new_header
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.job import Job, checked
from echo_env.trainers.local import eval_tasks, limits_of, model_folder, overlong_of
from echo_env.trainers.openrlhf import contract
from echo_env.trainers.openrlhf.fates import notes, refuse
from echo_env.trainers.openrlhf.flags import argv_of, flags_of
from echo_env.trainers.openrlhf.rows import jsonl, rows_of
from echo_env.trainers.openrlhf.settings import OpenRLHFSettings
from echo_env.trainers.openrlhf.talks import AgentSettings
from echo_env.trainers.outcomes import Limits, Task
from echo_env.trainers.replies import messages_of
from echo_env.trainers.runs import open_run
from echo_env.trainers.tasks import Order, subjects

AGENT = '''"""The agent file of an OpenRLHF {version} run, by echo-env; agent.json beside it says what it plays."""

from pathlib import Path

from echo_env.trainers.openrlhf.agent import executor_of

AgentExecutor = executor_of(Path(__file__).with_name("agent.json"))
'''
SUBMIT = """#!/bin/sh
# Hands the job to Ray; README.txt beside this file says what it takes.
set -e
{command}
"""
README = """A job for OpenRLHF {version}, as written by  engine=openrlhf engine.dry_run=true

Launch:  ray start --head  where there are {gpus} GPUs (further machines: ray start --address=HEAD:6379); sh submit.sh
Each machine needs  pip install 'echo-env[openrlhf]'  and  pip install 'openrlhf[vllm]=={version}'  (with vLLM,
DeepSpeed, flash-attn), and under the same paths as here this folder and the model,
{model}
Keys of judges and of wandb come from the environment of `ray start`, never from a file or the command.

{checked}

Otherwise than under engine=local:
{notes}
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a dry run wrote."""

    folder: Path
    flags: Mapping[str, Any]
    """Of the program, name without dashes -> value; what has OpenRLHF's default is not among them."""
    argv: tuple[str, ...]
    """What trains: python3 -m openrlhf.cli.train_ppo_ray and its flags."""
    submit: tuple[str, ...]
    """What hands that to Ray."""
    groups: int
    """Rows of the data set."""
    evaluated: int
    left_out: int
    """Prompts that leave no room for a reply."""
    parsed: bool
    """Whether OpenRLHF's own parser has seen the flags; it takes an installed OpenRLHF."""


def run(job: Job) -> int:
    """Write and check the job, tell where it is, and return the exit code.

    Raises:
        ConfigError: OpenRLHF cannot do what the job asks for, or its parser refuses the command.
        RecordError: The folder is taken.
    """
    settings = checked(OpenRLHFSettings, job.engine.settings(), "engine")
    if not settings.dry_run:
        raise ConfigError(
            "engine=openrlhf is not started from here: it takes Ray, vLLM, DeepSpeed and GPUs",
            f"engine.dry_run=true writes the job; then, where those are:  sh {job.out / 'submit.sh'}",
        )
    prepared = prepare(job, settings, job.out)
    seen = "checked by OpenRLHF's own parser" if prepared.parsed else "not parsed: OpenRLHF is not installed here"
    sys.stdout.write(
        f"{prepared.groups} groups of {job.algo.group}, {prepared.evaluated} to evaluate on; {seen}\n"
        f"launch:  sh {prepared.folder / 'submit.sh'}\n"
    )
    return 0


def prepare(job: Job, settings: OpenRLHFSettings, folder: Path, program: Path | None = None) -> Prepared:
    """Write what OpenRLHF takes into a run's folder.

    Args:
        job: What to train.
        settings: Machines.
        folder: The run's folder; the training machines must see it under the same path.
        program: Source of `openrlhf/cli/train_ppo_ray.py`; None is that of the installed OpenRLHF, if there is one.

    Raises:
        ConfigError: OpenRLHF cannot do what the job asks for, its parser or its rules refuse the command, the template
            does not keep its history, or a name is unknown.
        RecordError: The folder is taken.
    """
    refuse(job)
    program = program or contract.installed()
    model = model_folder(job.model.path).resolve()
    chat, settings_of_agent = _agent(job, model)
    order = Order(subjects(job), job.seed)
    train, left_out = _fitting(order.take(job.groups * job.updates, 1), chat, settings_of_agent.limits)
    evaluation = eval_tasks(job) if job.monitor.eval_every and job.mode.name == "multiturn" else []
    rows, evaluated = rows_of(train, "train"), rows_of(evaluation, job.monitor.eval_split)
    folder = folder.resolve()
    flags = flags_of(job, settings, model=str(model), folder=folder, evaluate=bool(evaluated))
    argv = argv_of(flags)
    given = contract.parsed(argv, program) if program else {k: v for k, v in flags.items() if v is not None}
    contract.check_across(given)
    whole = ("python3", "-m", contract.MODULE, *argv)
    submit = _submit(job, settings, whole)
    prepared = Prepared(folder, given, whole, submit, len(rows), len(evaluated), left_out, program is not None)
    files = {
        "agent.py": AGENT.format(version=contract.VERSION),
        "agent.json": settings_of_agent.model_dump_json(indent=1) + "\n",
        "train.jsonl": jsonl(rows),
        **({"eval.jsonl": jsonl(evaluated)} if evaluated else {}),
        "command.json": json.dumps({"argv": whole, "submit": submit}, indent=1) + "\n",
        "submit.sh": SUBMIT.format(command=shlex.join(submit)),
        "README.txt": _readme(job, settings, prepared, model),
    }
    with open_run(job, _header(job, order)):
        for name, text in files.items():
            (folder / name).write_text(redact(text), encoding="utf-8")
    return prepared


def _agent(job: Job, model: Path) -> tuple[ChatFormat, AgentSettings]:
    """Return the policy's template and what the agent file reads, both from the model's folder; no weights are loaded.

    Raises:
        ConfigError: The template does not go with the history, or the world does not exist.
    """
    auto = import_module("transformers")
    with offline():
        tokenizer = auto.AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        try:
            generation = auto.GenerationConfig.from_pretrained(model, local_files_only=True)
        except OSError:
            config = auto.AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
            generation = auto.GenerationConfig.from_model_config(config)
    stops = stop_tokens(cast("Any", _Ends(generation)), tokenizer)
    chat = ChatFormat(tokenizer, stops=stops, system=job.model.system)
    if job.mode.name == "multiturn":
        chat.check_append()
    settings = AgentSettings(
        mode=job.mode.name,
        world=job.world,
        system=job.model.system,
        stops=tuple(sorted(stops)),
        limits=limits_of(job),
        overlong=overlong_of(job),
        score=job.algo.score,
        siblings=job.algo.group,
    )
    return chat, settings


@dataclass(frozen=True, slots=True)
class _Ends:
    """All that `stop_tokens` reads of a model."""

    generation_config: Any


def _fitting(tasks: Sequence[Task], chat: ChatFormat, limits: Limits) -> tuple[list[Task], int]:
    """Return the tasks whose prompts leave room for a reply, and how many do not; what a person will say is not known.

    Raises:
        ConfigError: None does.
    """
    limit = limits.context - limits.reply_tokens

    def fits(task: Task) -> bool:
        return task.prompt is None or len(chat.fitting(messages_of(task.prompt), limit)) <= limit

    kept = [task for task in tasks if fits(task)]
    if not kept:
        raise ConfigError(f"no prompt leaves room for {limits.reply_tokens} tokens", "raise mode.context")
    return kept, len(tasks) - len(kept)


def _submit(job: Job, settings: OpenRLHFSettings, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that hands the job to Ray; no secret is in it."""
    variables = {"TOKENIZERS_PARALLELISM": "true", "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    if job.logger.name == "wandb":
        variables["WANDB_MODE"] = job.logger.mode
    environment = json.dumps({"env_vars": variables})
    return ("ray", "job", "submit", f"--address={settings.address}", f"--runtime-env-json={environment}", "--", *argv)


def _header(job: Job, order: Order) -> Any:
    """Return the record of what is to be run."""
    scenarios = {s.id: s for _, s in order.subjects if isinstance(s, Scenario)}
    if scenarios:
        build_session(job.world, next(iter(scenarios.values())), job.seed)  # a wrong name is told here
    settings = job.settings()
    models = recorded_models(settings["world"], sorted({s.language for s in scenarios.values()} or {"en"}))
    return new_header(settings, {name: s.digest for name, s in scenarios.items()}, models)


def _readme(job: Job, settings: OpenRLHFSettings, prepared: Prepared, model: Path) -> str:
    told = notes(job)
    if prepared.left_out:
        told.append(f"{prepared.left_out} prompts leave no room for a reply and are left out.")
    seen = f"The flags were parsed by OpenRLHF {contract.VERSION}'s own parser and its rules across flags checked."
    unseen = "OpenRLHF was not installed where this was written: its parser has not seen the flags."
    places = settings.nodes * settings.gpus
    engines = settings.vllm_engines * settings.tensor_parallel
    gpus = places if settings.colocate else places * (2 if job.algo.needs_reference else 1) + engines
    return README.format(
        version=contract.VERSION,
        gpus=gpus,
        model=model,
        checked=seen if prepared.parsed else unseen,
        notes="\n".join(f"- {note}" for note in told),
    )
