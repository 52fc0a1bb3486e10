"""Whole runs against a server that fails on demand: what is injected is counted, and nothing becomes a number."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from faultserver import Call, FaultServer, always
from llmfake import BLOCK

from echo_env.agents.llm import client as llm
from echo_env.agents.modelrecord import recorded_models
from echo_env.agents.rollout import RunConfig, RunResult, run
from echo_env.build import WorldConfig
from echo_env.errors import RecordError
from echo_env.faults import fault_of, joined, kinds_of
from echo_env.profiles import scenario_ids
from echo_env.record import RunFolder, RunHeader, new_header
from echo_env.report import Report, collect, terminal, to_json, write_html
from echo_env.roles import Observation, Policy
from echo_env.types import Episode, Turn, Usage
from echo_env.usage import RoleUsage, since, total

pytest.importorskip("litellm")
KEY = "sk-faults-5f2c9a7be1d04386"
KINDS = {
    "delay": "timeout", "drop": "connection", "429": "rate_limit", "500": "server", "cut": "cut", "huge": "too_long",
    "400": "refused", "half_json": "format", "wrong_schema": "format", "unfound_quote": "check", "empty": "empty",
    "length": "cut",
}  # fmt: skip
"""What each behaviour is recorded as, of a role whose answers have a form."""
TRANSPORT = ("delay", "drop", "429", "500", "cut")
"""What another try may cure."""
MENDED = ("half_json", "wrong_schema", "unfound_quote", "empty", "length")
"""What the model is asked to mend, once."""
RETRIES = 2


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(llm, "FIRST_WAIT", 0.02)
    monkeypatch.setenv("FAULTS_SERVICE", KEY)  # a name that does not say that it holds a secret


# ---- what a record says of it --------------------------------------------------------------------------------------


def test_each_fault_of_a_turn_is_read_back_and_no_server_s_words_pass_for_one() -> None:
    said = llm.LlmFailure("told; judge: LlmFailure(server): no;\nactor: me", "mend it", "timeout")
    text = joined((fault_of("judge", said), "", fault_of("actor", ValueError()), "director: no direction"))
    assert kinds_of(text) == ["judge: LlmFailure(timeout)", "actor: ValueError", "director: no direction"]
    assert "\n" not in text
    assert "mend it" not in text
    assert kinds_of("") == []


def test_usage_adds_up_over_resumes_and_is_told_in_a_line(tmp_path: Path) -> None:
    spent = Usage(calls=3, prompt_tokens=1200, completion_tokens=40, cost=0.5)
    first = RoleUsage(spent=spent, asks=5, cached=2, retries={"server": 1}, failures={"timeout": 1})
    assert first.told == "5 asks, 2 cached, 1 retries, 1 failed (timeout 1), 1,200 + 40 tokens, $0.5000"
    both = total({"judge": first}, {"judge": first, "actor": first})
    assert both["judge"].since(first) == first
    assert since(both, {"judge": first, "actor": first}) == {"judge": first}
    folder = RunFolder(tmp_path / "run")
    folder.add_usage({})
    assert folder.usage() == {}
    assert not folder.path.exists()
    folder.add_usage({"judge": first})
    folder.add_usage({"judge": first, "actor": first})
    assert folder.usage() == both
    (folder.path / "usage.json").write_text("{")
    with pytest.raises(RecordError, match=r"usage\.json cannot be read"):
        folder.usage()


def test_a_run_goes_on_at_another_server_and_not_with_another_model(tmp_path: Path) -> None:
    header = new_header({}, {}, recorded_models({"world": {"judge": "llm:a/b@http://127.0.0.1:1/v1"}}, ["en"]))
    (recorded,) = header.models.values()
    assert [prompt.partition("#")[0] for prompt in recorded["prompts"]] == ["judge-1.en"]

    def other(**model: str) -> RunHeader:
        changed = {**recorded["models"], "default": {**recorded["models"]["default"], **model}}
        return header.model_copy(update={"models": {name: {**recorded, "models": changed} for name in header.models}})

    folder = RunFolder(tmp_path / "run")
    folder.create(header)
    assert folder.create(other(api_base="http://127.0.0.1:2/v1"), resume=True) == header
    with pytest.raises(RecordError, match="different: models"):
        folder.create(other(model="a/c"), resume=True)
    assert "models" not in new_header({}, {}).model_dump()


# ---- what is injected ----------------------------------------------------------------------------------------------


def role_of(call: Call) -> str:
    if call.title == "Verdict":
        return "judge"
    return "director" if call.tools else "actor" if call.messages[0]["role"] == "system" else "policy"


def identity(call: Call) -> str:
    """What stays the same of an ask over its tries, repairs included: for a judge the reply that it judges."""
    if role_of(call) == "judge":
        return dict(BLOCK.findall(call.material))["reply"]
    messages = call.messages if role_of(call) == "policy" else call.messages[:2]
    return json.dumps([call.body.get("seed"), messages], sort_keys=True)


@dataclass
class Plan:
    """Decides by what is asked: a lasting fault meets every try, a passing one the first."""

    lasting: dict[str, float]
    passing: dict[str, float] = field(default_factory=dict)
    roles: tuple[str, ...] = ("judge",)
    lasted: dict[tuple[str, str], str] = field(default_factory=dict)
    """Role and identity -> behaviour, of asks with a lasting fault."""
    passed: dict[tuple[str, str], str] = field(default_factory=dict)
    asked: set[tuple[str, str]] = field(default_factory=set)

    def __call__(self, call: Call) -> str:
        ask = (role_of(call), identity(call))
        first = ask not in self.asked
        self.asked.add(ask)
        if ask[0] not in self.roles:
            return "ok"
        at = int.from_bytes(hashlib.sha256("".join(ask).encode()).digest()[:8], "big") / 2**64
        for shares, met in ((self.lasting, self.lasted), (self.passing, self.passed)):
            for behaviour, share in shares.items():
                at -= share
                if at < 0:
                    if first or met is self.lasted:
                        met[ask] = behaviour
                        return behaviour
                    return "ok"
        return "ok"

    def kinds(self, role: str) -> Counter[str]:
        """How often each kind of failure must be counted for a role."""
        return Counter(KINDS[behaviour] for (of, _), behaviour in self.lasted.items() if of == role)

    def retries(self, role: str) -> Counter[str]:
        """How often each kind must have been tried again, or mended."""
        found: Counter[str] = Counter()
        for met, transport in ((self.lasted, RETRIES), (self.passed, 1)):
            for (of, _), behaviour in met.items():
                again = transport if behaviour in TRANSPORT else 1 if behaviour in MENDED else 0
                found[KINDS[behaviour]] += again if of == role else 0
        return +found


def even(total: float, *behaviours: str) -> dict[str, float]:
    return {b: total / len(behaviours) for b in behaviours}


def answer(call: Call) -> str | dict[str, Any] | None:
    """Good answers, in which the model repeats the key that it was sent, as it should not."""
    digest = hashlib.sha256(json.dumps(call.messages, sort_keys=True).encode()).hexdigest()[:12]
    if call.title == "Verdict":
        quote = dict(BLOCK.findall(call.material))["reply"].split(":")[0]
        finding = {"quote": quote, "reason": f"sent {call.key}", "anchor": "C.prog.1.reflects", "item": ""}
        return {"evidence": [finding], "summary": f"So far {digest}, and {call.key}."}
    if call.tools:
        return {"name": "continue_naturally", "arguments": {"reason": call.key, "words": "Go on."}}
    return f"Well, {digest} it is, {call.body['seed']} times, and the clock in the hall."


def models_file(folder: Path, url: str, mode: str = "off", **settings: Any) -> str:
    """Write a models file and return its name behind `llm:`."""
    model = {
        "model": "hosted_vllm/any", "api_base": url, "api_key_env": "FAULTS_SERVICE", "retries": RETRIES,
        "timeout": 2.0, "concurrency": 32, **settings,
    }  # fmt: skip
    file = folder / "models.yaml"
    file.write_text(yaml.safe_dump({"default": model, "cache": {"mode": mode, "folder": "cassette"}}))
    return f"llm:{file}"


# ---- what is found -------------------------------------------------------------------------------------------------


class Marked:
    """A policy none of whose replies is said twice."""

    id = "marked"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def for_episode(self, seed: int) -> Policy:
        return Marked(seed)

    async def respond(self, observation: Observation) -> str:
        return f"Reply {self.seed} {len(observation.messages)}: that clock sits oddly with you."


def turns_of(result: RunResult) -> list[Turn]:
    return [turn for episode in result.folder.episodes() for turn in episode.turns]


def assert_no_key(folder: Path, *others: str) -> None:
    files = [file for file in folder.rglob("*") if file.is_file()]
    for text in (*(file.read_text(encoding="utf-8") for file in files), *others):
        assert KEY not in text
        assert KEY[:12] not in text
    assert files


def report_of(folder: Path) -> tuple[Report, str, str]:
    """Return the report, what the terminal shows of it, and its page."""
    from rich.console import Console

    report = collect(folder)
    console = Console(width=400, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    terminal(report, console)
    console.file.close()
    write_html(report, folder / "report.html")
    return report, console.export_text(), (folder / "report.html").read_text(encoding="utf-8")


SIZES = [(40, 10, 2.0), pytest.param(1000, 64, 5.0, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("conversations", "batch", "timeout"), SIZES)
def test_what_is_injected_into_a_judge_is_what_is_counted(
    conversations: int,
    batch: int,
    timeout: float,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)  # at DEBUG: test_llm
    slow = even(0.01, "huge", "delay")
    plan = Plan(lasting=slow | even(0.24, *sorted({*KINDS} - {*slow})), passing=even(0.12, *TRANSPORT[1:], *MENDED))
    with FaultServer(plan, answer, key=KEY, delay=2 * timeout, limit=600) as server:
        name = models_file(tmp_path, server.url, "auto", timeout=timeout)
        world = WorldConfig(judge=name, max_turns=4)
        config = RunConfig(policy="marked", limit=20, episodes=conversations // 20, batch=batch, world=world)
        result = run(config, tmp_path / "runs", policy=Marked())

    episodes = list(result.folder.episodes())
    assert (result.progress.done, result.progress.failed, len(episodes)) == (conversations, 0, conversations)
    assert all(e.outcome for e in episodes)
    lasted = {reply: behaviour for (_, reply), behaviour in plan.lasted.items()}
    assert len(lasted) > conversations / 2
    for turn in turns_of(result):
        assert_as_injected(turn, lasted)
    cut_off = sum(e.outcome is not None and e.outcome.end == "unjudged" for e in episodes)
    assert cut_off == sum(in_a_row(e, lasted) for e in episodes) > 0

    wanted, usage = plan.kinds("judge"), result.usage["judge"]
    assert Counter(usage.failures) == wanted
    again, tried = plan.retries("judge"), Counter(usage.retries)
    assert tried.pop("timeout", 0) >= again.pop("timeout", 0)  # a busy machine may add some
    assert tried == again
    assert usage.asks == len(turns_of(result))
    assert result.folder.usage() == result.usage
    report, shown, page = report_of(tmp_path / "runs")
    model = report.models[0]
    assert model.failures == {f"judge: LlmFailure({kind})": count for kind, count in sorted(wanted.items())}
    assert model.unjudged_turns == wanted.total() == sum(t.judgement is None for t in turns_of(result))
    assert f"{wanted.total()} of {model.turns} turns unjudged" in shown
    rows: Any = to_json(report)
    assert rows["models"][0]["failures"] == model.failures
    assert rows["runs"][0]["usage"]["judge"]["failures"] == dict(sorted(wanted.items()))
    for kind, count in wanted.items():
        assert f"{count} x judge: LlmFailure({kind})" in shown
        assert f"judge: LlmFailure({kind}), {count} times" in page
    assert usage.told in shown
    assert usage.told in page
    assert "[redacted]" in "".join(t.judgement.evidence[0].reason for t in turns_of(result) if t.judgement)
    assert_no_key(tmp_path, caplog.text, *capfd.readouterr(), repr(result), shown)


def assert_as_injected(turn: Turn, lasted: dict[str, str]) -> None:
    if turn.reply in lasted:
        assert (turn.judgement, turn.reward, turn.epm, turn.reward_parts) == (None, None, None, {})
        assert kinds_of(turn.failure) == [f"judge: LlmFailure({KINDS[lasted[turn.reply]]})"]
    else:
        assert turn.failure == ""
        assert turn.judgement is not None
        assert turn.reward is not None


def in_a_row(episode: Episode, lasted: dict[str, str]) -> bool:
    """Whether the last three turns met a lasting fault."""
    return len(episode.turns) >= 3 and all(t.reply in lasted for t in episode.turns[-3:])


@pytest.mark.filterwarnings("ignore:.*one model plays")
def test_every_role_may_fail_and_what_could_not_be_played_is_played_later(tmp_path: Path) -> None:
    plan = Plan(
        lasting=even(0.05, "drop", "500", "400", "empty"),
        passing=even(0.15, "429", "500", "drop", "cut"),
        roles=("judge", "director", "actor", "policy"),
    )
    with FaultServer(plan, answer, key=KEY) as server:
        name = models_file(tmp_path, server.url)
        config = RunConfig(policy=name, limit=20, episodes=5, world=WorldConfig(backend=name, max_turns=2))
        result = run(config, tmp_path / "runs")
        failed = {role: plan.kinds(role) for role in plan.roles}
        assert all(failed.values()), failed
        assert {role: Counter(result.usage[role].failures) for role in plan.roles} == failed
        assert {role: Counter(result.usage[role].retries) for role in plan.roles} == {
            role: plan.retries(role) for role in plan.roles
        }

        dropped = [json.loads(said)[1] for role, said in plan.lasted if role == "policy"]
        unopened = sum(not e.turns for e in result.folder.episodes()) - sum(len(m) == 1 for m in dropped)
        assert result.progress.failed == len(dropped) + unopened
        told = counted(collect(tmp_path / "runs"))
        assert told["judge"] == failed["judge"].total()
        assert told["director"] == failed["director"].total()
        assert told["actor"] == failed["actor"].total() - unopened
        assert "policy" not in told

        server.behave = always("ok")
        again = run(config, tmp_path / "runs", resume=True)
    assert (again.progress.done, again.progress.failed) == (100, 0)
    assert all(e.outcome for e in again.folder.episodes())
    both = again.folder.usage()
    assert both["policy"].asks == result.usage["policy"].asks + again.usage["policy"].asks
    assert Counter(both["policy"].failures) == failed["policy"]
    header = json.loads((again.folder.path / "run.json").read_text())
    recorded = header["models"][name.removeprefix("llm:")]
    assert recorded["models"]["default"]["api_key_env"] == "FAULTS_SERVICE"
    assert [p.partition("-")[0] for p in recorded["prompts"]] == ["actor", "director", "judge"]
    assert_no_key(tmp_path)


def counted(report: Report) -> Counter[str]:
    found: Counter[str] = Counter()
    for kind, count in report.models[0].failures.items():
        found[kind.partition(":")[0]] += count
    return found


# ---- the server as a whole -----------------------------------------------------------------------------------------


def play(tmp_path: Path, name: str, tell: Callable[[Any], None] = lambda progress: None, **settings: Any) -> RunResult:
    config = RunConfig(policy="marked", limit=8, world=WorldConfig(judge=name, max_turns=4), **settings)
    return run(config, tmp_path / "runs", policy=Marked(), tell=tell)


def test_a_server_that_is_gone_for_a_second_costs_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "FIRST_WAIT", 0.3)
    servers: list[FaultServer] = []

    def begin_again() -> None:
        servers.append(FaultServer(answer=answer, port=servers[0].port).__enter__())

    def tell(progress: Any) -> None:
        if progress.turns == 6:
            servers[0].__exit__()
            threading.Timer(1.0, begin_again).start()

    servers.append(FaultServer(answer=answer, latency=0.02).__enter__())
    try:
        result = play(tmp_path, models_file(tmp_path, servers[0].url, retries=5), tell)
    finally:
        for server in servers:
            server.__exit__()
    assert len(servers) == 2
    assert [turn.failure for turn in turns_of(result)] == [""] * 32
    assert result.usage["judge"].retries["connection"] > 0
    assert len(servers[1].calls) > 0


def test_a_server_that_stays_gone_is_a_failure_of_every_turn(tmp_path: Path) -> None:
    with socket.socket() as held:  # a port that nobody else gets, and nobody listens at
        held.bind(("127.0.0.1", 0))
        result = play(tmp_path, models_file(tmp_path, f"http://127.0.0.1:{held.getsockname()[1]}/v1", timeout=20.0))
    assert {kind for turn in turns_of(result) for kind in kinds_of(turn.failure)} == {"judge: LlmFailure(connection)"}
    assert {e.outcome.end for e in result.folder.episodes() if e.outcome} == {"unjudged"}
    assert result.usage["judge"].failures == {"connection": 24}


def test_a_server_that_never_answers_is_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    with FaultServer(always("delay"), delay=3600) as server:
        began = time.monotonic()
        result = play(tmp_path, models_file(tmp_path, server.url, timeout=0.2, retries=1))
        assert time.monotonic() - began < 10
    assert result.usage["judge"].failures == {"timeout": 24}
    assert not any(turn.judgement or turn.reward for turn in turns_of(result))


MEMORY = """
import asyncio, resource, sys
from echo_env.agents.llm.client import Ask, ChatMessage, LlmClient, LlmFailure
from echo_env.agents.llm.config import CacheConfig, ModelConfig, ModelsConfig
model = ModelConfig(model="hosted_vllm/any", api_base=sys.argv[1], retries=0)
client = LlmClient(ModelsConfig(default=model, cache=CacheConfig(mode="off")))
async def ask(k):
    try: await client.ask(Ask("judge", (ChatMessage("user", str(k)),)))
    except LlmFailure as e: return e.kind
async def main():
    await ask(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(*await asyncio.gather(*(ask(k) for k in range(1, 5))))
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
asyncio.run(main())
"""


def test_what_runs_on_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Four answers of 64 MB at once: unbounded they took a gigabyte."""
    with FaultServer(lambda call: "huge" if call.last != "0" else "ok", size=64_000_000) as server:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, server.url], capture_output=True, text=True, timeout=60, env=environment()
        )
    assert done.returncode == 0, done.stderr
    kinds, grown = done.stdout.splitlines()
    assert kinds.split() == ["too_long"] * 4
    assert int(grown) < 128


# ---- Ctrl-C --------------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def command(name: str, out: Path) -> list[str]:
    people = [f"--scenario={s}" for s in scenario_ids("benchmark")[:3]]
    told = ["--policy", name, "--config", str(out.parent / "run.yaml"), "--out", str(out), *people]
    return [sys.executable, "-W", "ignore", "-m", "echo_env.cli", "run", *told]


def files_of(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in out.glob("*/episodes/*.jsonl")}


@pytest.mark.slow
def test_ctrl_c_is_quick_and_what_it_cut_off_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    with FaultServer(answer=answer, key=KEY) as server:
        name = models_file(tmp_path, server.url, "auto")
        (tmp_path / "run.yaml").write_text(yaml.safe_dump({"world": {"backend": name, "max_turns": 8}}))
        whole = subprocess.run(
            command(name, tmp_path / "whole"), capture_output=True, text=True, timeout=60, env=environment()
        )
        assert whole.returncode == 0, whole.stderr
        (tmp_path / "cassette").rename(tmp_path / "old")

        before, server.latency = len(server.calls), 0.15
        broken = subprocess.Popen(
            command(name, tmp_path / "broken"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(),
        )  # fmt: skip
        while len(server.calls) < before + 70 and broken.poll() is None:
            time.sleep(0.01)
        server.latency = 30.0
        time.sleep(0.5)
        began = time.monotonic()
        broken.send_signal(signal.SIGINT)
        said = "".join(broken.communicate(timeout=20))
        assert time.monotonic() - began < 2
        assert broken.returncode == 130, said
        assert said.strip().startswith("interrupted; ")
        assert len(said.strip().splitlines()) == 1, said
        folder = RunFolder(next((tmp_path / "broken").iterdir()))
        cut_off = list(folder.episodes())
        assert [e.outcome for e in cut_off] == [None] * 3
        assert sum(len(e.turns) for e in cut_off) > 12
        paid = folder.usage()["judge"].asks

        server.latency = 0.0
        resumed = subprocess.run(
            [*command(name, tmp_path / "broken"), "--resume"],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(),
        )
    assert resumed.returncode == 0, resumed.stderr
    assert files_of(tmp_path / "broken") == files_of(tmp_path / "whole")
    assert folder.usage()["judge"].asks >= 24 > paid
    assert "asked as judge: " in resumed.stdout
    assert_no_key(tmp_path, whole.stdout + whole.stderr, said, resumed.stdout + resumed.stderr)
