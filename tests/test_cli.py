"""The command line: what it prints, what it leaves on the disk, and how it tells a mistake."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from echo_env import cli, registry
from echo_env.errors import RecordError
from echo_env.profiles import data_root
from echo_env.record import RunFolder, read_episode
from echo_env.version import VERSION

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(sys.executable).with_name("echo-env")
GOOD = data_root() / "benchmark" / "career-01.yaml"

SLOW = """
import time
from echo_env.agents.embedded.skilled import Skilled
from echo_env.errors import RoleFailure

class Slow(Skilled):
    id = "slow"
    async def respond(self, observation):
        time.sleep(0.02)
        return await super().respond(observation)

class Unkeyed:
    id, rubric = "unkeyed", "none"
    def __init__(self, *args, **kwargs): pass
    async def judge(self, *args, **kwargs):
        raise RoleFailure("no key")

class Broken(Skilled):
    id = "broken"
    async def respond(self, observation):
        raise RoleFailure("no answer within 60 s")
"""


class Ran(NamedTuple):
    """What one call of the command line did."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line in this process, as its console script does: sys.exit(main())."""

    def call(*args: object, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["echo-env", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        try:
            sys.exit(cli.main())  # type: ignore[func-returns-value]
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        return Ran(code, *capsys.readouterr())

    return call


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A module of policies outside the package, and the environment in which a subprocess finds it."""
    (tmp_path / "slow_policies.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of two policies."""
    out = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "echo_env.cli", "run", "--policy", "skilled", "--policy", "silent", "--limit", "2"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=120, cwd=out)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["skilled", "silent"]
    assert all("2 of 2" in line for line in lines)
    assert "silent: 2 of 2" in done.stdout
    return out


def levels(path: Path) -> Path:
    """A level file by hand: two models, two cases, one unjudged turn."""
    better, worse = [[1, 0, 2, 0, 1, 0]] * 20, [[0, -1, 0, 0, 0, 0]] * 12
    gap = [*better[:5], [None] * 6, *better[6:]]
    episodes = [
        {"model": m, "case": c, "levels": turns}
        for m, c, turns in (("good", "1", better), ("good", "2", gap), ("bad", "1", worse), ("bad", "2", worse))
    ]
    cases = {"1": {"P0": [-10, -24, -10]}, "2": {"P0": [-12, -16, -9]}}
    path.write_text(json.dumps({"cases": cases, "episodes": episodes}))
    return path


# ---- help ----------------------------------------------------------------------------------------------------------


def test_help_comes_in_under_a_second(tmp_path: Path) -> None:
    """CPU seconds, which do not depend on what else the machine is busy with; the call does nothing but compute."""
    command = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "echo_env.cli"]
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (done.returncode, done.stderr) == (0, "")
        assert all(name in done.stdout for name in ("list", "play", "run", "score", "report", "check"))
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert median(spent) < 1.0, spent


def loaded_by(args: str, cwd: Path) -> set[str]:
    code = (
        f"import sys\nsys.argv = ['echo-env', *{args!r}.split()]\nfrom echo_env.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('MODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=60, check=True)
    return {name.partition(".")[0] for name in done.stdout.rpartition("MODULES")[2].split()}


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"torch", "transformers", "wordllama", "tokenizers", "plotly", "yaml", "pydantic", "jinja2"}
    assert not loaded_by("--help", tmp_path) & heavy


@pytest.mark.parametrize("command", ["list", "play", "run", "score", "report", "check"])
def test_every_command_has_help(echo: Run, command: str) -> None:
    done = echo(command, "--help")
    assert done.code == 0
    assert re.search(rf"Usage: .*echo-env {command}\b", done.out)


def test_version_and_no_command(echo: Run) -> None:
    assert echo("--version") == Ran(0, f"{VERSION}\n", "")
    bare = echo()
    assert bare.code == 2
    assert re.search("Usage: .*echo-env", bare.out + bare.err)
    wrong = echo("rn")
    assert wrong.code == 2
    assert "rn" in wrong.err
    assert not wrong.out


# ---- list and check ------------------------------------------------------------------------------------------------


def test_list(echo: Run) -> None:
    whole = echo("list")
    assert whole.code == 0
    kinds = {line.split()[0]: line.split()[1:] for line in whole.out.splitlines()}
    assert set(kinds) == {*registry.KINDS, "scorer", "split"}
    assert kinds["scorer"] == ["official", "paper", "strict"]
    assert {"silent", "template", "adviser", "lecturer", "stuffer", "parrot", "skilled"} <= set(kinds["policy"])
    assert echo("list", "policy").out.split()[1:] == kinds["policy"]
    people = echo("list", "scenarios").out.splitlines()
    assert len(people) == 30
    assert people[0].startswith("career-01 ")
    assert "\x1b" not in whole.out
    assert echo("list", "polici").err.startswith("error: unknown kind 'polici'\n  hint: did you mean 'policy'?")


def test_a_good_file_passes_the_check(echo: Run) -> None:
    done = echo("check", GOOD)
    assert (done.code, done.err) == (0, "")
    assert re.match(r".*career-01\.yaml: ok, Archie Lamont, P0 \(-19, -15, -16\), \d+ lines\n$", done.out)


def test_a_bad_file_fails_the_check_with_every_mistake(echo: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(GOOD.read_text().replace("threshold:", "thresholt:").replace("domain: career", "domain: carer"))
    done = echo("check", GOOD, bad)
    assert f"{GOOD}: ok" in done.out
    assert "threshold" in done.out
    assert "domain: family" in done.out, "no valid example is given"
    assert done.out.count(str(bad)) >= 3, "not every mistake names the file"
    assert done.code == 1


@pytest.mark.parametrize("content", [None, "", "[1, 2]", "a: b: c", "\x00", "id: x", "&a [*a]"], ids=repr)
def test_what_is_no_scenario_fails_the_check(echo: Run, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "file.yaml"
    if content is not None:
        file.write_text(content)
    done = echo("check", file)
    assert "file.yaml: " in done.out
    assert "Traceback" not in done.err
    assert done.code == 1


# ---- run -----------------------------------------------------------------------------------------------------------


def test_run_plays_and_records_each_policy(runs: Path) -> None:
    for policy in ("skilled", "silent"):
        found = list(RunFolder(runs / policy).episodes())
        assert [e.header.scenario for e in found] == ["career-01", "career-02"]
        assert all(e.outcome is not None and e.header.policy == policy for e in found)
    assert all(e.outcome and e.outcome.end != "success" for e in RunFolder(runs / "silent").episodes())


def test_run_tells_results_on_stdout_and_progress_on_stderr(echo: Run, tmp_path: Path) -> None:
    done = echo("run", "--policy", "template", "--limit", 1, "--max-turns", 2, "--out", tmp_path)
    assert done.code == 0
    assert re.fullmatch(r"template: 1 of 1 [^\n]*, 0 succeeded  [^\n]*template\n", done.out)
    assert "\x1b" not in done.out


def test_a_mistyped_name_leaves_no_folder_in_the_way(echo: Run, tmp_path: Path) -> None:
    command = ("run", "--policy", "template", "--limit", 1, "--max-turns", 1, "--out", tmp_path / "runs")
    for wrong in (("--recipe", "epn"), ("--judge", "nobody"), ("--backend", "nowhere")):
        assert echo(*command, *wrong).code == 1
        assert not (tmp_path / "runs").exists()
    assert echo(*command).code == 0
    path = echo("run", "--policy", "path/to/model", "--out", tmp_path / "runs")
    assert re.search(r"^error: there is no folder 'path/to/model'\n  hint: ", path.err, re.M)


def test_a_run_tells_why_its_turns_were_not_judged(echo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slowpolicy.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    command = ("run", "--policy", "template", "--limit", 1, "--max-turns", 2, "--out", tmp_path)
    done = echo(*command, "--judge", "slowpolicy:Unkeyed")
    assert "2 of 2 turns lack a judgement, verdict or direction; most often  judge: " in done.err
    assert "no key" in done.err
    assert "turns lack" not in echo(*command, "--overwrite").err


def test_a_run_that_is_there_is_refused_resumed_or_overwritten(echo: Run, tmp_path: Path) -> None:
    command = ("run", "--policy", "template", "--limit", 1, "--max-turns", 2, "--out", tmp_path)
    assert echo(*command).code == 0
    again = echo(*command)
    assert again.code == 1
    assert re.search(r"^error: .*template holds a run already\n  hint: .*--resume .*--overwrite", again.err, re.M)
    assert echo(*command, "--resume").code == 0
    assert echo(*command, "--overwrite").code == 0
    both = echo(*command, "--resume", "--overwrite")
    assert (both.code, both.err) == (1, "error: --resume and --overwrite exclude each other\n")
    other = echo(*command, "--resume", "--seed", 3)
    assert other.code == 1
    assert "another run; different: seed" in other.err


def test_a_run_can_be_named_so_that_a_report_tells_two_of_one_folder_name_apart(echo: Run, tmp_path: Path) -> None:
    command = ("run", "--policy", "template", "--limit", 1, "--max-turns", 2, "--out", tmp_path / "runs")
    assert echo(*command, "--name", "before").out.startswith("before: 1 of 1")
    assert echo(*command, "--name", "after").code == 0
    assert sorted(f.name for f in (tmp_path / "runs").iterdir()) == ["after", "before"]
    assert [e.header.policy for e in RunFolder(tmp_path / "runs" / "before").episodes()] == ["template"]
    shown = echo("report", tmp_path / "runs").out
    assert "before" in shown
    assert "after" in shown
    two = echo(*command, "--name", "both", "--policy", "silent")
    assert (two.code, "--name names one run" in two.err) == (1, True)


def test_run_again_from_inside_the_folder_of_runs(echo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the run's folder `template` lies beside the registered name `template`, which must win."""
    monkeypatch.chdir(tmp_path)
    command = ("run", "--policy", "template", "--limit", 1, "--max-turns", 2, "--out", ".")
    assert echo(*command).code == 0
    again = echo(*command, "--resume")
    assert again.code == 0, again.err


def test_dry_run_prints_the_configuration_and_writes_nothing(echo: Run, tmp_path: Path) -> None:
    done = echo(
        "run", "--policy", "skilled", "--policy", "silent", "--limit", 2, "--seed", 7, "--scorer", "official",
        "--option", "a=0.5", "--option", "b=x", "--dry-run", "--out", tmp_path / "none",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    decoder, text, found = json.JSONDecoder(), done.out.strip(), []
    while text:
        config, end = decoder.raw_decode(text)
        found.append(config)
        text = text[end:].lstrip()
    assert [c["policy"] for c in found] == ["skilled", "silent"]
    assert found[0]["policy_options"] == {"a": 0.5, "b": "x"}
    assert (found[0]["seed"], found[0]["limit"], found[0]["world"]["scorer"]) == (7, 2, "official")
    assert not (tmp_path / "none").exists()


def test_a_conversation_that_could_not_be_played_makes_the_command_fail(
    echo: Run, tmp_path: Path, slow: dict[str, str]
) -> None:
    done = echo("run", "--policy", "slow_policies:Broken", "--limit", 2, "--out", tmp_path / "out")
    assert "failed: career-01: no answer within 60 s" in done.err
    assert "0 of 2" in done.out
    assert done.code == 3


def test_nothing_is_played_where_the_second_policy_is_unknown(echo: Run, tmp_path: Path) -> None:
    done = echo("run", "--policy", "template", "--policy", "skiled", "--limit", 1, "--out", tmp_path)
    assert done.code == 1
    assert "did you mean 'skilled'" in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ("run --policy skiled --out OUT", r"unknown policy 'skiled'\n  hint: did you mean 'skilled'\?"),
        ("run --policy skiled --out OUT --dry-run", "did you mean 'skilled'"),
        ("run --policy no_such_module:X --out OUT", "cannot be loaded"),
        ("run --policy skilled --scorer strct --out OUT", "did you mean 'strict'"),
        ("run --policy skilled --recipe emp --out OUT", "did you mean 'epm'"),
        ("run --policy skilled --judge embeddd --out OUT", "did you mean 'embedded'"),
        ("run --policy skilled --split tran --out OUT", "did you mean 'train'"),
        ("run --policy skilled --scenario carer-01 --out OUT", "did you mean 'career-01'"),
        ("run --policy skilled --scenario none.yaml --out OUT", "no such file"),
        ("run --policy skilled --option temperature --out OUT", "key=value"),
        ("run --policy skilled --option temperature=1 --out OUT", "does not take"),
        ("run --policy skilled --option seed=1 --out OUT", "seed"),
        ("run --policy skilled --out /dev/null/x", "cannot be written"),
        ("score", "a folder of runs or --levels"),
        ("score OUT --levels OUT", "a folder of runs or --levels"),
        ("score OUT", "holds no run"),
        ("score --levels OUT/none.json", "none.json"),
        ("score OUT --judge embedded", "--out"),
        ("report OUT", "holds no run"),
        ("report RUNS --scorer strct", "did you mean 'strict'"),
        ("report RUNS --profile crises", "did you mean 'crisis'"),
        ("report RUNS --csv OUT/no/such/folder/x.csv", "x.csv"),
        ("report RUNS --html /dev/null/x.html", "x.html"),
        ("play --scenario carer-01", "did you mean 'career-01'"),
        ("play --policy skiled", "did you mean 'skilled'"),
        ("play --split tran", "did you mean 'train'"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(echo: Run, runs: Path, tmp_path: Path, args: str, told: str) -> None:
    """In a process of its own an exception would be a traceback; here it would come through `echo`."""
    filled = [a.replace("OUT", str(tmp_path)).replace("RUNS", str(runs)) for a in args.split()]
    done = echo(*filled)
    assert done.code == 1
    assert re.search(told, done.err), done.err
    assert re.search("^error: ", done.err, re.M)
    assert not done.out


@pytest.mark.parametrize(
    "args",
    [
        "run --policy skilled",
        "run --out x",
        "run --policy skilled --out x --limit 0",
        "run --policy skilled --out x --max-turns 0",
        "run --policy skilled --out x --bogus",
        "report RUNS --format xml",
        "report",
        "check",
    ],
)
def test_a_wrong_call_shows_the_usage(echo: Run, runs: Path, args: str) -> None:
    done = echo(*args.replace("RUNS", str(runs)).split())
    assert done.code == 2
    assert re.search("Usage: .*echo-env", done.err)
    assert not done.out


def test_no_traceback_reaches_a_user(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "echo_env.cli", "run", "--policy", "skiled", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    assert "did you mean 'skilled'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# ---- stopped -------------------------------------------------------------------------------------------------------


def stop(tmp_path: Path, env: dict[str, str], with_signal: int) -> subprocess.CompletedProcess[str]:
    """Start a slow run of four people and stop it in the middle."""
    command = [sys.executable, "-m", "echo_env.cli", "run", *SLOW_RUN, "--out", str(tmp_path / "out")]
    player = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and player.poll() is None:
        files = list((tmp_path / "out").rglob("*.jsonl"))
        if len(files) == 4 and all(f.read_bytes().count(b"\n") >= 3 for f in files):
            break
        time.sleep(0.01)
    assert player.poll() is None, player.communicate()
    player.send_signal(with_signal)
    out, err = player.communicate(timeout=30)
    return subprocess.CompletedProcess(command, player.returncode, out, err)


SLOW_RUN = ["--policy", "slow_policies:Slow", "--limit", "4", "--max-turns", "12"]


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_run_that_is_stopped_can_be_read_and_resumed(
    echo: Run, tmp_path: Path, slow: dict[str, str], with_signal: signal.Signals
) -> None:
    stopped = stop(tmp_path, slow, with_signal)
    assert "Traceback" not in stopped.stderr
    if with_signal is signal.SIGINT:
        assert stopped.returncode == 130
        assert "interrupted" in stopped.stderr
        assert "--resume" in stopped.stderr
    files = sorted((tmp_path / "out").rglob("*.jsonl"))
    left = {f.name: f.read_bytes() for f in files}
    assert all(2 <= len(read_episode(f).turns) < 12 for f in files), "it was not stopped in the middle"
    report = echo("report", tmp_path / "out", "--format", "json")
    assert report.code == 0
    assert json.loads(report.out)["models"][0]["unfinished"] == 4
    assert echo("run", *SLOW_RUN, "--out", tmp_path / "out", "--resume").code == 0
    assert echo("run", *SLOW_RUN, "--out", tmp_path / "whole").code == 0
    whole = {f.name: f.read_bytes() for f in (tmp_path / "whole").rglob("*.jsonl")}
    assert {f.name: f.read_bytes() for f in files} == whole
    assert all(whole[name].startswith(data[: data.rfind(b"\n") + 1]) for name, data in left.items())


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m echo_env.cli list scenarios | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert "Traceback" not in done.stderr


# ---- score and report ----------------------------------------------------------------------------------------------


def check_shape(text: str) -> list[dict[str, Any]]:
    """Assert the shape that scripts rely on, and return the models."""
    data = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    models = data["models"]
    for model in models:
        assert {"model", "n", "success_rate", "epm_q", "indices"} <= set(model)
        assert isinstance(model["model"], str)
        assert isinstance(model["n"], int)
        assert model["success_rate"] is None or 0 <= model["success_rate"] <= 1
        names = {"rdi", "e_total", "s_net", "rho", "s_proj", "tau", "r_pos", "align", "r_pen"}
        assert set(model["indices"]) == names
        if model["n"]:
            assert isinstance(model["epm_q"], float)
            assert all(isinstance(v, float) for v in model["indices"].values())
    return models  # type: ignore[no-any-return]


@pytest.mark.parametrize("scorer", ["strict", "official", "paper"])
def test_score_of_a_level_file(echo: Run, tmp_path: Path, scorer: str) -> None:
    done = echo("score", "--levels", levels(tmp_path / "levels.json"), "--scorer", scorer, "--format", "json")
    assert (done.code, done.err) == (0, "")
    good, bad = check_shape(done.out)
    assert [good["model"], bad["model"]] == ["good", "bad"]
    assert (good["n"], bad["n"]) == (2, 2)
    assert bad["success_rate"] == 0
    if scorer != "paper":  # it asks for more energy than there is distance
        assert good["success_rate"] == 1
    assert good["epm_q"] > bad["epm_q"]
    assert json.loads(done.out)["scorer"].startswith(scorer)


def test_score_of_a_level_file_in_other_formats(echo: Run, tmp_path: Path) -> None:
    file = levels(tmp_path / "levels.json")
    assert json.loads(echo("score", "--levels", file, "--format", "json").out)["scorer"].startswith("strict")
    table = echo("score", "--levels", file, "--format", "csv").out.splitlines()
    assert len(table) == 3
    assert table[0].startswith("model,")
    text = echo("score", "--levels", file)
    assert text.code == 0
    assert "good" in text.out
    assert "\x1b" not in text.out


def test_report(echo: Run, runs: Path, tmp_path: Path) -> None:
    done = echo("report", runs, "--format", "json", "--csv", tmp_path / "x.csv")
    assert done.code == 0
    models = {m["model"]: m for m in check_shape(done.out)}
    assert set(models) == {"skilled", "silent"}
    assert models["skilled"]["n"] == models["silent"]["n"] == 2
    assert models["silent"]["success_rate"] == 0
    assert models["skilled"]["epm_q"] > models["silent"]["epm_q"]
    table = (tmp_path / "x.csv").read_text()
    assert table == echo("report", runs, "--format", "csv").out
    header, *rows = (line.split(",") for line in table.splitlines())
    assert {row[0] for row in rows} == {"skilled", "silent"}
    column = header.index("epm_q")
    assert {row[0]: float(row[column]) for row in rows} == {m: pytest.approx(d["epm_q"]) for m, d in models.items()}
    text = echo("report", runs)
    assert text.code == 0
    assert "skilled" in text.out
    assert "\x1b" not in text.out


def test_score_of_old_runs_with_another_scorer_and_judge(echo: Run, runs: Path, tmp_path: Path) -> None:
    strict = json.loads(echo("score", runs, "--format", "json").out)
    official = json.loads(echo("score", runs, "--scorer", "official", "--format", "json").out)
    assert (strict["scorer"], official["scorer"]) == ("strict-2", "official-2")
    assert strict["models"] != official["models"]
    again = echo("score", runs, "--judge", "embedded", "--out", tmp_path / "again", "--format", "json")
    assert again.code == 0
    assert json.loads(again.out)["models"] == strict["models"]
    assert [e.turns for e in RunFolder(tmp_path / "again" / "skilled").episodes()] == [
        e.turns for e in RunFolder(runs / "skilled").episodes()
    ]


def test_a_malformed_record_in_a_run_is_told(echo: Run, tmp_path: Path) -> None:
    echo("run", "--policy", "silent", "--limit", 1, "--max-turns", 2, "--out", tmp_path)
    file = next(tmp_path.rglob("*.jsonl"))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"{]\n" + lines[2])
    done = echo("report", tmp_path)
    assert done.code == 1
    assert re.search(r"^error: .*career-01\.0\.jsonl, line 2: ", done.err)
    with pytest.raises(RecordError):
        read_episode(file)


# ---- play ----------------------------------------------------------------------------------------------------------


def test_watch_a_policy_to_the_end(echo: Run) -> None:
    done = echo("play", "--policy", "lecturer", "--scenario", "career-02")
    assert done.code == 0
    turns = done.out.count("lecturer: ")
    assert re.search(rf"^ended: (collapse|stagnation|patience|director) after {turns} turns$", done.out, re.M)
    assert done.out.count("EPM  C ") == turns >= 12


def test_the_tool_is_installed_as_a_script() -> None:
    assert 'echo-env = "echo_env.cli:main"' in (ROOT / "pyproject.toml").read_text()
