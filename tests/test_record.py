"""Episode files and run folders: lossless, append-only, readable after anything, resumed to the same bytes."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo_env import record
from echo_env.agents import rejudge as rejudging
from echo_env.agents.embedded.judge import EmbeddedJudge
from echo_env.agents.embedded.skilled import Skilled
from echo_env.agents.rollout import RunConfig, RunResult, run
from echo_env.build import WorldConfig
from echo_env.errors import EchoError, RecordError, RoleFailure
from echo_env.profiles import get_scenario
from echo_env.record import EpisodeWriter, RunFolder, RunHeader, find_runs, new_header, read_episode
from echo_env.rewards import epm, group_rewards
from echo_env.roles import JudgeView, Observation
from echo_env.scorers import get_scorer
from echo_env.types import Direction, Episode, EpisodeHeader, Evidence, Judgement, Levels, Outcome, Turn

GOLDEN = Path(__file__).parent / "goldens" / "episode_v1.jsonl"
SECRET = "sk-sentinel-3f1c9d7e"


class Sleepy(Skilled):
    """`skilled`, a little slower: long enough a turn to be killed in."""

    id = "skilled"

    async def respond(self, observation: Observation) -> str:
        await asyncio.sleep(0.01)
        return await super().respond(observation)


class Mute:
    """A judge that never answers."""

    id, rubric = "mute-1", "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        raise TimeoutError("no answer within 60 s")


class Telling:
    """A judge whose error message quotes its credentials, as those of HTTP clients do."""

    id, rubric = "telling-1", "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        raise ConnectionError(f"401 for https://judge.example/v1?key={os.environ['OPENAI_API_KEY']}")


def config(turns: int = 4, people: int = 2, **options: Any) -> RunConfig:
    world = WorldConfig(max_turns=turns, judge=options.pop("judge", None))
    return RunConfig(**{"policy": "skilled", "limit": people, "world": world} | options)


def episode_files(out: Path) -> dict[str, bytes]:
    """The bytes of every episode file in a folder of runs, by place."""
    return {str(f.relative_to(out)): f.read_bytes() for f in sorted(out.rglob("episodes/*.jsonl"))}


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, dict[str, bytes]]:
    """A short run of four people that nothing disturbed."""
    out = tmp_path_factory.mktemp("unbroken")
    run(config(6, 4), out)
    return config(6, 4), episode_files(out)


@pytest.fixture
def file(tmp_path: Path, unbroken: tuple[RunConfig, dict[str, bytes]]) -> Path:
    """A finished episode's file."""
    path = tmp_path / "episode.jsonl"
    path.write_bytes(next(iter(unbroken[1].values())))
    return path


# ---- round trip ----------------------------------------------------------------------------------------------------


def test_a_file_is_the_episode_and_nothing_else(file: Path) -> None:
    episode = read_episode(file)
    assert [t.index for t in episode.turns] == [1, 2, 3, 4, 5, 6]
    assert episode.outcome is not None
    assert episode.outcome.end == "budget"
    parts = [("header", episode.header), *(("turn", t) for t in episode.turns), ("outcome", episode.outcome)]
    lines = [f'{{"{kind}":{part.model_dump_json()}}}\n' for kind, part in parts]  # type: ignore[attr-defined]
    assert file.read_bytes() == "".join(lines).encode()
    assert Episode.model_validate_json(episode.model_dump_json()) == episode


texts = st.text(st.characters(codec="utf-8"), max_size=40)
exact = st.floats(allow_nan=False, allow_infinity=False)
judgements = st.builds(
    Judgement,
    levels=st.builds(Levels, *[st.integers(0, 2), st.integers(-2, 0)] * 3),
    evidence=st.lists(
        st.builds(
            Evidence,
            axis=st.sampled_from("CAP"),
            direction=st.sampled_from(["prog", "neg"]),
            level=st.integers(-2, 2),
            anchor=texts,
            quote=texts,
        ),
        max_size=2,
    ).map(tuple),
    judge=texts,
)
any_turn = st.builds(
    Turn,
    index=st.just(1),
    user=texts,
    reply=texts,
    raw_reply=st.none() | texts,
    judgement=st.none() | judgements,
    epm=st.none(),
    direction=st.none() | st.builds(Direction, function=st.just("observe_and_wait"), words=texts),
    reward=st.none() | exact,
    reward_parts=st.dictionaries(texts, exact, max_size=2),
    failure=texts,
)


@given(any_turn, st.builds(Outcome, end=st.just("success"), turns=st.just(1), closing=texts))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_written_is_read(tmp_path: Path, turn: Turn, outcome: Outcome) -> None:
    path = tmp_path / "x" / "e.jsonl"
    path.unlink(missing_ok=True)
    header = read_episode(GOLDEN).header
    with EpisodeWriter(path, header) as writer:
        writer.append(turn)
        writer.finish(outcome)
    assert read_episode(path) == Episode(header=header, turns=(turn,), outcome=outcome)


def test_the_file_of_version_1_loads_for_ever() -> None:
    episode = read_episode(GOLDEN)
    header = episode.header
    assert (header.schema_version, header.scenario, header.p0) == (1, "career-01", (-19, -15, -16))
    assert (header.judge, header.scorer, header.recipe, header.seed) == ("embedded-1", "strict-1", "epm-1", 932778717)
    assert [t.index for t in episode.turns] == [1, 2, 3, 4, 5]
    assert [t.judgement is None for t in episode.turns] == [False, False, True, False, False]
    one, two, three, four, five = episode.turns
    assert one.user.startswith("Thirty-six years on the tugs")
    assert one.judgement is not None
    assert one.judgement.levels == (1, 0, 1, 0, 0, 0)
    assert one.judgement.evidence[0].quote == "Most of us would lie awake over the thirty-first."
    assert two.raw_reply is not None
    assert two.raw_reply.startswith("<think>turn 2: stay with them — 你好 🙂</think>\n")
    assert (three.epm, three.reward, three.reward_parts) == (None, None, {})
    assert three.failure == "judge: TimeoutError: no answer within 60 s"
    assert four.epm is not None
    assert four.epm.position == (-22, -16, -16)
    assert four.epm.work == pytest.approx(-2.3704286)
    assert four.direction is not None
    assert four.direction.function == "observe_and_wait"
    assert five.direction is None
    assert episode.outcome == Outcome(end="budget", turns=5, closing="I'd rather be by myself now.")
    assert group_rewards(epm(), [episode], get_scorer(header.scorer)) == [[t.reward for t in episode.turns]]


# ---- readable after anything ---------------------------------------------------------------------------------------


def test_a_run_only_ever_appends(tmp_path: Path) -> None:
    before: dict[str, bytes] = {}

    def look(_: object) -> None:
        now = episode_files(tmp_path)
        assert all(now[name].startswith(data) for name, data in before.items())
        assert all(data.endswith(b"\n") for data in now.values()), "a line is not flushed whole"
        before.update(now)

    run(config(), tmp_path, tell=look)
    assert len(before) == 2


def test_every_prefix_of_a_file_is_a_prefix_of_the_conversation(tmp_path: Path) -> None:
    lines = GOLDEN.read_bytes().splitlines(keepends=True)[:3]
    data = b"".join(lines) + b'{"outcome":{"end":"budget","turns":2,"closing":"Wait \xe2\x80\xa6"}}\n'
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(data)
    whole = read_episode(cut)
    assert whole.outcome is not None
    counts = []
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        if b"\n" not in data[:size]:
            with pytest.raises(RecordError, match="header"):
                read_episode(cut)
            continue
        episode = read_episode(cut)
        assert episode.header == whole.header
        assert episode.turns == whole.turns[: len(episode.turns)]
        assert episode.outcome == (whole.outcome if size == len(data) else None)
        counts.append(len(episode.turns))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}


def test_a_torn_last_line_is_cut_off_on_resume(file: Path) -> None:
    data = file.read_bytes()
    lines = data.splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:50])
    torn = read_episode(file)
    with EpisodeWriter(file, torn.header, resumed=torn) as writer:
        writer.append(Turn.model_validate(json.loads(lines[3])["turn"]))
    assert file.read_bytes() == b"".join(lines[:4])


def test_a_malformed_line_is_named(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    for bad in (lines[2][:60] + b"\n", b"\n", b"[1]\n", b"null\n", b'{"turn":1,"x":2}\n', b"{'turn': 1}\n"):
        file.write_bytes(b"".join([*lines[:2], bad, *lines[3:]]))
        with pytest.raises(RecordError, match=r"episode\.jsonl, line 3: "):
            read_episode(file)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b'{"turn":{"index":"x"}}\n', id="fields missing"),
        pytest.param(b'{"turn":[]}\n', id="no object"),
        pytest.param(b'{"tur":{}}\n', id="unknown kind"),
        pytest.param(b'{"turn":{"user":"\xff\xfe"}}\n', id="not UTF-8"),
    ],
)
def test_a_line_that_is_no_record_is_named(file: Path, bad: bytes) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], bad, *lines[3:]]))
    with pytest.raises(RecordError, match=r"episode\.jsonl, line 3: "):
        read_episode(file)


def test_bytes_that_are_no_text_are_not_replaced_in_silence(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"reply":"', b'"reply":"\xff', 1))
    with pytest.raises(RecordError, match=r"episode\.jsonl, line 2: "):
        read_episode(file)


@pytest.mark.parametrize("order", [(0, 1, 3, 4), (0, 1, 1, 2), (0, 2, 1), (0, 1, 7, 2), (0, 0, 1), (1, 2)], ids=str)
def test_lines_out_of_order_are_refused(file: Path, order: tuple[int, ...]) -> None:
    """As two processes that resume one run at a time would leave them; else such an episode is scored wrongly."""
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[k] for k in order))
    with pytest.raises(RecordError, match="episode"):
        read_episode(file)


@pytest.mark.parametrize("start", [b"", b"\n", b"{}\n", b'{"turn":{}}\n', b'{"header":"x"}\n', b'{"header":null}\n'])
def test_a_file_without_a_header_is_refused(file: Path, start: bytes) -> None:
    rest = b"".join(file.read_bytes().splitlines(keepends=True)[1:])
    for data in (start, start + rest if start else start):
        file.write_bytes(data)
        with pytest.raises(RecordError, match=r"episode\.jsonl"):
            read_episode(file)


@pytest.mark.parametrize("version", ["2", "0", "99", '"1"', "null", None])
def test_an_unknown_schema_version_is_told(file: Path, version: str | None) -> None:
    given = f'"schema_version":{version},' if version is not None else ""
    file.write_bytes(file.read_bytes().replace(b'"schema_version":1,', given.encode()))
    with pytest.raises(RecordError, match=r"schema version [\s\S]*this echo-env reads 1"):
        read_episode(file)


def test_unknown_fields_are_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"failure":""', b'"failure":"","mood":"sad"', 1))
    with pytest.raises(RecordError, match=r"mood[\s\S]*newer echo-env"):
        read_episode(file)


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="No such file"):
        read_episode(tmp_path / "none.jsonl")
    with pytest.raises(RecordError, match="directory"):
        read_episode(tmp_path)


def test_a_file_that_is_there_is_not_written_over(file: Path) -> None:
    data = file.read_bytes()
    with pytest.raises(RecordError, match="exists already"):
        EpisodeWriter(file, read_episode(GOLDEN).header)
    assert file.read_bytes() == data


# ---- one seed, one file --------------------------------------------------------------------------------------------


def test_two_runs_with_one_seed_write_the_same_bytes(
    tmp_path: Path, unbroken: tuple[RunConfig, dict[str, bytes]]
) -> None:
    same, files = unbroken
    run(same, tmp_path / "again")
    assert episode_files(tmp_path / "again") == files
    run(same.model_copy(update={"batch": 1}), tmp_path / "one by one")
    assert episode_files(tmp_path / "one by one") == files
    run(same.model_copy(update={"seed": 1}), tmp_path / "other")
    other = episode_files(tmp_path / "other")
    assert set(other) == set(files)
    assert all(other[name] != data for name, data in files.items())


def test_each_conversation_of_a_scenario_has_a_seed_of_its_own(tmp_path: Path) -> None:
    run(config(4, 1, episodes=3), tmp_path)
    found = list(RunFolder(tmp_path / "skilled").episodes())
    assert [e.header.episode_id for e in found] == ["career-01.0", "career-01.1", "career-01.2"]
    assert len({e.header.seed for e in found}) == 3
    assert all(one.turns != other.turns for one, other in pairwise(found))


def test_the_bytes_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """String hashes differ from process to process; nothing may be said or judged in the order of a set."""
    code = (
        "from pathlib import Path\nfrom echo_env.agents.rollout import RunConfig, run\n"
        "for name in ('skilled', 'adviser'): run(RunConfig(policy=name, limit=3), Path('{out}'))\n"
        "run(RunConfig(policy='stuffer', split='dev', limit=2), Path('{out}'))"
    )
    for seed in ("1", "2"):
        out = tmp_path / seed
        env = os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-c", code.format(out=out)], env=env, check=True, cwd=tmp_path, timeout=120)
    assert episode_files(tmp_path / "1") == episode_files(tmp_path / "2")


# ---- killed and resumed --------------------------------------------------------------------------------------------


def cuts(data: bytes) -> list[int]:
    """Where a kill may leave a file: at the end of each line, a byte before and after, and anywhere else."""
    ends = [k + 1 for k, byte in enumerate(data) if byte == 10]
    anywhere = random.Random(0).sample(range(len(data)), 12)
    return sorted({0, *ends, *(e - 1 for e in ends), *(e + 1 for e in ends[:-1]), *anywhere})


def test_a_run_resumed_from_any_point_equals_an_unbroken_one(
    tmp_path: Path, unbroken: tuple[RunConfig, dict[str, bytes]]
) -> None:
    same, files = unbroken
    run(same, tmp_path)
    name, data = next(iter(files.items()))
    broken = {}
    for size in cuts(data):
        (tmp_path / name).write_bytes(data[:size])
        try:
            result = run(same, tmp_path, resume=True)
        except EchoError as e:
            broken[size] = f"after line {len(data[:size].splitlines())}: {e}"
            continue
        if episode_files(tmp_path) != files or result.progress.done != 4:
            broken[size] = "the files differ"
    assert not broken


def test_a_run_killed_again_and_again_equals_an_unbroken_one(
    tmp_path: Path, unbroken: tuple[RunConfig, dict[str, bytes]]
) -> None:
    same, files = unbroken
    fork = multiprocessing.get_context("fork")
    draw = random.Random()
    kills = 0
    for _ in range(60):
        player = fork.Process(target=run, args=(same, tmp_path), kwargs={"resume": True, "policy": Sleepy(same.seed)})
        player.start()
        assert player.pid is not None
        player.join(draw.uniform(0.002, 0.055))  # six turns take 0.06 s at least
        if player.is_alive():
            os.kill(player.pid, signal.SIGKILL)
            kills += 1
        player.join()
        for path in tmp_path.rglob("*.jsonl"):
            if b"\n" in path.read_bytes():
                read_episode(path)
        if player.exitcode == 0 or kills >= 12:
            break
    assert kills >= 1
    result = run(same, tmp_path, resume=True)
    assert (result.progress.done, result.failures) == (4, ())
    assert episode_files(tmp_path) == files


def test_two_processes_do_not_resume_one_run_at_a_time(
    tmp_path: Path, unbroken: tuple[RunConfig, dict[str, bytes]]
) -> None:
    """Each would append its own turns, and the files would hold both."""
    same, files = unbroken
    run(same, tmp_path)
    for name, data in files.items():
        (tmp_path / name).write_bytes(b"".join(data.splitlines(keepends=True)[:3]))
    fork = multiprocessing.get_context("fork")
    players = [
        fork.Process(target=run, args=(same, tmp_path), kwargs={"resume": True, "policy": Sleepy(same.seed)})
        for _ in range(2)
    ]
    for player in players:
        player.start()
    for player in players:
        player.join(60)
    assert 0 in [player.exitcode for player in players]
    assert episode_files(tmp_path) == files


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first = run(config(), tmp_path)
    stamps = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*") if f.is_file()}
    again = run(config(), tmp_path, resume=True)
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*") if f.is_file()} == stamps
    assert (again.progress.done, again.progress.successes) == (first.progress.done, first.progress.successes)
    assert again.progress.turns == 0


def test_a_record_that_plays_out_differently_now_is_refused(tmp_path: Path) -> None:
    run(config(), tmp_path)
    path = next(tmp_path.rglob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b'"user":"', b'"user":"Once, ', 1))
    with pytest.raises(RecordError, match="turn 1 plays out differently"):
        run(config(), tmp_path, resume=True)


class Tired(Skilled):
    """Fails in one conversation, as a model behind a network does."""

    id = "skilled"
    works = False

    async def respond(self, observation: Observation) -> str:
        if not self.works and "tugs" in observation.messages[0].text and len(observation.messages) == 5:
            raise RoleFailure("no answer within 60 s")
        return await super().respond(observation)


def test_one_dead_conversation_takes_no_other_along_and_is_resumed(
    tmp_path: Path, unbroken: tuple[RunConfig, dict[str, bytes]]
) -> None:
    same, files = unbroken
    result = run(same, tmp_path, policy=Tired(0))
    assert result.failures == ("career-01: no answer within 60 s",)
    assert (result.progress.done, result.progress.failed) == (4, 1)
    found = {e.header.scenario: e for e in RunFolder(tmp_path / "skilled").episodes()}
    assert [e.outcome is None for e in found.values()] == [True, False, False, False]
    assert len(found["career-01"].turns) == 2
    run(same, tmp_path, resume=True)
    assert episode_files(tmp_path) == files


# ---- run folders ---------------------------------------------------------------------------------------------------


def test_a_run_folder_is_refused_without_a_flag(tmp_path: Path) -> None:
    run(config(), tmp_path)
    files = episode_files(tmp_path)
    with pytest.raises(RecordError, match=r"holds a run already[\s\S]*--resume[\s\S]*--overwrite"):
        run(config(), tmp_path)
    assert episode_files(tmp_path) == files
    run(config(2), tmp_path, overwrite=True)
    assert all(len(e.turns) == 2 for e in RunFolder(tmp_path / "skilled").episodes())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"people": 3}, "limit"),
        ({"turns": 9}, "world.max_turns"),
        ({"policy_options": {"seed_": 1}}, "policy_options.seed_"),
        ({"scenarios": ("family-01",)}, "scenarios"),
        ({"episodes": 2}, "episodes"),
    ],
)
def test_resuming_another_run_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    run(config(2), tmp_path)
    files = episode_files(tmp_path)
    with pytest.raises(RecordError, match=rf"holds another run; different: .*{named}"):
        run(config(**{"turns": 2} | changes), tmp_path, resume=True, policy=Skilled(0))
    assert episode_files(tmp_path) == files


def test_resuming_with_another_version_or_scenario_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "skilled")
    header = new_header({"a": 1}, {"career-01": "1234"})
    folder.create(header)
    assert folder.create(header.model_copy(update={"started": "later"}), resume=True) == header
    for update in ({"echo_env": "0.0.9"}, {"scenarios": {"career-01": "4321"}}, {"config": {}}):
        with pytest.raises(RecordError, match="holds another run"):
            folder.create(header.model_copy(update=update), resume=True)


def test_episodes_of_a_run_that_is_gone_are_not_taken_for_this_one(tmp_path: Path) -> None:
    """A deletion that was broken off, or a run.json lost: what lies there was played with other settings."""
    run(config(2), tmp_path)
    (tmp_path / "skilled" / "run.json").unlink()
    for flags in ({}, {"overwrite": True}):
        try:
            run(config(3), tmp_path, **flags)
        except RecordError:
            continue  # a refusal is fine too
        assert all(len(e.turns) == 3 for e in RunFolder(tmp_path / "skilled").episodes()), flags
        break


def test_the_run_header_is_enough_to_run_it_again(tmp_path: Path) -> None:
    same = config(3, 1, policy_options={}, seed=5)
    run(same, tmp_path / "a")
    header = RunFolder(tmp_path / "a" / "skilled").header()
    assert header.scenarios == {"career-01": get_scenario("career-01").digest}
    assert header.python.startswith("3.")
    assert {"numpy", "pydantic", "gymnasium", "wordllama"} <= set(header.packages)
    run(RunConfig.model_validate(header.config), tmp_path / "b")
    assert episode_files(tmp_path / "a") == episode_files(tmp_path / "b")
    assert RunHeader.model_validate_json(header.model_dump_json()) == header
    assert not list(tmp_path.rglob("*.part"))


def test_the_episode_header_says_what_was_played(tmp_path: Path) -> None:
    run(config(3, 1, seed=5), tmp_path)
    header = next(RunFolder(tmp_path / "skilled").episodes()).header
    assert isinstance(header, EpisodeHeader)
    scenario = get_scenario("career-01")
    assert (header.scenario, header.scenario_hash, header.p0) == (scenario.id, scenario.digest, scenario.p0)
    assert (header.policy, header.scorer, header.recipe, header.max_turns) == ("skilled", "strict-2", "epm-1", 3)
    assert (header.judge, header.actor, header.director) == (f"{EmbeddedJudge.id}+gate-1", "embedded-2", "embedded-1")


def test_runs_are_found_or_missed(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no run[\s\S]*echo-env run"):
        find_runs(tmp_path)
    for name in ("b", "a"):
        RunFolder(tmp_path / name).create(new_header({}, {}))
    assert [r.path.name for r in find_runs(tmp_path)] == ["a", "b"]
    assert [r.path for r in find_runs(tmp_path / "a")] == [tmp_path / "a"]
    for broken in ("{", "[]", '{"mood":1}', ""):
        (tmp_path / "a" / "run.json").write_text(broken)
        with pytest.raises(RecordError, match="no run header"):
            RunFolder(tmp_path / "a").header()


# ---- a full disk ---------------------------------------------------------------------------------------------------


class _Full(io.FileIO):
    """A file on a disk with so many bytes left: takes what fits, then fails like the system does."""

    left = 0

    def write(self, data: Any) -> int:
        fits = bytes(data[: type(self).left])
        if not fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        type(self).left -= len(fits)
        return super().write(fits) or 0


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Callable[[], None]]:
    """A folder whose disk fills up, simulated; and a call that frees it."""
    _Full.left = 20_000
    ordinary = Path.open

    def limited(self: Path, mode: str = "r", buffering: int = -1, **kwargs: Any) -> Any:
        if not set(mode) & set("xa"):
            return ordinary(self, mode, buffering, **kwargs)
        raw = _Full(self, mode.replace("b", ""))
        if "b" in mode:
            return raw if buffering == 0 else io.BufferedWriter(raw)
        return io.TextIOWrapper(io.BufferedWriter(raw), **kwargs)

    monkeypatch.setattr(Path, "open", limited)
    return tmp_path, lambda: monkeypatch.setattr(Path, "open", ordinary)


@pytest.fixture
def tiny_mount(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A real file system of 32 KiB, where we may mount one; and a call that enlarges it."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)]
    try:
        allowed = subprocess.run(mounted, capture_output=True, timeout=10).returncode == 0
    except OSError:
        allowed = False
    if not allowed:
        pytest.skip("no right to mount a file system here")
    try:
        yield place, lambda: subprocess.run(["mount", "-o", "remount,size=4m", str(place)], check=True)  # type: ignore[misc]
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill_and_resume(
    out: Path, enlarge: Callable[[], None], same: RunConfig, files: dict[str, bytes], played: Callable[[], RunResult]
) -> None:
    with pytest.raises(RecordError, match=r"cannot be written: No space left[\s\S]*--resume"):
        played()
    left = episode_files(out)
    assert left
    for name, data in left.items():
        whole = data[: data.rfind(b"\n") + 1]
        assert files[name].startswith(whole), "something that was written is lost or changed"
        if whole:
            read_episode(out / name)
    assert sum(data.count(b"\n") for data in left.values()) >= 8
    enlarge()
    result = run(same, out, resume=True)
    assert result.progress.done == 4
    assert episode_files(out) == files


def test_a_disk_that_fills_up_loses_nothing(
    small_disk: tuple[Path, Callable[[], None]], unbroken: tuple[RunConfig, dict[str, bytes]]
) -> None:
    out, enlarge = small_disk
    fill_and_resume(out, enlarge, *unbroken, lambda: run(unbroken[0], out))


def test_a_file_system_that_fills_up_loses_nothing(
    tiny_mount: tuple[Path, Callable[[], None]], unbroken: tuple[RunConfig, dict[str, bytes]]
) -> None:
    out, enlarge = tiny_mount
    fill_and_resume(out, enlarge, *unbroken, lambda: run(unbroken[0], out))


def test_a_writer_on_a_full_disk_can_still_be_closed(small_disk: tuple[Path, Callable[[], None]]) -> None:
    _Full.left = 1_000
    golden = read_episode(GOLDEN)

    def write_all() -> None:
        with EpisodeWriter(small_disk[0] / "e.jsonl", golden.header) as writer:
            for turn in golden.turns:
                writer.append(turn)

    with pytest.raises(RecordError, match="No space left"):
        write_all()
    assert read_episode(small_disk[0] / "e.jsonl").turns == ()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "skilled").write_text("a file")
    with pytest.raises(RecordError, match="skilled cannot be written"):
        run(config(), tmp_path)


# ---- secrets -------------------------------------------------------------------------------------------------------


def test_keys_of_the_environment_are_in_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    run(config(), tmp_path)
    written = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert len(written) == 3
    assert not [f for f in written if SECRET.encode() in f.read_bytes()]


def test_a_fault_that_quotes_a_key_is_recorded_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    run(config(judge=f"{__name__}:Telling"), tmp_path)
    episode = next(RunFolder(tmp_path / "skilled").episodes())
    assert episode.turns[0].failure.startswith("judge: ConnectionError: 401")
    assert not [f for f in tmp_path.rglob("*") if f.is_file() and SECRET.encode() in f.read_bytes()]


# ---- judged anew ---------------------------------------------------------------------------------------------------


def test_the_same_judge_finds_the_same_again(tmp_path: Path) -> None:
    run(config(6), tmp_path / "runs")
    folders = rejudging.rejudge_runs(tmp_path / "runs", tmp_path / "again", "embedded")
    assert [f.path for f in folders] == [tmp_path / "again" / "skilled"]
    assert episode_files(tmp_path / "again") == episode_files(tmp_path / "runs")
    assert folders[0].header().config["rejudged_by"] == "embedded"
    with pytest.raises(RecordError, match="holds a run already"):
        rejudging.rejudge_runs(tmp_path / "runs", tmp_path / "again", "embedded")


def test_a_judge_that_fails_anew_leaves_no_zero(tmp_path: Path) -> None:
    run(config(4, 1), tmp_path / "runs")
    rejudging.rejudge_runs(tmp_path / "runs", tmp_path / "again", f"{__name__}:Mute")
    old = next(RunFolder(tmp_path / "runs" / "skilled").episodes())
    new = next(RunFolder(tmp_path / "again" / "skilled").episodes())
    assert (new.header.judge, new.header.rubric) == ("mute-1", "none")
    for before, after in zip(old.turns, new.turns, strict=True):
        assert (after.judgement, after.epm, after.reward, after.reward_parts) == (None, None, None, {})
        assert after.failure == "judge: TimeoutError: no answer within 60 s"
        assert (after.user, after.reply, after.direction) == (before.user, before.reply, before.direction)
    assert new.outcome == old.outcome


def test_faults_of_the_other_roles_outlive_a_new_judgement() -> None:
    golden = read_episode(GOLDEN)
    turns = [t.model_copy(update={"failure": "director: KeyError: 'function'"}) for t in golden.turns]
    scenario = get_scenario("career-01")
    header = golden.header.model_copy(update={"scenario_hash": scenario.digest})
    episode = golden.model_copy(update={"header": header, "turns": tuple(turns)})
    again = asyncio.run(rejudging.rejudge(episode, EmbeddedJudge()))
    assert {t.failure for t in again.turns} == {"director: KeyError: 'function'"}


def test_the_old_judges_faults_do_not_outlive_it() -> None:
    golden = read_episode(GOLDEN)
    old = "judge: HTTPError: 500; try again; later; director: KeyError: 'function'"
    header = golden.header.model_copy(update={"scenario_hash": get_scenario("career-01").digest})
    turns = tuple(t.model_copy(update={"failure": old}) for t in golden.turns)
    episode = golden.model_copy(update={"header": header, "turns": turns})
    again = asyncio.run(rejudging.rejudge(episode, EmbeddedJudge()))
    assert {t.failure for t in again.turns} == {"director: KeyError: 'function'"}


def test_a_scenario_that_has_changed_is_not_judged_anew() -> None:
    golden = read_episode(GOLDEN)
    header = golden.header.model_copy(update={"scenario_hash": "0" * 16})
    with pytest.raises(RecordError, match=r"scenario career-01 .*0000000000000000"):
        asyncio.run(rejudging.rejudge(golden.model_copy(update={"header": header}), EmbeddedJudge()))


def test_unfinished_files_are_read_and_not_judged_anew(tmp_path: Path) -> None:
    run(config(), tmp_path / "runs")
    path = sorted((tmp_path / "runs").rglob("*.jsonl"))[0]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    found = list(RunFolder(tmp_path / "runs" / "skilled").episodes())
    assert [e.outcome is None for e in found] == [True, False]
    rejudging.rejudge_runs(tmp_path / "runs", tmp_path / "again", "embedded")
    assert len(episode_files(tmp_path / "again")) == 1


def test_writing_is_not_slow(tmp_path: Path) -> None:
    """A turn is flushed at once; that must not cost more than playing it."""
    golden = read_episode(GOLDEN)
    start = time.perf_counter()
    with EpisodeWriter(tmp_path / "e.jsonl", golden.header) as writer:
        for _ in range(1_000):
            writer.append(golden.turns[0])
    assert time.perf_counter() - start < 0.5
    assert record.SCHEMA_VERSION == 1
