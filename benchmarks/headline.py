"""The headline of issue 5: a cold start from mixed conversations, DAPO on it, best-of-N beside it, all measured.

    python benchmarks/headline.py --out runs/headline                   everything; hours on two cores
    python benchmarks/headline.py --out runs/headline --stage dapo --seeds 1 --minutes 30
    python benchmarks/headline.py --out runs/headline --cold FOLDER     from a cold start that is there
    python benchmarks/headline.py --out runs/headline --stage report    of whatever there is
    python benchmarks/headline.py --out runs/headline --dry-run         print the commands
    python benchmarks/headline.py --out runs/headline algo=grpo groups=4        settings of trainers/dapo.py

Stages: data, sft, dapo, best, eval, report. Each is a row of ordinary commands, printed before they run and kept in
RUN/done/. What is done is skipped, what was interrupted is gone on with; a run that fails is told, reported, and tried
again at the next call. A command whose settings changed is refused: delete what it made, and its file in RUN/done/.

    RUN/results.json  results.md  sample.md  curve.svg

Best-of-N gets as many environment turns as DAPO's runs took on average, rounded up, and trains for what is left of
their wall-clock, at most `MOST_EPOCHS` epochs: both budgets are in the report.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the modules beside it, whatever PYTHONSAFEPATH says

from headline_figures import LARGEST_SKILLED, Budget, budget, listening, logged, shares  # noqa: E402
from headline_report import report  # noqa: E402

from echo_env.errors import ConfigError, EchoError  # noqa: E402
from echo_env.profiles import scenario_ids  # noqa: E402

STAGES = ("data", "sft", "dapo", "best", "eval", "report")

# ---- settings --------------------------------------------------------------------------------------------------------

MIX = "skilled=0.006,orderly=0.112,parrot=0.33,stuffer=0.18,adviser=0.22,lecturer=0.1,template=0.047,silent=0.005"
"""Conversations of each reference policy; at most one reply in five is of those that listen (`LISTENERS`)."""
COUNT, DATA_SEED = 8000, 21
SFT: dict[str, tuple[str, ...]] = {
    "words": ("model=scratch-3m", "sft=words"),
    "talks": ("sft=talks", "seed=1"),
    "again": ("sft=talks", "seed=2"),
}
"""The cold start, from single exchanges to whole conversations, twice, under other names; each goes on with the model
before it."""
DAPO = (
    "mode=multiturn", "mode.temperature=0.6", "algo=dapo_turn", "algo.minibatches=4", "updates=100000",
    "optim.lr=1.0e-4", "optim.warmup=3", "monitor.held_out=second", "monitor.held_out_every=20",
    "checkpoints.every=10", "checkpoints.keep=4",
)  # fmt: skip
REPLY_TOKENS = 64
"""Longest reply, for all policies, in training and in measuring."""
BEST_SFT = ("sft=talks", "eval_every=25")
BEST_KEPT = 1
"""Conversations of each person that best-of-N learns from."""
LEAST_N, MOST_EPOCHS, GUESSED_EPOCHS = 4, 8, 4
"""Smallest N; more epochs than that learn 400 conversations by heart; epochs where the speed of SFT is not known."""
TRAIN_SEED, EVAL_SEED = 500, 1000
"""Seeds of best-of-N's conversations and of the benchmark's."""
SAMPLING = {"temperature": 0.6, "top_p": 1, "max_new_tokens": REPLY_TOKENS, "reuse_tokens": 262_144}
"""All policies speak as they were trained: drawn from their own distribution."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for."""

    out: Path
    seeds: tuple[int, ...]
    minutes: float
    episodes: int
    people: int | None
    """Only so many of the benchmark, to try it out; None: all."""
    between: int
    """Checkpoints before the last of each DAPO run that are measured too, one episode a scenario."""
    cold_start: Path | None
    overrides: tuple[str, ...]
    """Of `trainers/dapo.py`."""

    @property
    def cold(self) -> Path:
        """Folder of the cold start."""
        return self.cold_start or self.out / f"sft-{list(SFT)[-1]}" / "checkpoints" / "latest"

    def models(self) -> dict[str, Path]:
        """Return the policies to be measured by name: those that are there."""
        runs = [f"dapo-{seed}" for seed in self.seeds] + ["best"]
        named = {"cold": self.cold} | {run: self.out / run / "checkpoints" / "latest" for run in runs}
        for run in runs[:-1]:
            steps = sorted((self.out / run / "checkpoints").glob("step-*"))[:-1]
            for step in steps[len(steps) - min(self.between, len(steps)) :]:
                named[f"{run}@{step.name.removeprefix('step-')}"] = step
        return {name: folder for name, folder in named.items() if (folder / "config.json").is_file()}


@dataclass(frozen=True, slots=True)
class Step:
    """One command."""

    name: str
    argv: tuple[str, ...]
    """As a person types it."""
    made: Path
    """What it writes."""
    again: tuple[str, ...] = ()
    """Added where a part of it is there; without it that part is deleted."""
    needs: tuple[str, ...] = ()
    """Steps that come before it: it is left out where one has not ended well, refused where one ended after it."""
    partial: bool = False
    """Whether it also takes what a step has made so far: a checkpoint."""


# ---- stages ----------------------------------------------------------------------------------------------------------


def data(plan: Plan) -> Iterator[Step]:
    """Conversations of the reference policies on the train split."""
    out = plan.out / "cold.jsonl"
    argv = ("echo-env", "synthesize", "--models", "embedded", "--mix", MIX, "--count", str(COUNT))
    yield Step("cold.jsonl", (*argv, "--seed", str(DATA_SEED), "--yes", "--out", str(out)), out, ("--resume",))
    if out.is_file():
        share = listening(shares(out))
        _say(f"{share:.1%} of the replies are of companions that listen")
        if share > LARGEST_SKILLED:
            raise ConfigError(
                f"{share:.1%} of the replies are of companions that listen, more than one in five",
                "lower their part of MIX",
            )


def sft(plan: Plan) -> Iterator[Step]:
    """The cold start."""
    source, before = f"data=[{{path: {plan.out / 'cold.jsonl'}}}]", ""
    for name, settings in SFT.items():
        out = plan.out / f"sft-{name}"
        start = (f"model.path={plan.out / f'sft-{before}' / 'checkpoints' / 'latest'}",) if before else ()
        argv = ("python", "trainers/sft.py", f"out={out}", source, *(("model=folder",) if before else ()))
        needs = ("cold.jsonl", *((f"sft-{before}",) if before else ()))
        yield Step(f"sft-{name}", (*argv, *start, *settings), out, ("resume=true",), needs)
        before = name


def dapo(plan: Plan) -> Iterator[Step]:
    """The policy, trained in the environment, once a seed."""
    for seed in plan.seeds:
        out = plan.out / f"dapo-{seed}"
        argv = ("python", "trainers/dapo.py", f"out={out}", f"name=dapo-{seed}", f"seed={seed}", "model=folder")
        own = (f"model.path={plan.cold}", f"minutes={plan.minutes:g}", f"mode.reply_tokens={REPLY_TOKENS}")
        given = {o.partition("=")[0].lstrip("+") for o in plan.overrides}  # Hydra takes no setting twice
        kept = [s for s in (*argv[3:], *DAPO, *own) if s.partition("=")[0] not in given]
        yield Step(out.name, (*argv[:3], *kept, *plan.overrides), out, ("resume=true",), _cold(plan))


def best(plan: Plan) -> Iterator[Step]:
    """Rejection sampling: the cold start's conversations, and SFT on each person's best."""
    given = _budget(plan)
    talks, out = plan.out / "best-of-n", plan.out / "best"
    argv = ("echo-env", "run", "--policy", str(plan.cold), "--split", "train", "--limit", str(given.people))
    more = ("--episodes", str(given.episodes), "--seed", str(TRAIN_SEED), *_options(SAMPLING), "--out", str(talks))
    yield Step("best-of-n", (*argv, *more), talks / plan.cold.name, ("--resume",), _cold(plan))
    left = given.seconds - (spent(plan, "best-of-n") or 0.0)
    argv = ("python", "trainers/sft.py", f"out={out}", f"data=[{{path: {talks}, best: {BEST_KEPT}}}]", "model=folder")
    own = (f"model.path={plan.cold}", f"epochs={epochs(plan, left, given.people * BEST_KEPT)}")
    yield Step("best", (*argv, *own, *BEST_SFT), out, ("resume=true",), ("best-of-n",))


def _budget(plan: Plan) -> Budget:
    """Return what best-of-N may spend, settled once: by the DAPO runs that have ended by then."""
    file = plan.out / "budget.json"
    if file.is_file():
        return Budget.model_validate_json(file.read_bytes())
    runs = [logged(plan.out / f"dapo-{s}") for s in plan.seeds if done(plan, f"dapo-{s}")]
    given = budget(runs, len(scenario_ids("train")), LEAST_N)
    if given is None:
        raise ConfigError("best-of-N spends what DAPO spent, and no DAPO run has ended yet", "run the stage dapo first")
    file.write_text(given.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return given


def epochs(plan: Plan, seconds: float, conversations: int) -> int:
    """Return how many epochs of SFT fit into the time, by the speed of the cold start's last stage.

    What was trained with stays: a resumed run is not measured by another clock.
    """
    if ended := _marker(plan, "best"):
        return int(next(a for a in ended["argv"] if a.startswith("epochs=")).removeprefix("epochs="))
    run = plan.out / f"sft-{list(SFT)[-1]}"
    lines = logged(run)
    header = run / "header.jsonl"
    if plan.cold_start or not lines or not header.is_file():
        return GUESSED_EPOCHS
    facts = json.loads(header.read_text(encoding="utf-8").splitlines()[-1])["config"]["facts"]
    speed = sum(u["tokens"] for u in lines) / sum(u["seconds"] for u in lines)
    once = conversations * facts["tokens"] / facts["conversations"] / speed
    return max(1, min(MOST_EPOCHS, int(seconds / once)))


def evaluate(plan: Plan) -> Iterator[Step]:
    """Every policy with the same people, seeds and sampling: as they are, by the second judge, and swapped."""
    for name, model in plan.models().items():
        part, needs = plan.out / "eval" / name, _cold(plan) if name == "cold" else (name.partition("@")[0],)
        whole = "@" not in name
        how = ("--episodes", str(plan.episodes if whole else 1), "--seed", str(EVAL_SEED), *_options(SAMPLING))
        how += ("--limit", str(plan.people)) if plan.people else ()
        argv = ("echo-env", "run", "--policy", str(model), "--split", "benchmark", *how, "--out", str(part))
        yield Step(f"eval-{name}", argv, part / model.name, ("--resume",), needs, partial=True)
        if not whole:
            continue
        out = plan.out / "second" / name
        argv = ("echo-env", "score", str(part), "--judge", "second", "--out", str(out))
        yield Step(f"second-{name}", argv, out, needs=(f"eval-{name}",))
        out = plan.out / "swapped" / name
        heard = _options({"model": model, "heard": part})
        argv = ("PYTHONPATH=benchmarks", "echo-env", "run", "--policy", "swapped:Listener", "--split", "benchmark")
        yield Step(
            f"swapped-{name}", (*argv, *how, *heard, "--out", str(out)), out / "swapped-Listener", ("--resume",),
            (f"eval-{name}",),
        )  # fmt: skip


def _cold(plan: Plan) -> tuple[str, ...]:
    return () if plan.cold_start else (f"sft-{list(SFT)[-1]}",)


def _options(options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(word for name, value in options.items() for word in ("--option", f"{name}={value}"))


COMMANDS: dict[str, Callable[[Plan], Iterator[Step]]] = {
    "data": data, "sft": sft, "dapo": dapo, "best": best, "eval": evaluate,
}  # fmt: skip


# ---- running ---------------------------------------------------------------------------------------------------------


def _marker(plan: Plan, name: str) -> dict[str, Any] | None:
    file = plan.out / "done" / f"{name}.json"
    found: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return found


def done(plan: Plan, name: str) -> bool:
    """Return whether a step came to its end."""
    marker = _marker(plan, name)
    return marker is not None and marker["code"] == 0


def spent(plan: Plan, name: str) -> float | None:
    """Return the wall-clock of a step, all its starts together, in seconds; None where it was never run."""
    marker = _marker(plan, name)
    return float(marker["seconds"]) if marker else None


def take(plan: Plan, step: Step) -> int:
    """Run a step, unless it is done; return its exit code.

    Raises:
        ConfigError: It was made by another command, or before what it is made from.
    """
    marker = _marker(plan, step.name)
    if marker:
        _check(plan, step, marker)
        if marker["code"] == 0:
            _say(f"done already: {step.name}")
            return 0
    missing = [] if step.partial else [n for n in step.needs if not done(plan, n)]
    if missing:
        _say(f"left out: {step.name}, for want of {', '.join(missing)}")
        return 1
    argv = step.argv
    if step.made.exists() and step.again:
        argv = (*argv, *step.again)
    elif step.made.exists():
        shutil.rmtree(step.made)
    _say(f"$ {shlex.join(argv)}")
    began = time.monotonic()
    code = call(argv)
    seconds = time.monotonic() - began + (marker["seconds"] if marker else 0.0)
    record = {"argv": list(step.argv), "code": code, "seconds": round(seconds, 1), "ended": time.time()}
    file = plan.out / "done" / f"{step.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return code


def _check(plan: Plan, step: Step, marker: dict[str, Any]) -> None:
    hint = f"to make it anew, delete {step.made} and {plan.out / 'done' / step.name}.json"
    if list(step.argv) != marker["argv"]:
        raise ConfigError(f"{step.name} was made by another command:\n  {shlex.join(marker['argv'])}", hint)
    late = [n for n in step.needs if (m := _marker(plan, n)) and m["ended"] > marker["ended"]]
    if late:
        raise ConfigError(f"{step.name} is older than {', '.join(late)}, which it is made from", hint)


def call(argv: Sequence[str]) -> int:
    """Run a command as a person types it, in this installation; return its exit code once it has saved its work."""
    environment = dict(os.environ)
    words = list(argv)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        known = environment.get(name)
        environment[name] = os.pathsep.join([str(HERE.parent / value), *([known] if known else [])])
    program = [sys.executable, "-m", "echo_env.cli"] if words[0] == "echo-env" else [sys.executable]
    rest = [str(HERE.parent / w) if w.startswith("trainers/") else w for w in words[1:]]
    with subprocess.Popen([*program, *rest], env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # it has heard it too, and saves
                continue


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def play(plan: Plan, stages: Sequence[str], *, dry_run: bool = False) -> int:
    """Take all steps of some stages, and return the worst exit code."""
    worst = 0
    for stage in STAGES:
        if stage not in stages or (dry_run and stage == "report"):
            continue
        if plan.cold_start and stage in ("data", "sft"):
            continue
        _say(f"== {stage}")
        if stage == "report":
            report(plan.out, plan.models(), plan.seeds)
            _say(f"{plan.out / 'results.md'}")
            continue
        try:
            for step in COMMANDS[stage](plan):
                if dry_run:
                    sys.stdout.write(shlex.join(step.argv) + "\n")
                    continue
                code = take(plan, step)
                if code in (130, -2):
                    return 130
                worst = max(worst, abs(code))
        except EchoError as e:
            _say(f"error: {e}")
            worst = 2
            if stage in ("data", "sft"):  # there is nothing to go on with
                return worst
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/headline"), help="folder of everything")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this one; repeatable")
    parser.add_argument("--seeds", default="0,1,2", help="of the DAPO runs")
    parser.add_argument("--minutes", type=float, default=60, help="of each DAPO run")
    parser.add_argument("--episodes", type=int, default=3, help="a scenario, when measured")
    parser.add_argument("--people", type=int, help="only so many of the benchmark, to try it out")
    parser.add_argument("--between", type=int, default=0, help="earlier checkpoints of each run to measure as well")
    parser.add_argument("--cold", type=Path, help="a cold start that is there")
    parser.add_argument("--dry-run", action="store_true", help="print the commands that are known so far")
    parser.add_argument("overrides", nargs="*", help="settings of trainers/dapo.py")
    a = parser.parse_args(arguments)
    try:
        seeds = tuple(int(seed) for seed in a.seeds.split(","))
    except ValueError:
        parser.error("--seeds takes numbers with commas between them")
    if a.cold and not (a.cold / "config.json").is_file():
        parser.error(f"there is no model in {a.cold}")
    plan = Plan(a.out, seeds, a.minutes, a.episodes, a.people, a.between, a.cold, tuple(a.overrides))
    return play(plan, a.stage or STAGES, dry_run=a.dry_run)


if __name__ == "__main__":
    raise SystemExit(main())
