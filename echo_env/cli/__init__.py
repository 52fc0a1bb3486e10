"""The command line: `echo-env list | play | run | score | report | check | import | redteam | synthesize`.

Results go to stdout, progress to stderr. A mistake of the user's is a message and exit code 1, never a traceback;
Ctrl-C leaves readable records and exits with 130.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from echo_env.cli import (
    importing,
    validate,
    validate_actor,
    validate_noise,
    validate_persona,
    validate_ranks,
    validate_safety,
)
from echo_env.cli.nee import nee
from echo_env.cli.options import key_values
from echo_env.cli.play import play
from echo_env.cli.rate import rate
from echo_env.cli.redteam import redteam
from echo_env.cli.serve import serve
from echo_env.cli.synthesize import synthesize
from echo_env.errors import ConfigError, EchoError, RecordError
from echo_env.version import VERSION

if TYPE_CHECKING:
    from echo_env.agents.rollout import Progress, RunConfig, RunResult

app = typer.Typer(
    name="echo-env",
    help="A simulated person to talk with, a judge that shows its evidence, and scores that can be repeated.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(validate.app)
app.command("rate")(rate)
app.command("nee")(nee)
app.add_typer(importing.app)
validate.app.command("ranks")(validate_ranks.ranks)
validate.app.command("noise")(validate_noise.noise)
validate.app.command("persona")(validate_persona.persona)
validate.app.command("safety")(validate_safety.safety)
validate.app.command("actor")(validate_actor.actor)


class Format(StrEnum):
    """Output formats of tables."""

    text = "text"
    json = "json"
    csv = "csv"


def main() -> None:
    """Run the command line."""
    warnings.showwarning = _warn
    try:
        app()
    except EchoError as e:
        sys.stderr.write(f"error: {e}\n")
        sys.exit(1)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Tell a user what is odd, and not where in the code it was noticed."""
    sys.stderr.write(f"warning: {message}\n")


def _echo_version(value: bool) -> None:
    if value:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_echo_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="scenarios, or a kind: policy, judge, scorer, recipe, backend ...")] = "",
    split: Annotated[str, typer.Option(help="Split whose scenarios to list.")] = "benchmark",
) -> None:
    """List what there is by name."""
    from echo_env import registry
    from echo_env.profiles import get_scenario, scenario_ids

    if what.startswith("scenario"):
        for name in scenario_ids(split):
            s = get_scenario(name)
            if s.chitchat:
                typer.echo(f"{s.id:16} {s.domain:9} {s.persona.name}, {s.persona.job}")
                continue
            c, a, p = (int(x) for x in s.p0)
            typer.echo(
                f"{s.id:16} {s.domain:9} {s.dominant}-first  P0 ({c}, {a}, {p})  {s.persona.name}, {s.persona.job}"
            )
        return
    kinds: dict[str, list[str]] = {k: registry.names(k) for k in registry.KINDS}
    kinds["scorer"] = ["official", "paper", "strict"]
    kinds["split"] = ["benchmark", "benchmark-zh", "chitchat", "dev", "train"]
    if what and what not in kinds:
        from echo_env.errors import unknown_name

        raise unknown_name("kind", what, [*kinds, "scenarios"])
    for kind in [what] if what else sorted(kinds):
        typer.echo(f"{kind:9} {'  '.join(kinds[kind])}")


@app.command()
def run(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the runs; each policy gets its own folder in it.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Registered name, module:attribute, a local model folder, or llm:... Repeatable."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What its folder and its row in a report are called; for a single policy.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; options given here win.")] = None,
    split: Annotated[str, typer.Option(help="benchmark, benchmark-zh, train, dev or chitchat.")] = "benchmark",
    scenario: Annotated[
        list[str] | None, typer.Option(help="Ids or YAML files, in place of a split. Repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many scenarios.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Conversations a scenario.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Cut conversations off after so many turns.")] = None,
    scorer: Annotated[str, typer.Option(help="strict, official or paper.")] = "strict",
    recipe: Annotated[str, typer.Option(help="Reward recipe.")] = "epm",
    recipe_option: Annotated[list[str] | None, typer.Option(help="key=value for the recipe. Repeatable.")] = None,
    backend: Annotated[str, typer.Option(help="The world: embedded, or llm: and a models file or model.")] = "embedded",
    judge: Annotated[str | None, typer.Option(help="Another judge than the world's own.")] = None,
    actor: Annotated[str | None, typer.Option(help="Another actor than the world's own.")] = None,
    director: Annotated[str | None, typer.Option(help="Another director than the world's own.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="key=value for the policy. Repeatable.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Conversations that are live at once.")] = 64,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the run that is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
) -> None:
    """Let policies talk with the people of a split, and record it."""
    from echo_env.build import policy_maker

    if resume and overwrite:
        raise ConfigError("--resume and --overwrite exclude each other")
    given = {k: v for k, v in context.params.items() if str(context.get_parameter_source(k)).endswith("COMMANDLINE")}
    base = _settings(config) if config is not None else {}
    names = policy or ([base["policy"]] if "policy" in base else [])
    if not names:
        raise typer.BadParameter("give --policy NAME, or a policy in the --config file; see  echo-env list policy")
    if name is not None and len(names) > 1:
        raise ConfigError("--name names one run, and several policies are given", "one command for each policy")
    configs = [_run_config(base, given, each) for each in names]
    for each in names:
        policy_maker(each)  # nothing is played where a later policy is unknown
    if dry_run:
        typer.echo("\n".join(c.model_dump_json(indent=1) for c in configs))
        return
    failed = 0
    for settings in configs:
        result = _run_with_bar(settings, out, name or "", resume, overwrite)
        failed += len(result.failures)
        for line in result.failures[:5]:
            typer.echo(f"failed: {line}", err=True)
        p = result.progress
        typer.echo(
            f"{name or settings.policy}: {p.done - p.failed} of {p.total} played, {p.successes} succeeded"
            f"  {result.folder.path}"
        )
        if result.gaps:
            count, most = sum(result.gaps.values()), max(result.gaps, key=lambda reason: result.gaps[reason])
            typer.echo(
                f"  {count} of {p.turns} turns lack a judgement, verdict or direction; most often  {most}",
                err=True,
            )
        for role, usage in result.usage.items():
            typer.echo(f"  asked as {role}: {usage.told}")
    if failed:
        raise typer.Exit(3)


def _settings(file: Path) -> dict[str, Any]:
    from echo_env.yamlfiles import read_yaml

    found = read_yaml(file)
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: settings are a mapping, this file holds {type(found).__name__}")
    return found


def _run_config(base: dict[str, Any], given: dict[str, Any], policy: str) -> RunConfig:
    """Make a run's configuration from a file's settings and the options given on the command line, which win."""
    from pydantic import ValidationError

    from echo_env.agents.rollout import RunConfig

    top: dict[str, Any] = {k: given[k] for k in ("split", "limit", "episodes", "seed", "batch") if k in given}
    of_world = ("backend", "judge", "actor", "director", "scorer", "recipe", "max_turns")
    world: dict[str, Any] = {k: given[k] for k in of_world if k in given}
    if given.get("recipe_option"):
        before = base.get("world", {}).get("recipe_options", {})
        world["recipe_options"] = {**before, **key_values(given["recipe_option"])}
    if "scenario" in given:
        top["scenarios"] = tuple(given["scenario"])
    options = {**base.get("policy_options", {}), **key_values(given.get("option", []))}
    merged = {**base, **top, "policy": policy, "policy_options": options, "world": {**base.get("world", {}), **world}}
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"setting '{where}': {first['msg']}", "see  echo-env run --dry-run  for all of them"
        ) from None


def _run_with_bar(config: RunConfig, out: Path, name: str, resume: bool, overwrite: bool) -> RunResult:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from echo_env.agents.rollout import run as play

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    by_hand = config.policy == "human"  # a bar would be drawn over what is typed
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=by_hand) as bar:
        task = bar.add_task(name or config.policy, total=None, note="")

        def tell(p: Progress) -> None:
            bar.update(task, total=p.total, completed=p.done, note=f"{p.turns} turns, {p.successes} succeeded")

        try:
            return play(config, out, resume=resume, overwrite=overwrite, tell=tell, name=name)
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("interrupted; what was played is on disk, --resume goes on from there", err=True)
            gc.freeze()  # else Python tidies up for seconds where large libraries were loaded
            raise typer.Exit(130) from None


@app.command()
def score(
    folder: Annotated[Path | None, typer.Argument(help="Folder of runs.")] = None,
    levels: Annotated[Path | None, typer.Option(help="Level file, in place of a folder.")] = None,
    scorer: Annotated[str | None, typer.Option(help="strict, official or paper; else the recorded one.")] = None,
    judge: Annotated[str | None, typer.Option(help="Judge every recorded reply anew, by registered name.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --judge: write the re-judged runs here.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
) -> None:
    """Score recorded conversations, or a file of levels, again."""
    from echo_env import report as reports

    if (folder is None) == (levels is None):
        raise ConfigError(
            "score takes a folder of runs or --levels FILE", "for example  echo-env score runs --scorer official"
        )
    if judge is not None:
        if folder is None or out is None:
            raise ConfigError("--judge takes a folder of runs and --out for the re-judged ones")
        from echo_env.agents.rejudge import rejudge_runs

        rejudge_runs(folder, out, judge)
        folder = out
    if levels is not None:
        _print(reports.level_report(levels, scorer or "strict"), format_)
    elif folder is not None:
        _print(reports.collect(folder, scorer), format_)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")],
    scorer: Annotated[str | None, typer.Option(help="Score anew with strict, official or paper.")] = None,
    profile: Annotated[str, typer.Option(help="Weights: epm, crisis, companionship or counselling.")] = "epm",
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page here.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table here.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.text,
) -> None:
    """Tables and figures of recorded runs."""
    from echo_env import report as reports

    found = reports.collect(folder, scorer, profile)
    if csv is not None:
        try:
            csv.write_text(reports.to_csv(found), encoding="utf-8")
        except OSError as e:
            raise RecordError(f"{csv} cannot be written: {e.strerror or e}") from None
    if html is not None:
        reports.write_html(found, html)
        typer.echo(f"wrote {html}", err=True)
    _print(found, format_)


def _print(found: Any, format_: Format) -> None:
    from echo_env import report as reports

    if format_ is Format.json:
        typer.echo(json.dumps(reports.to_json(found), indent=1, allow_nan=False))
    elif format_ is Format.csv:
        typer.echo(reports.to_csv(found), nl=False)
    else:
        from rich.console import Console

        reports.terminal(found, Console(width=None if sys.stdout.isatty() else 100))


@app.command()
def check(files: Annotated[list[Path], typer.Argument(help="Scenario files.")]) -> None:
    """Check scenario files: every mistake with its file, its field and a valid example."""
    from echo_env.errors import ScenarioError
    from echo_env.profiles import load_scenario

    wrong = 0
    for file in files:
        try:
            s = load_scenario(file)
        except ScenarioError as e:
            typer.echo(str(e))
            wrong += 1
        else:
            typer.echo(
                f"{file}: ok, {s.persona.name}, P0 {tuple(int(x) for x in s.p0)}, {sum(1 for _ in s.lines())} lines"
            )
    if wrong:
        raise typer.Exit(1)


app.command()(play)
app.command()(redteam)
app.command()(serve)
app.command()(synthesize)

if __name__ == "__main__":
    main()
