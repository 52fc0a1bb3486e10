"""`echo-env validate actor`: how lifelike a simulated person is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo_env.cli.options import Format

if TYPE_CHECKING:
    from echo_env.agents.validation.actorreport import ActorReport


def actor(
    actor: Annotated[str, typer.Option(help="Registered name or module:attribute.")] = "embedded",
    policy: Annotated[
        list[str] | None, typer.Option(help="Companions to talk with; the last one listens. Repeatable.")
    ] = None,
    recordings: Annotated[
        list[Path] | None, typer.Option(help="Recorded people to measure beside it: runs, or SAGE files. Repeatable.")
    ] = None,
    humans: Annotated[
        list[Path] | None, typer.Option(help="Human seekers (ESConv files); a second is the yardstick. Repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many people of the benchmark.")] = None,
    others: Annotated[int, typer.Option(min=0, help="People of train and of dev beside them, for the repeats.")] = 10,
    turns: Annotated[int, typer.Option(min=1, help="Turns of a conversation.")] = 45,
    part: Annotated[str, typer.Option(help="Labelled replies: working, test, fresh, last, all or none.")] = "working",
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    show: Annotated[int, typer.Option(min=0, help="Examples of what went wrong, for each measure.")] = 3,
    format_: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
) -> None:
    """Measure a simulated person: repeats, answers, reactions, the order of their story, the distance from people."""
    from echo_env.agents.validation.actorreport import CheckConfig, check_actor

    report = check_actor(
        CheckConfig(
            actor=actor,
            policies=tuple(policy or ()),
            recordings=tuple(recordings or ()),
            humans=tuple(humans or ()),
            limit=limit,
            others=others if limit is None else min(others, limit),
            turns=turns,
            part=part,
            seed=seed,
        ),
        lambda line: typer.echo(line, err=True),
    )
    typer.echo(report.model_dump_json(indent=1) if format_ is Format.json else "\n".join(_lines(report, show)))


def _lines(report: ActorReport, show: int) -> list[str]:
    return [*_talks(report, show), *_asked(report, show), *_reacted(report, show), *_corpora(report), *_samples(report)]


def _talks(report: ActorReport, show: int) -> list[str]:
    found = [
        f"actor {report.actor}, {report.people} people, {report.turns} turns",
        "",
        f"{'companion':10} {'messages':>8} {'repeated':>8} {'near':>6} {'contra':>6} {'told':>5} {'deep':>5}"
        f" {'turning':>7} {'at':>5} {'order':>6}",
    ]
    for r in report.policies:
        found.append(
            f"{r.policy:10.10} {r.stats.messages:8} {r.repeated:8} {r.stats.repeats_near:6.3f}"
            + f" {len(r.contradictions):6} {r.told:5.2f} {r.deep:5.2f} {r.turning_points:7.2f}"
            + f" {_maybe(r.turn_at):>5} {_maybe(r.order):>6}"
        )
        found += [f"  {c}" for c in r.contradictions[:show]]
    return found


def _asked(report: ActorReport, show: int) -> list[str]:
    found = [
        "",
        f"{'question':9} {'moment':6} {'asked':>5} {'answered':>8} {'told before':>11} {'dodged':>6} {'in all':>6}",
    ]
    for r in report.questions:
        share = (r.answered + r.pointed + r.dodged) / r.asked
        found.append(f"{r.kind:9} {r.moment:6} {r.asked:5} {r.answered:8} {r.pointed:11} {r.dodged:6} {share:6.3f}")
        found += [f"  {m}" for m in r.missed[:show]]
    if report.answered is not None:
        found.append(f"answered or openly dodged: {report.answered:.3f}")
    return found


def _reacted(report: ActorReport, show: int) -> list[str]:
    found = [""]
    for r in report.reactions:
        found.append(
            f"reaction sign, {r.part} part: {r.right} of {r.replies} right"
            f" (good {r.good_right}/{r.good}, bad {r.bad_right}/{r.bad}, no move {r.flat}, left out {r.untold})"
        )
        found += [f"  {m}" for m in r.missed[:show]]
    return found


def _corpora(report: ActorReport) -> list[str]:
    found = [
        "",
        f"{'speakers':28} {'talks':>5} {'messages':>8} {'words':>6} {'sd':>5} {'sentences':>9} {'?':>5} {'!':>5}"
        f" {'dist-1':>6} {'dist-2':>6} {'again':>6} {'near':>6}",
    ]
    for c in report.corpora:
        s = c.stats
        found.append(
            f"{c.name:28.28} {s.conversations:5} {s.messages:8} {s.words_mean:6.1f} {s.words_sd:5.1f}"
            f" {s.sentences_mean:9.2f} {s.questions:5.2f} {s.exclamations:5.2f} {_maybe(s.distinct_1):>6}"
            f" {_maybe(s.distinct_2):>6} {s.repeats_exact:6.3f} {s.repeats_near:6.3f}"
        )
    for c in report.corpora:
        if c.tone is not None:
            means = ", ".join(f"{k}: {v:+.2f}" for k, v in c.tone.mean_tone.items())
            found += [
                f"tone after a reply that {c.name} rated {means}",
                f"  within a conversation r {c.tone.within:.2f} ({c.tone.low:.2f} to {c.tone.high:.2f}),"
                f" {c.tone.ratings} ratings",
            ]
    return found


def _samples(report: ActorReport) -> list[str]:
    if not report.samples:
        return []
    found = [
        "",
        f"{'told apart (AUC; 0.5: not at all)':50} {'view':10} {'message':>7} {'95 %':>12} {'talk':>6} {'talks':>5}",
    ]
    for s in report.samples:
        t = s.test
        interval = f"{t.low:.2f}-{t.high:.2f}"
        found.append(f"{s.pair:50.50} {t.view:10} {t.auc:7.3f} {interval:>12} {t.auc_talks:6.3f} {t.talks[0]:5}")
    return found


def _maybe(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
