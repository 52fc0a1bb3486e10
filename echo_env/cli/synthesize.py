"""`echo-env synthesize`: conversations to train on, by three agents, or by reference policies without a model."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo_env.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echo_env.agents.synthesis.conversations import ConversationFile, Job, Progress
    from echo_env.agents.synthesis.estimate import Estimate
    from echo_env.agents.synthesis.facets import Plan
    from echo_env.types import Usage

EMBEDDED = "embedded"
SHOWN = 3
"""System prompts that `--dry-run` prints, and failures that are told."""


def synthesize(
    out: Annotated[Path, typer.Option(help="JSON lines to write: one conversation each, in chat format.")],
    models: Annotated[
        str, typer.Option(help="A models file, MODEL or MODEL@URL; 'embedded' plays reference policies without one.")
    ] = EMBEDDED,
    count: Annotated[int, typer.Option(min=1, help="Conversations.")] = 100,
    language: Annotated[str, typer.Option(help="en or zh.")] = "en",
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Conversations under way at once.")] = 8,
    mix: Annotated[
        str | None, typer.Option(help="Embedded: shares of policies, skilled=0.7,template=0.3; exact counts.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Embedded: a policy of equal share. Repeatable.")] = None,
    split: Annotated[str, typer.Option(help="Embedded: only train; what is measured on is refused.")] = "train",
    max_turns: Annotated[int | None, typer.Option(min=1, help="Embedded: cut conversations off after so many.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the file that is there.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Start without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print estimate and three examples, and stop.")] = False,
) -> None:
    """Write conversations between a companion and a person, to train on."""
    if models == EMBEDDED:
        from echo_env.agents.synthesis import recorded

        shares = _shares(mix, policy or [])
        counts = recorded.counts_of(shares, count)
        jobs = recorded.jobs(shares, count, seed, split=split, language=language, max_turns=max_turns)
        told = ", ".join(f"{name} {number}" for name, number in counts.items())
        typer.echo(f"{count} recorded conversations of the split {split}: {told}", err=not dry_run)
        if not dry_run:
            _write(out, jobs, resume, concurrency, whole=True)
        return
    if mix or policy or max_turns or split != "train":
        raise ConfigError("--mix, --policy, --split and --max-turns go with --models embedded", "leave them out")
    _with_models(out, models, count, language, seed, concurrency, resume, yes, dry_run)


def _with_models(
    out: Path, models: str, count: int, language: str, seed: int, concurrency: int, resume: bool, yes: bool, dry: bool
) -> None:
    from echo_env.agents.llm.client import client_of
    from echo_env.agents.synthesis import jobs
    from echo_env.agents.synthesis.conversations import ConversationFile
    from echo_env.agents.synthesis.estimate import estimate
    from echo_env.agents.synthesis.facets import draw

    client = client_of(models)
    plans = [draw(language, seed, number) for number in range(count)]
    if dry:
        typer.echo(_estimate_text(estimate(plans, client.models)))
        _show(plans[:SHOWN])
        return
    with ConversationFile(out, resume=resume) as file:
        left = [plan for plan in plans if plan.id not in file.ids]
        if left:
            expected = estimate(left, client.models)
            typer.echo(_estimate_text(expected), err=True)
            _consent(expected, yes)
        _play(jobs(client, left), file, count, concurrency)


def _shares(mix: str | None, policies: Sequence[str]) -> dict[str, Fraction]:
    """Return the share of each policy, exactly as written."""
    if (mix is None) == (not policies):
        raise ConfigError(
            "give a mix of policies, or policies of equal share", "--mix skilled=0.7,template=0.3  or  --policy skilled"
        )
    if mix is None:
        return dict.fromkeys(policies, Fraction(1))
    shares: dict[str, Fraction] = {}
    for part in mix.split(","):
        name, sign, share = (text.strip() for text in part.rpartition("="))
        try:
            shares[name] = Fraction(share)
        except (ValueError, ZeroDivisionError):
            sign = ""
        if not sign or not name:
            raise ConfigError(f"--mix takes name=share, got '{part}'", "--mix skilled=0.7,template=0.3")
    return shares


def _estimate_text(e: Estimate) -> str:
    cost = f"unknown price ({', '.join(e.unpriced)})" if e.cost is None else f"about ${e.cost:,.2f}"
    return (
        f"{e.conversations:,} conversations: about {e.calls:,} calls, {e.prompt_tokens:,} tokens in,"
        f" {e.completion_tokens:,} tokens out (thinking not counted), {cost}; answers that are cached cost nothing"
    )


def _show(plans: list[Plan]) -> None:
    for plan in plans:
        messages = plan.user_messages(plan.topics[0], "-", "-")
        typer.echo(f"\n---- {plan.id}: the companion's system instruction\n{plan.companion_system().content}")
        typer.echo(f"---- {plan.id}: the user agent's\n{messages[0].content}")


def _consent(expected: Estimate, yes: bool) -> None:
    """Start only where somebody said so, or where it costs nothing and nobody can be asked."""
    if yes:
        return
    if sys.stdin is not None and sys.stdin.isatty():
        if not typer.confirm("Start?", err=True):
            raise typer.Exit(1)
    elif expected.cost != 0:
        cost = "of unknown price" if expected.cost is None else f"about ${expected.cost:,.2f}"
        raise ConfigError(f"this may cost money ({cost}), and nobody is there to be asked", "give --yes")


def _write(out: Path, jobs: list[Job], resume: bool, concurrency: int, *, whole: bool) -> None:
    """Play what is not in the file yet; `whole`: the file holds nothing but these jobs."""
    from echo_env.agents.synthesis.conversations import ConversationFile

    with ConversationFile(out, resume=resume) as file:
        others = sorted(file.ids - {job.id for job in jobs})
        if whole and others:
            raise ConfigError(f"{out} holds conversations of another mix, count or seed: {others[0]}", "another --out")
        _play([job for job in jobs if job.id not in file.ids], file, len(jobs), concurrency)


def _play(jobs: list[Job], file: ConversationFile, count: int, concurrency: int) -> None:
    failures = _with_bar(jobs, file, count, concurrency)
    for line in failures[:SHOWN]:
        typer.echo(f"failed: {line}", err=True)
    typer.echo(f"{count - len(failures)} of {count} conversations  {file.path}")
    if failures:
        typer.echo(f"{len(failures)} failed and were not written; --resume tries them again", err=True)
        raise typer.Exit(3)


def _with_bar(jobs: list[Job], file: ConversationFile, count: int, concurrency: int) -> tuple[str, ...]:
    import asyncio

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from echo_env.agents.synthesis.conversations import write_all

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        there = count - len(jobs)
        task = bar.add_task("", total=count, completed=there, note="")

        def tell(p: Progress) -> None:
            failed = f"{p.failed} failed, " if p.failed else ""
            bar.update(task, completed=there + p.done, note=failed + _spent(p.usage))

        try:
            return asyncio.run(write_all(jobs, file, concurrency=concurrency, tell=tell))
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("interrupted; what was finished is on disk, --resume goes on from there", err=True)
            raise typer.Exit(130) from None


def _spent(usage: Usage) -> str:
    cost = "" if not usage.cost else f", ${usage.cost:,.2f}"
    return f"{usage.prompt_tokens + usage.completion_tokens:,} tokens{cost}" if usage.calls else ""
