"""What RL on single replies is trained on: points in conversations, each with a reply to beat (Echo-N1 section 2.4).

    python trainers/prompts.py out=data/prompts best_of.policy=FOLDER
    python trainers/prompts.py out=data/prompts best_of.policy=FOLDER best_of.mean=0.8 resume=true      # filter again

Empathetic prompts are points in conversations of reference policies with people of the train split; chit-chat prompts,
with those of the split `chitchat`. The union is in the file, in shuffled order. A folder holds

    candidates.jsonl    every prompt
    samples.jsonl       what the start policy replied N times to each, and the scores
    dropped.jsonl       what the filter left out, and why
    prompts.jsonl       what is left, one `RlPrompt` a line:  data.prompts=data/prompts/prompts.jsonl

Best-of-N filter: a prompt is dropped where the start policy beats the reference nearly always (`filters.too_easy`). A
verdict that is missing counts for nothing; a prompt without any is kept.

Departures from the paper: references come from a policy of fixed quality (`recipes.REFERENCE`), not from a rewriter
whose replies rated 3 of 5 were selected. Chit-chat has no reference, hence no filter: nothing is compared there, as in
the paper. Its thresholds are not printed; ours are.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated, Any

from pydantic import Field

from echo_env.agents.rollout import BatchPolicy, seeded
from echo_env.agents.scoring import Scored, score_replies
from echo_env.build import WorldConfig, build_policy, conversation_seed
from echo_env.driving import waits
from echo_env.errors import ConfigError, EchoError, RecordError
from echo_env.record import RunFolder, new_header
from echo_env.roles import Observation, Policy
from echo_env.trainers.commandline import main, print_job
from echo_env.trainers.filters import scored, too_easy
from echo_env.trainers.job import checked
from echo_env.trainers.promptdata import (
    Draw,
    RlPrompt,
    Tell,
    append_lines,
    draw,
    load_prompts,
    read_lines,
    write_lines,
)
from echo_env.types import Record, Text

CHUNK = 8
"""Prompts that are answered and scored together, and lost when a run is killed."""


class Samples(Record):
    """What the start policy made of one prompt."""

    id: str
    replies: tuple[Text | None, ...]
    """None where it gave none."""
    scores: tuple[float | None, ...]
    """Raw verdict of each reply against the reference, 0..1; None where it is missing."""
    failures: tuple[Text, ...] = ()
    """Why replies or verdicts are missing."""


class Dropped(Record):
    """A prompt that the filter left out."""

    id: str
    why: str
    scores: tuple[float | None, ...]


class BestOf(Record):
    """The filter."""

    policy: str = ""
    """Whom RL starts from, by name or folder; empty filters nothing."""
    policy_options: dict[str, Any] = Field(default_factory=dict)
    samples: Annotated[int, Field(ge=2)] = 8
    """N, replies to each prompt."""
    verdict: str = "empathy"
    """The recipe's verdict that is read: "unifireward" for the recipe `peer`."""
    mean: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Mean score from which on a prompt is easy."""
    spread: Annotated[float, Field(ge=0)] = 0.2
    """Standard deviation up to which it is reliably so."""


class PromptsJob(Draw):
    """What to write, and where."""

    out: Path
    """A folder."""
    recipe: str = "echo_n1"
    recipe_options: dict[str, Any] = Field(default_factory=dict)
    best_of: BestOf = BestOf()
    resume: bool = False
    overwrite: bool = False
    dry_run: bool = False
    """Print the resolved job and stop."""


async def sample(job: PromptsJob, prompts: Sequence[RlPrompt], policy: Policy) -> list[Samples]:
    """Let the start policy answer each prompt N times, and score every reply against the reference.

    Raises:
        ConfigError: The recipe gives no such verdict.
    """
    n, world = job.best_of.samples, WorldConfig(recipe=job.recipe, recipe_options=job.recipe_options)
    draws = [(p, conversation_seed(job.seed, p.id, k)) for p in prompts for k in range(n)]
    replies = await _replies(policy, [p.observation for p, _ in draws], [seed for _, seed in draws])
    pairs = [(p.scorable(), r) for (p, _), r in zip(draws, replies, strict=True) if isinstance(r, str)]
    judged = iter(await score_replies(world, pairs))
    found = [_verdict(job, next(judged)) if isinstance(r, str) else (None, f"policy: {r.message}") for r in replies]
    samples = []
    for k, prompt in enumerate(prompts):
        texts, verdicts = replies[k * n : k * n + n], found[k * n : k * n + n]
        samples.append(
            Samples(
                id=prompt.id,
                replies=tuple(t if isinstance(t, str) else None for t in texts),
                scores=tuple(score for score, _ in verdicts),
                failures=tuple(failure for _, failure in verdicts if failure),
            )
        )
    return samples


def _verdict(job: PromptsJob, reply: Scored) -> tuple[float | None, str]:
    """Return the verdict that the filter reads, and why it is missing."""
    whole = next((v for v in reply.verdicts if v.kind == "recipe"), None)
    verdict = whole or next((v for v in reply.verdicts if v.kind == job.best_of.verdict), None)
    if verdict is None:
        kinds = ", ".join(v.kind for v in reply.verdicts) or "none at all"
        raise ConfigError(
            f"recipe '{job.recipe}' gives no verdict '{job.best_of.verdict}'", f"best_of.verdict=  one of: {kinds}"
        )
    return verdict.value, verdict.failure


async def _replies(policy: Policy, seen: Sequence[Observation], seeds: Sequence[int]) -> list[str | EchoError]:
    """Return a reply to each observation; where there is none, why."""
    if isinstance(policy, BatchPolicy):
        try:
            return list(policy.respond_batch(seen, seeds))
        except EchoError:  # each for itself, so that only the one at fault fails
            pass

    async def reply(observation: Observation, seed: int) -> str | EchoError:
        try:
            return await seeded(policy, seed).respond(observation)
        except EchoError as e:
            return e

    if waits(policy):
        return list(await asyncio.gather(*(reply(o, s) for o, s in zip(seen, seeds, strict=True))))
    return [await reply(o, s) for o, s in zip(seen, seeds, strict=True)]


def too_easy_for(best: BestOf, prompts: Sequence[RlPrompt], samples: Sequence[Samples]) -> list[Dropped]:
    """Return the prompts that the filter drops, in the order of the prompts."""
    by_id = {s.id: s.scores for s in samples}
    dropped = []
    for prompt in prompts:
        scores = by_id.get(prompt.id, ())
        if too_easy(scores, best.mean, best.spread):
            known = scored(scores)
            why = (
                f"too easy: mean {fmean(known):.2f} of {len(known)} >= {best.mean:g},"
                f" spread {pstdev(known):.2f} <= {best.spread:g}"
            )
            dropped.append(Dropped(id=prompt.id, why=why, scores=scores))
    return dropped


def write(job: PromptsJob, tell: Tell = lambda what, done, total: None) -> tuple[list[RlPrompt], list[Dropped]]:
    """Write the folder, going on with what is there under `resume`; return what was kept and what was dropped.

    Raises:
        RecordError: The folder holds prompts already, or others; it cannot be written, or another process writes to it.
        ConfigError: As for `draw` and `sample`.
    """
    policy = build_policy(job.best_of.policy, job.seed, job.best_of.policy_options) if job.best_of.policy else None
    thresholds = {"mean", "spread"}
    said = job.model_dump(mode="json", exclude={"out", "resume", "overwrite", "dry_run"})
    said["best_of"] = {k: v for k, v in said["best_of"].items() if k not in thresholds}
    folder = RunFolder(job.out)
    if folder.exists and not (job.resume or job.overwrite):
        raise RecordError(f"{job.out} holds prompts already", "resume=true goes on with it, overwrite=true loses it")
    folder.create(new_header(said, {}), resume=job.resume, overwrite=job.overwrite)
    with folder.locked():
        candidates = job.out / "candidates.jsonl"
        if not candidates.exists():
            write_lines(candidates, asyncio.run(draw(job, tell)))
        prompts = load_prompts(candidates)
        samples = _sampled(job, prompts, policy, tell) if policy else []
        dropped = too_easy_for(job.best_of, prompts, samples)
        out = {d.id for d in dropped}
        kept = [p for p in prompts if p.id not in out]
        write_lines(job.out / "dropped.jsonl", dropped)
        write_lines(job.out / "prompts.jsonl", kept)
    return kept, dropped


def _sampled(job: PromptsJob, prompts: Sequence[RlPrompt], policy: Policy, tell: Tell) -> list[Samples]:
    """Return the samples to all empathetic prompts, those on the disk first; new ones are written as they come."""
    path, asked = job.out / "samples.jsonl", [p for p in prompts if not p.chitchat]
    found = read_lines(path, Samples, torn=True) if path.exists() else []
    write_lines(path, found)  # without what a kill tore off
    there = {s.id for s in found}
    left = [p for p in asked if p.id not in there]
    for k in range(0, len(left), CHUNK):
        new = asyncio.run(sample(job, left[k : k + CHUNK], policy))
        append_lines(path, new)
        found += new
        tell("prompts sampled", len(found), len(asked))
    return found


def run(settings: dict[str, Any]) -> int:
    """Do what some settings say, and return the exit code."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    job = checked(PromptsJob, settings)
    if job.dry_run:
        return print_job(job)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        kept, dropped = write(
            job, lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
        )
    chatty = sum(p.chitchat for p in kept)
    sys.stdout.write(
        f"{len(kept)} prompts ({len(kept) - chatty} empathetic, {chatty} chit-chat; {len(dropped)} dropped)"
        f"  {job.out / 'prompts.jsonl'}\n"
    )
    return 0


if __name__ == "__main__":
    main("prompts", run)
