"""Writes what `headline.py` found: results.json, results.md, sample.md, curve.svg."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headline_curve import draw
from headline_figures import (
    Bar,
    Figure,
    Judged,
    Paired,
    Policy,
    Results,
    bars,
    curve,
    episodes_in,
    listening,
    logged,
    measured,
    paired,
    ratio,
    scores_of,
    shares,
)

from echo_env.metrics import EpisodeScore
from echo_env.record import new_header
from echo_env.types import Episode

HEADS = (
    "policy", "episodes", "success", "EPM-Q", "by `second`: success", "EPM-Q", "swapped: success", "EPM-Q",
    "words", "tokens", "x cold", "flags",
)  # fmt: skip


def report(out: Path, models: Mapping[str, Path], seeds: Sequence[int]) -> dict[str, Any]:
    """Measure whatever there is, write the files, and return the results.

    Args:
        out: Folder of the whole thing.
        models: Folders of the policies by name.
        seeds: Of the DAPO runs that were asked for.
    """
    out.mkdir(parents=True, exist_ok=True)
    played = {name: episodes_in(out / "eval" / name) for name in models}
    second = {name: episodes_in(out / "second" / name) for name in models}
    swapped = {name: episodes_in(out / "swapped" / name) for name in models}
    policies: dict[str, Policy] = {}
    for name, folder in models.items():
        own = measured(played[name], second[name], swapped[name], folder / "tokenizer.json")
        if own is not None:
            policies[name] = own
    runs = [f"dapo-{seed}" for seed in seeds]
    there = [run for run in runs if run in policies]
    updates = {run: logged(out / run) for run in runs}

    def pool(episodes: Mapping[str, list[Episode]]) -> list[Episode]:
        return [e for run in there for e in episodes[run]]

    def pair(a: list[Episode], of: str, by: Mapping[str, list[Episode]]) -> Paired | None:
        return paired(scores_of(a), scores_of(by.get(of, [])))

    pooled = measured(pool(played), pool(second), pool(swapped), models[there[0]] / "tokenizer.json") if there else None
    talks = out / "cold.jsonl"
    mix = shares(talks) if talks.is_file() else {}
    found = Results(
        skilled=listening(mix) if mix else None,
        minutes={run: lines[-1]["elapsed_s"] / 60 for run, lines in updates.items() if lines},
        cold=policies.get("cold"), seeds={run: policies[run] for run in there}, pooled=pooled,
        best=policies.get("best"),
        gain=pair(pool(played), "cold", played),
        gain_second=pair(pool(second), "cold", second),
        over_best=pair(pool(played), "best", played),
        over_best_second=pair(pool(second), "best", second),
    )  # fmt: skip
    held = bars(found, len(seeds))
    done = _commands(out)
    results = {
        "made_with": new_header({"seeds": list(seeds)}, {}).model_dump(mode="json"),
        "bars": [bar.model_dump() for bar in held],
        "missing": _missing(runs, policies, updates, done),
        "shares": mix,
        **found.model_dump(mode="json"),
        "policies": {name: p.model_dump(mode="json") for name, p in policies.items()},
        "updates": {run: len(lines) for run, lines in updates.items()},
        "budgets": _budgets(out, updates, done),
        "commands": done,
    }
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if any(updates.values()):
        curves = {run.replace("dapo-", "seed "): curve(lines) for run, lines in updates.items()}
        (out / "curve.svg").write_text(draw(curves), encoding="utf-8")
    text = sample(played.get("cold", []), played[there[0]], there[0]) if there else None
    if text:
        (out / "sample.md").write_text(text, encoding="utf-8")
    (out / "results.md").write_text(markdown(results, held, policies, pooled, found), encoding="utf-8")
    return results


def _commands(out: Path) -> dict[str, dict[str, Any]]:
    """Return every command that was run, by step, in the order in which they ended."""
    found = {f.stem: json.loads(f.read_text(encoding="utf-8")) for f in (out / "done").glob("*.json")}
    return {
        name: {"command": shlex.join(step["argv"]), "exit": step["code"], "seconds": step["seconds"]}
        for name, step in sorted(found.items(), key=lambda kv: kv[1]["ended"])
    }


def _missing(
    runs: Sequence[str], policies: Mapping[str, Policy], updates: Mapping[str, list[Any]], done: Mapping[str, Any]
) -> list[str]:
    """Return what is not there, or failed, in words."""
    told = [f"{name} failed (exit {step['exit']})" for name, step in done.items() if step["exit"]]
    told += [f"{run} was not trained" for run in runs if not updates[run]]
    told += [f"{name} was not measured" for name in ("cold", *runs, "best") if name not in policies]
    for name, p in policies.items():
        if p.unfinished or p.first.unscored:
            told.append(f"{name}: {p.unfinished} episodes unfinished, {p.first.unscored} unscored, in no mean")
        if "@" not in name:
            told += [f"{name}: no {what}" for what in ("second", "swapped") if getattr(p, what) is None]
    return told


def _budgets(out: Path, updates: Mapping[str, list[dict[str, Any]]], done: Mapping[str, Any]) -> dict[str, Any]:
    """Return environment turns and seconds of each DAPO run and of best-of-N."""
    spent: dict[str, Any] = {
        run: {
            "turns": round(sum(u["conversations"] * (1 - u["failed"]) * (u["turns"] or 0) for u in lines)),
            "seconds": round(lines[-1]["elapsed_s"]),
        }
        for run, lines in updates.items()
        if lines
    }
    talks = episodes_in(out / "best-of-n")
    if talks:
        seconds = [done[name]["seconds"] if name in done else None for name in ("best-of-n", "best")]
        spent["best"] = {
            "turns": sum(len(e.turns) for e in talks),
            "seconds": None if None in seconds else round(sum(seconds)),
            "conversations": len(talks),
            "people": len({e.header.scenario for e in talks}),
        }
    return spent


# ---- for people ------------------------------------------------------------------------------------------------------


def markdown(
    results: Mapping[str, Any], held: Sequence[Bar], policies: Mapping[str, Policy], pooled: Policy | None,
    found: Results,
) -> str:  # fmt: skip
    """Return the report as markdown."""
    made = results["made_with"]
    verdicts = {True: "met", False: "**missed**", None: "open"}
    rows = [(name, p) for name, p in policies.items()]
    if pooled is not None and len(found.seeds) > 1:
        rows.append((f"dapo, {len(found.seeds)} seeds", pooled))
    lines = [
        "# Headline of issue 5",
        "",
        f"echo-env {made['echo_env']}, commit {made['git_commit'][:10]}{' (changed)' if made['git_dirty'] else ''},"
        f" Python {made['python']}, " + ", ".join(f"{n} {v}" for n, v in made["packages"].items()) + ".",
        "",
        *_table(("asked", "found", ""), [(b.asked, b.found, verdicts[b.met]) for b in held]),
        "",
        "On the benchmark split, strict scorer; means with 95 % bootstrap intervals over the people.",
        "",
        *_table(HEADS, [_row(name, p, found.cold) for name, p in rows]),
        "",
        "Paired by person, 95 % bootstrap intervals, sign-flip p:",
        "",
    ]
    pairs = {
        "DAPO minus best-of-N": found.over_best, "DAPO minus best-of-N, by `second`": found.over_best_second,
        "DAPO minus cold start": found.gain, "DAPO minus cold start, by `second`": found.gain_second,
    }  # fmt: skip
    lines += _table(
        ("", "success", "p", "EPM-Q", "p"),
        [
            (name, _cell(p.success, 100), f"{p.success_p:.4f}", _cell(p.epm_q), f"{p.epm_q_p:.4f}")
            if p
            else (name, *("-",) * 4)
            for name, p in pairs.items()
        ],
    )
    budgets = [(n, f"{b['turns']:,}", _minutes(b["seconds"])) for n, b in results["budgets"].items()]
    lines += ["", "Budgets:", "", *_table(("", "environment turns", "minutes"), budgets)]
    if results["shares"]:
        mix = ", ".join(f"{name} {share:.1%}" for name, share in results["shares"].items())
        lines += ["", f"Replies of the cold start's conversations: {mix}."]
    if results["missing"]:
        lines += ["", "Missing or failed:", "", *(f"- {what}" for what in results["missing"])]
    lines += ["", "Commands:", "", "```sh", *(c["command"] for c in results["commands"].values()), "```"]
    return "\n".join(lines) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]


def _row(name: str, p: Policy, cold: Policy | None) -> tuple[str, ...]:
    ratios = [ratio(p.words, cold.words), ratio(p.tokens, cold.tokens)] if cold else []
    known = [r for r in ratios if r is not None]
    return (
        name, str(p.episodes), *_judged(p.first), *_judged(p.second), *_judged(p.swapped),
        *("-" if v is None else f"{v:.1f}" for v in (p.words, p.tokens)),
        f"{max(known):.2f}" if known else "-", ", ".join(p.flags) or "none",
    )  # fmt: skip


def _judged(j: Judged | None) -> tuple[str, str]:
    return (_cell(j.success, 100, "%"), _cell(j.epm_q)) if j else ("-", "-")


def _cell(figure: Figure | None, times: float = 1, unit: str = "") -> str:
    if figure is None:
        return "-"
    around = ""
    if figure.low is not None and figure.high is not None:
        around = f" [{times * figure.low:.1f}, {times * figure.high:.1f}]"
    return f"{times * figure.value:.1f}{unit}{around}"


def _minutes(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 60:.1f}"


def sample(before: Sequence[Episode], after: Sequence[Episode], name: str) -> str | None:
    """Return one person's conversation with the cold start and with the trained policy; None without a pair.

    It is the one with the median gain in EPM-Q, so that nobody has picked it.
    """
    old, new = _by_id(before), _by_id(after)
    gains = {
        key: b.composite.epm_q - a.composite.epm_q
        for key in sorted(old.keys() & new.keys())
        for a, b in [(old[key][1], new[key][1])]
        if a.composite and b.composite
    }
    if not gains:
        return None
    middle = statistics.median_low(gains.values())
    key = next(k for k, gain in gains.items() if gain == middle)
    return "\n".join(
        [
            f"# {key}, before and after: the median gain in EPM-Q",
            *_told("Cold start", *old[key]),
            *_told(name, *new[key]),
        ]
    )


def _by_id(episodes: Sequence[Episode]) -> dict[str, tuple[Episode, EpisodeScore]]:
    whole = [e for e in episodes if e.outcome is not None]
    return {e.header.episode_id: (e, s) for e, s in zip(whole, scores_of(whole), strict=True)}


def _told(who: str, episode: Episode, score: EpisodeScore) -> list[str]:
    q = "not scored" if score.composite is None else f"EPM-Q {score.composite.epm_q:.1f}"
    lines = ["", f"## {who}: {score.end or 'no end'}, {q}, {len(episode.turns)} turns", ""]
    for turn in episode.turns:
        lines += [f"> {turn.user}", "", f"**{turn.reply}**", ""]
    return [*lines, f"> {episode.outcome.closing}" if episode.outcome else "", ""]
