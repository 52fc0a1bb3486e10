"""Synthesised conversations: meta-prompts, the three agents, the file they end in, the estimate, the command."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from faultserver import Call, FaultServer, Said, always, mixed, transient
from hypothesis import given
from hypothesis import strategies as st

from echo_env import cli
from echo_env.agents import synthesis
from echo_env.agents.llm.asks import Answer, Ask, LlmFailure
from echo_env.agents.llm.client import LlmClient
from echo_env.agents.llm.config import ModelConfig, models_config
from echo_env.agents.synthesis import recorded
from echo_env.agents.synthesis.conversations import Conversation, ConversationFile, Progress, write_all
from echo_env.agents.synthesis.estimate import Estimate, estimate, price_of, tokens_of
from echo_env.agents.synthesis.facets import draw, facets
from echo_env.errors import ConfigError, RecordError
from echo_env.profiles import get_scenario
from echo_env.types import Usage

MODELS = """
default: {{model: hosted_vllm/any, api_base: "{url}", retries: {retries}, timeout: 5}}
cache: {{folder: {folder}, mode: {mode}}}
"""


def director_says(call: Call) -> Said:
    """A director that stays once, then moves on, and closes as soon as it may; the others say what is like nothing."""
    if not call.tools:
        return None
    name = (
        "close" if "close" in call.tools else "move_on" if "move_on" in call.tools and call.body["seed"] % 2 else "stay"
    )
    return {"name": name, "arguments": {"direction": "They come out with it."}}


def models_file(folder: Path, server: FaultServer, *, retries: int = 2, mode: str = "'auto'", cache: str = "c") -> Path:
    file = folder / "models.yaml"
    file.write_text(MODELS.format(url=server.url, retries=retries, folder=folder / cache, mode=mode))
    return file


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_env.agents.llm.client.FIRST_WAIT", 0.002)


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*args: object, stdin: io.StringIO | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["echo-env", "synthesize", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", stdin or io.StringIO())
        capsys.readouterr()
        try:
            sys.exit(cli.main())  # type: ignore[func-returns-value]
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 0
        return (code, *capsys.readouterr())

    return call


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass
class Scripted(LlmClient):
    """A client that answers by a function, without a network."""

    script: Callable[[Ask], str | tuple[str, str]]
    asks: list[Ask] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(models_config("any"))

    async def ask(self, ask: Ask, model: ModelConfig | None = None) -> Answer:
        self.asks.append(ask)
        said = self.script(ask)
        if isinstance(said, tuple):
            assert said[0] in [t.name for t in ask.tools]
            return Answer("", synthesis.Direction(direction=said[1]), said[0], "", Usage(calls=1))
        return Answer(said, None, "", "", Usage(calls=1, prompt_tokens=10, completion_tokens=2, cost=0.5))


def talkative(ask: Ask) -> str | tuple[str, str]:
    return ("stay", "Go on.") if ask.tools else f"{ask.role} {len(ask.messages[-1].content)} {len(ask.messages)}"


# ---- meta-prompts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_conversation_has_instructions_of_its_own(language: str) -> None:
    plans = [draw(language, 5, i) for i in range(600)]
    assert plans[:50] == [draw(language, 5, i) for i in range(50)]
    assert plans[:50] != [draw(language, 6, i) for i in range(50)]
    assert len({p.companion_system().content for p in plans}) >= 0.99 * 600
    assert len({p.user_messages(p.topics[0], "", "")[0].content for p in plans}) == 600
    assert len({p.id for p in plans}) == 600
    for plan in plans:
        assert "{" not in plan.companion_system().content
        assert len(set(plan.topics)) == 3
        assert 1 < plan.shortest < plan.longest


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_value_of_a_facet_comes_as_often_as_any_other(language: str) -> None:
    file = facets(language)
    for name in ("persona", "stage", "tone", "typing", "style", "habit", "length", "companion", "frame"):
        values = getattr(file, name)
        drawn = Counter(getattr(draw(language, 0, i), name) for i in range(3 * len(values)))
        assert set(drawn.values()) == {3}, name
        assert set(drawn) == set(values)


def test_only_a_companion_that_has_met_the_person_knows_of_them() -> None:
    for plan in (draw("en", 0, i) for i in range(60)):
        assert (plan.persona.known in plan.companion_system().content) == plan.stage.knows
        assert plan.persona.who not in plan.companion_system().content


def test_both_languages_hold_the_same_facets() -> None:
    en, zh = facets("en"), facets("zh")
    for name in ("persona", "stage", "topic", "tone", "typing", "style", "habit", "length", "companion", "frame"):
        assert len(getattr(en, name)) == len(getattr(zh, name)), name
    assert all(any("\u4e00" <= c <= "\u9fff" for c in draw("zh", 0, i).companion_system().content) for i in range(9))
    with pytest.raises(ConfigError, match="unknown language 'fr'"):
        draw("fr", 0, 0)


# ---- the three agents ----------------------------------------------------------------------------------------------


def test_the_companion_is_asked_with_what_the_line_holds_and_nothing_else() -> None:
    client, plan = Scripted(talkative), draw("en", 0, 3)
    made = asyncio.run(synthesis.converse(client, plan))
    said = [(m.role, m.content) for m in made.messages]
    assert [r for r, _ in said] == ["system", *["user", "assistant"] * made.meta.turns]
    asked = [[(m.role, m.content) for m in a.messages] for a in client.asks if a.role == "companion"]
    assert asked == [said[: 2 * k + 2] for k in range(made.meta.turns)]
    assert made.meta.turns == plan.longest
    assert made.meta.end == "length"
    assert made.meta.usage == Usage(
        calls=len(client.asks), prompt_tokens=20 * plan.longest, completion_tokens=4 * plan.longest, cost=plan.longest
    )


def test_the_director_closes_and_the_person_takes_leave() -> None:
    def closes(ask: Ask) -> str | tuple[str, str]:
        names = [t.name for t in ask.tools]
        return ("close" if "close" in names else "stay", "Their bus comes.") if names else str(talkative(ask))

    client, plan = Scripted(closes), draw("zh", 0, 4)
    made = asyncio.run(synthesis.converse(client, plan))
    assert made.meta.turns == plan.shortest
    assert made.meta.end == "director"
    assert "Their bus comes." in [a for a in client.asks if a.role == "user"][-1].messages[-1].content
    assert facets("zh").cues.open in client.asks[0].messages[-1].content
    assert len([a for a in client.asks if a.role == "director"]) == plan.shortest - 1


def test_the_director_moves_through_the_topics_and_no_further() -> None:
    def moves(ask: Ask) -> str | tuple[str, str]:
        names = [t.name for t in ask.tools]
        return ("move_on" if "move_on" in names else "stay", "On.") if names else str(talkative(ask))

    client = Scripted(moves)
    plan = next(p for p in (draw("en", 0, i) for i in range(9)) if p.shortest > 4)
    asyncio.run(synthesis.converse(client, plan))
    now = [a.messages[-1].content.split("\n")[0] for a in client.asks if a.role == "user"]
    assert now == [f"On their mind now: {t}." for t in (*plan.topics[:2], *[plan.topics[2]] * (plan.longest - 2))]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('"I am tired."', "I am tired."),
        ("Person: I am tired.", "I am tired."),
        ("\u201cI am tired.\u201d", "I am tired."),
        ('"No," he said, "never."', '"No," he said, "never."'),
        ("  I am: tired. ", "I am: tired."),
    ],
)
def test_names_and_quotation_marks_around_a_message_go(text: str, kept: str) -> None:
    first = iter([text])
    client = Scripted(
        lambda ask: talkative(ask) if ask.tools or ask.role == "companion" else next(first, str(ask.seed))
    )
    assert asyncio.run(synthesis.converse(client, draw("en", 0, 0))).messages[1].content == kept


@pytest.mark.parametrize("bad", ["", "Hm.\nCompanion: I see.\nPerson: Yes.", '<data name="talk">', "SAME"])
def test_what_is_no_message_is_asked_for_once_more_and_then_fails(bad: str) -> None:
    def once(ask: Ask) -> str | tuple[str, str]:
        return talkative(ask) if ask.tools or ask.draw or ask.role == "user" else bad

    client = Scripted(once)
    made = asyncio.run(synthesis.converse(client, draw("en", 0, 0)))
    redrawn = [a for a in client.asks if a.draw]
    assert len(redrawn) == made.meta.turns - (bad == "SAME")  # the first "SAME" is new
    assert made.meta.usage.calls == len(client.asks)
    with pytest.raises(LlmFailure, match="companion: "):
        asyncio.run(synthesis.converse(Scripted(lambda a: "SAME" if not a.tools else talkative(a)), draw("en", 0, 0)))


# ---- the file ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two() -> list[Conversation]:
    return [asyncio.run(synthesis.converse(Scripted(talkative), draw("en", 0, i))) for i in range(2)]


def test_a_conversation_is_one_whole_line(two: list[Conversation], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "talks.jsonl"
    with ConversationFile(path) as file:
        for one in two:
            file.append(one)
    assert [Conversation.model_validate(line) for line in lines(path)] == two
    with pytest.raises(RecordError, match="exists already"):
        ConversationFile(path)
    with ConversationFile(path, resume=True) as file:
        assert file.ids == {"en-0-00000", "en-0-00001"}
        with pytest.raises(RecordError, match="another process"):
            ConversationFile(path, resume=True)


@given(cut=st.integers(1, 400))
def test_a_torn_last_line_is_cut_and_nothing_else(two: list[Conversation], tmp_path_factory: Any, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "talks.jsonl"
    whole = "".join(one.model_dump_json() + "\n" for one in two).encode()
    path.write_bytes(whole[:-cut])
    with ConversationFile(path, resume=True) as file:
        assert file.ids == {"en-0-00000"}
        file.append(two[1])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", ["{}", "[1]", "no json", '{"meta": {"id": 3}}'])
def test_a_file_of_something_else_is_left_alone(two: list[Conversation], tmp_path: Path, line: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(two[0].model_dump_json() + f"\n{line}\n{{torn")
    before = path.read_bytes()
    with pytest.raises(RecordError, match="line 2: not a conversation"):
        ConversationFile(path, resume=True)
    assert path.read_bytes() == before


def test_a_full_disk_is_told() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    file = ConversationFile.__new__(ConversationFile)
    file.path, file.ids, file._file = full, set(), full.open("wb", buffering=0)
    with file, pytest.raises(RecordError, match="cannot be written"):
        file.append(asyncio.run(synthesis.converse(Scripted(talkative), draw("en", 0, 0))))


# ---- through a server that fails -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer(answer=director_says) as running:
        yield running


def test_half_of_the_calls_fail_and_every_conversation_comes(
    server: FaultServer, tmp_path: Path, echo: Callable[..., tuple[int, str, str]]
) -> None:
    server.behave = mixed({"500": 0.2, "429": 0.1, "drop": 0.1, "cut": 0.1}, tries=1)
    server.retry_after = 0.01
    models = models_file(tmp_path, server)
    out = tmp_path / "talks.jsonl"
    code, told, err = echo("--out", out, "--models", models, "--count", 4, "--concurrency", 3)
    assert code == 0, err
    assert "4 of 4 conversations" in told
    assert "4 conversations: about" in err
    assert {line["meta"]["id"] for line in lines(out)} == {f"en-0-0000{i}" for i in range(4)}
    server.behave = always("ok")
    again = tmp_path / "again.jsonl"
    fresh = models_file(tmp_path, server, cache="other")
    assert echo("--out", again, "--models", fresh, "--count", 4, "--concurrency", 1)[0] == 0
    words = {line["meta"]["id"]: line["messages"] for line in lines(out)}
    assert {line["meta"]["id"]: line["messages"] for line in lines(again)} == words
    for line in lines(out):
        plan = draw("en", 0, line["meta"]["number"])
        assert plan.shortest <= line["meta"]["turns"] <= plan.longest
        assert line["meta"]["facets"]["persona"] == plan.persona.name
        assert line["messages"][0]["content"] == plan.companion_system().content


def test_failures_are_counted_and_never_written_and_resumed_from_the_cache(
    server: FaultServer, tmp_path: Path, echo: Callable[..., tuple[int, str, str]]
) -> None:
    server.behave = mixed({"500": 0.03}, seed=1)
    models, out = models_file(tmp_path, server, retries=0), tmp_path / "talks.jsonl"
    code, told, err = echo("--out", out, "--models", models, "--count", 8)
    there = lines(out)
    assert code == 3
    assert 0 < len(there) < 8
    assert f"{len(there)} of 8 conversations" in told
    assert f"{8 - len(there)} failed and were not written" in err
    assert "failed: en-0-000" in err
    server.behave = always("ok")
    before = len(server.calls)
    assert echo("--out", out, "--models", models, "--count", 8, "--resume")[0] == 0
    assert lines(out)[: len(there)] == there
    assert len({line["meta"]["id"] for line in lines(out)}) == 8
    missing = sum(line["meta"]["usage"]["calls"] for line in lines(out)[len(there) :])
    assert len(server.calls) - before < missing, "what was answered before must not be asked again"
    done = len(server.calls)
    assert echo("--out", out, "--models", models, "--count", 8, "--resume")[0] == 0
    assert len(server.calls) == done


def test_a_run_that_is_killed_goes_on(tmp_path: Path, echo: Callable[..., tuple[int, str, str]]) -> None:
    with FaultServer(answer=director_says, latency=0.01) as server:
        models = models_file(tmp_path, server)
        out = tmp_path / "talks.jsonl"
        args = ["--out", str(out), "--models", str(models), "--count", "6", "--concurrency", "2", "--resume"]
        command = [sys.executable, "-m", "echo_env.cli", "synthesize", *args]
        nowhere = subprocess.DEVNULL
        running = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, cwd=tmp_path)
        deadline = time.monotonic() + 60
        while not (out.exists() and out.read_bytes().count(b"\n") >= 2):
            assert running.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        running.wait()
        there = [json.loads(line) for line in out.read_bytes().split(b"\n")[:-1]]
        assert 2 <= len(there) < 6
        with out.open("ab") as file:
            file.write(b'{"messages":[{"role":"system","con')
        server.latency = 0.0
        before = Counter(json.dumps(c.body, sort_keys=True) for c in server.calls)
        assert echo(*args)[0] == 0
        after = Counter(json.dumps(c.body, sort_keys=True) for c in server.calls) - before
    assert lines(out)[: len(there)] == there
    assert {line["meta"]["id"] for line in lines(out)} == {f"en-0-{i:05d}" for i in range(6)}
    assert sum((after & before).values()) <= 2, "only what was under way at the kill may be asked twice"


def test_a_missing_key_ends_it_at_once(tmp_path: Path, echo: Callable[..., tuple[int, str, str]]) -> None:
    models = tmp_path / "models.yaml"
    models.write_text("default: {model: hosted_vllm/x, api_base: 'http://127.0.0.1:9/v1', api_key_env: NO_SUCH_KEY}\n")
    code, _, err = echo("--out", tmp_path / "t.jsonl", "--models", models, "--count", 50, "--yes")
    assert code == 1
    assert "NO_SUCH_KEY is not set" in err
    assert (tmp_path / "t.jsonl").read_bytes() == b""


# ---- the estimate --------------------------------------------------------------------------------------------------


def test_tokens_are_counted_about_right() -> None:
    assert tokens_of("a" * 400) == 100
    assert tokens_of("今天好累") == 4


def test_the_sums_by_hand() -> None:
    """One conversation of n = 5 exchanges on average (4 to 6), answers of 35, 60 and 35 tokens.

    Calls: 5 of the person, 5 of the companion, 4 of the director. The talk before them: 95 * (0+1+2+3+4) = 950 for
    each speaker; the director has read 95 * (1+2+3+4) = 950 as well. On top of it each call reads its own prompt.
    """
    plan = next(p for p in (draw("en", 0, i) for i in range(9)) if (p.shortest, p.longest) == (4, 6))
    found = estimate([plan], models_config("any@http://127.0.0.1:9"))
    own = [
        tokens_of("".join(m.content for m in plan.user_messages(plan.topics[0], "", ""))) + 35,
        tokens_of(plan.companion_system().content) + 35,
        tokens_of("".join(m.content for m in plan.director_messages(0, 1, "", ""))) + 150,
    ]
    read = round(5 * own[0] + 5 * own[1] + 4 * own[2] + 3 * 950)
    assert found == Estimate(
        conversations=1, calls=14, prompt_tokens=read, completion_tokens=5 * 35 + 5 * 60 + 4 * 35, cost=0.0
    )


def test_the_estimate_holds_beside_what_was_asked(server: FaultServer, tmp_path: Path) -> None:
    """Answers as long as is assumed, a director that mostly stays: calls within a fifth, tokens within a third."""

    def says(call: Call) -> Said:
        if call.tools:
            arguments = {"direction": "d" * 4 * 35}
            return {
                "name": "close" if call.number % 3 == 0 and "close" in call.tools else "stay",
                "arguments": arguments,
            }
        size = 4 * (35 if "On their mind now" in call.last else 60)
        return f"{call.number} {len(call.messages)} ".ljust(size, "x")

    server.behave, before = always("ok"), server.answer
    server.answer = says
    client = LlmClient(models_config(str(models_file(tmp_path, server, mode="'off'"))))
    plans = [draw("en", 1, i) for i in range(12)]
    tallies: list[Progress] = []
    with ConversationFile(tmp_path / "t.jsonl") as file:
        assert not asyncio.run(write_all(synthesis.jobs(client, plans), file, concurrency=4, tell=tallies.append))
    server.answer = before
    expected, used = estimate(plans, client.models), tallies[-1].usage
    assert [p.done for p in tallies] == list(range(1, 13))
    assert abs(expected.calls - used.calls) < used.calls / 5
    assert abs(expected.prompt_tokens - used.prompt_tokens) < used.prompt_tokens / 3
    assert abs(expected.completion_tokens - used.completion_tokens) < used.completion_tokens / 3


def test_a_price_is_known_or_said_to_be_unknown() -> None:
    own = ModelConfig(model="openai/gpt-4o-mini", api_base="http://127.0.0.1:9/v1")
    assert price_of(own) == (0.0, 0.0)
    known = price_of(ModelConfig(model="gpt-4o-mini"))
    assert known is not None
    assert 0 < known[0] < known[1] < 1e-4
    assert price_of(ModelConfig(model="openai/gpt-4o-mini")) == known
    assert price_of(ModelConfig(model="nobody/knows")) is None
    plans = [draw("en", 0, i) for i in range(300)]
    priced, unknown = estimate(plans, models_config("gpt-4o-mini")), estimate(plans, models_config("nobody/knows"))
    assert priced.cost is not None
    total = priced.prompt_tokens * known[0] + priced.completion_tokens * known[1]
    assert priced.cost == pytest.approx(total, rel=1e-3)
    assert (unknown.cost, unknown.unpriced) == (None, ("nobody/knows",))
    assert unknown.calls == priced.calls


class Terminal(io.StringIO):
    """A standard input at which somebody sits."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("model", ["gpt-4o-mini", "nobody/knows"])
def test_nothing_that_may_cost_starts_unasked(
    tmp_path: Path, echo: Callable[..., tuple[int, str, str]], model: str
) -> None:
    out = tmp_path / "t.jsonl"
    for stdin, told in ((None, "give --yes"), (Terminal("n\n"), "Start?"), (Terminal(""), "Start?")):
        code, _, err = echo("--out", out, "--models", model, "--count", 5, stdin=stdin)
        assert code == 1
        assert told in err
        assert ("unknown price (nobody/knows)" if model == "nobody/knows" else "about $0.0") in err
        assert "Traceback" not in err
    assert not out.read_bytes()


def test_a_dry_run_shows_three_examples_and_asks_nobody(
    server: FaultServer, tmp_path: Path, echo: Callable[..., tuple[int, str, str]]
) -> None:
    before, out = len(server.calls), tmp_path / "t.jsonl"
    code, told, _ = echo("--out", out, "--models", models_file(tmp_path, server), "--language", "zh", "--dry-run")
    assert code == 0
    assert told.startswith("100 conversations: about ")
    for i in range(3):
        assert draw("zh", 0, i).companion_system().content in told
    assert "zh-0-00003" not in told
    assert not out.exists()
    assert len(server.calls) == before


def test_somebody_who_says_yes_starts_it(
    server: FaultServer, tmp_path: Path, echo: Callable[..., tuple[int, str, str]]
) -> None:
    server.behave = transient("500")
    models = models_file(tmp_path, server)
    code, _, err = echo("--out", tmp_path / "t.jsonl", "--models", models, "--count", 1, stdin=Terminal("y\n"))
    assert code == 0, err
    assert len(lines(tmp_path / "t.jsonl")) == 1


# ---- recorded conversations ----------------------------------------------------------------------------------------


@given(shares=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 1000), min_size=1), count=st.integers(0, 5000))
def test_largest_remainder(shares: dict[str, int], count: int) -> None:
    mix = {name: Fraction(n, 100) for name, n in shares.items()}
    found = recorded.counts_of(mix, count)
    exact = {name: weight * count / sum(mix.values()) for name, weight in mix.items()}
    assert sum(found.values()) == count
    assert all(abs(found[name] - exact[name]) < 1 for name in mix)
    remainders = {name: exact[name] - exact[name].__floor__() for name in mix}
    up = [remainders[n] for n in mix if found[n] > exact[n]]
    down = [remainders[n] for n in mix if found[n] <= exact[n]]
    assert not up or not down or min(up) >= max(down)


def test_counts_by_hand() -> None:
    """10 conversations at 0.25, 0.25, 0.5: 2.5, 2.5, 5; one is left over and goes to the first named."""
    mix = {"a": Fraction("0.25"), "b": Fraction("0.25"), "c": Fraction("0.5")}
    assert recorded.counts_of(mix, 10) == {"a": 3, "b": 2, "c": 5}


def test_a_mix_is_recorded_exactly_and_the_same_again(
    tmp_path: Path, echo: Callable[..., tuple[int, str, str]]
) -> None:
    out, mix = tmp_path / "a.jsonl", ["--mix", "skilled=0.2,template=0.3,silent=0.5", "--count", 11, "--seed", 3]
    code, told, err = echo("--out", out, *mix, "--max-turns", 8)
    assert code == 0, err
    assert "skilled 2, template 3, silent 6" in err  # 2.2, 3.3, 5.5
    assert "11 of 11 conversations" in told
    found = lines(out)
    assert Counter(line["meta"]["models"]["companion"].partition("-")[0] for line in found) == {
        "skilled": 2, "template": 3, "silent": 6,
    }  # fmt: skip
    for line in found:
        meta = line["meta"]
        assert get_scenario(meta["facets"]["scenario"]).split == "train"
        assert [m["role"] for m in line["messages"]] == ["system", *["user", "assistant"] * meta["turns"]]
        assert len(meta["rewards"]) == meta["turns"] <= 8
        assert meta["closing"] or meta["end"] == "budget"
    assert len({line["meta"]["facets"]["scenario"] for line in found}) == 11
    whole = out.read_bytes()
    out.write_bytes(whole[:-700])
    assert echo("--out", out, *mix, "--max-turns", 8, "--resume")[0] == 0
    assert out.read_bytes() == whole
    code, _, err = echo("--out", out, *mix[:-2], "--seed", 4, "--resume")
    assert code == 1
    assert "another mix, count or seed" in err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--policy", "skilled", "--split", "benchmark"], "is for measuring"),
        (["--policy", "skilled", "--split", "dev"], "is for measuring"),
        (["--policy", "skiled"], "did you mean 'skilled'"),
        (["--policy", "skilled", "--language", "zh"], "nobody who speaks 'zh'"),
        ([], "give a mix"),
        (["--mix", "skilled=0.5", "--policy", "silent"], "give a mix"),
        (["--mix", "skilled"], "name=share"),
        (["--mix", "skilled=x"], "name=share"),
        (["--mix", "skilled=0.5,silent=0"], "above 0"),
        (["--mix", "skilled=-1"], "above 0"),
        (["--models", "any@http://127.0.0.1:9", "--mix", "skilled=1"], "go with --models embedded"),
        (["--models", "nowhere.yaml"], "no such file"),
        (["--models", "any@http://127.0.0.1:9", "--language", "fr"], "unknown language"),
    ],
)
def test_a_mistake_is_told_and_writes_nothing(
    tmp_path: Path, echo: Callable[..., tuple[int, str, str]], args: list[str], told: str
) -> None:
    code, _, err = echo("--out", tmp_path / "t.jsonl", "--count", 2, *args)
    assert code == 1
    assert err.count("error: ") == 1
    assert told in err
    assert not (tmp_path / "t.jsonl").exists()
