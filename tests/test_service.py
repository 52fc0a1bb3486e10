"""The reward service: the recipes over HTTP, asked as trainers ask, and as nobody should."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` is not installed")

from echo_env.agents.scoring import ScorablePrompt, score_replies
from echo_env.agents.service import ServiceConfig
from echo_env.agents.service.app import limits_of, server_of
from echo_env.agents.service.guard import is_loopback
from echo_env.agents.service.labels import label_of, prompt_of, reply_in
from echo_env.build import WorldConfig, build_policy, build_session
from echo_env.cli import app
from echo_env.driving import run_now
from echo_env.errors import ConfigError
from echo_env.profiles import get_scenario
from echo_env.roles import Exchange, JudgeView
from echo_env.types import Judgement, Levels, Usage

TOKEN = "a-token-that-nobody-guesses"
HERE = "test_service"


class Scripted:
    """A judge that does what the reply says: fails, breaks, takes its time; else finds one thing."""

    id, rubric, waits = "scripted-1", "none", True
    finished = 0

    async def judge(self, view: JudgeView) -> Judgement | None:
        said = view.exchange.reply
        if said == "fail":
            return None
        if said == "break":
            raise ValueError(f"no judging of {said!r} with {os.environ.get('ECHO_ENV_TOKEN')}")
        if said.startswith("wait"):
            await asyncio.sleep(float(said.split()[1]))
        type(self).finished += 1
        return Judgement(levels=Levels(a_prog=1), judge=self.id)


class Reply(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks one service, a connection a request, as OpenRLHF's client does."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.host, self.port = url.removeprefix("http://").rsplit(":", 1)[0], int(url.rsplit(":", 1)[1])

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            given = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, body, {**given, **{k.replace("_", "-"): v for k, v in headers.items()}})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, data: object, **headers: str) -> Reply:
        return self.ask("POST", path, json.dumps(data).encode(), **headers)

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, **headers)

    def metric(self, line: str, **headers: str) -> float:
        rows = self.get("/metrics", **headers).body.decode().splitlines()
        return next((float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith(f"{line} ")), 0.0)


@contextmanager
def serving(**settings: Any) -> Iterator[Client]:
    told: list[str] = []
    server, door = server_of(ServiceConfig(port=0, **settings), told.append)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    try:
        until(lambda: bool(told))
        yield Client(told[0])
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive()


def until(true: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


SCRIPTED = WorldConfig(judge=f"{HERE}:Scripted")


@pytest.fixture(scope="module")
def embedded() -> Iterator[Client]:
    with serving(log_parts=("shaping",)) as client:
        yield client


@pytest.fixture(scope="module")
def scripted() -> Iterator[Client]:
    with serving(world=SCRIPTED, max_batch=4, max_body=20_000, max_text=500) as client:
        yield client


def item(reply: str, **more: object) -> dict[str, object]:
    return {"scenario": "health-04", "user": "I was afraid to sleep in hospital.", "reply": reply, **more}


# ---- the same rewards as in process --------------------------------------------------------------------------------

HISTORY = (Exchange("It came in the night.", "You were alone with it, in the night."),)
PROMPTS = (
    ScorablePrompt("I was afraid to sleep in hospital.", HISTORY, "health-04"),
    ScorablePrompt("I was afraid to sleep in hospital.", (), "train-0007", reference="Try to rest."),
    ScorablePrompt("My sister does not ring any more, and I miss her.", HISTORY),
)
REPLIES = ("You were afraid to go to sleep there.", "<think>short</think>Who sat with you?", "Cheer up!", "")


@pytest.mark.parametrize("recipe", ["epm", "echo_n1", "humanlike"])
def test_rewards_are_those_of_the_process_to_the_bit(recipe: str) -> None:
    world = WorldConfig(recipe=recipe)
    pairs = [(prompt, reply) for prompt in PROMPTS for reply in REPLIES]
    here = asyncio.run(score_replies(world, pairs))
    items = [
        {
            "scenario": p.scenario,
            "user": p.user,
            "reply": reply,
            "reference": p.reference,
            "history": [{"user": e.user, "reply": e.reply} for e in p.history],
        }
        for p, reply in pairs
    ]
    with serving(world=world) as client:
        there = client.post("/score", {"items": items}).json
    assert there["results"] == [json.loads(scored.model_dump_json()) for scored in here]
    assert [r["reward"] for r in there["results"]] == [scored.reward for scored in here]
    assert any(scored.reward for scored in here)


def test_rewards_are_those_of_the_environment(embedded: Client) -> None:
    session = build_session(WorldConfig(), get_scenario("career-02"), seed=3)
    policy = build_policy("skilled", seed=3)
    run_now(session.open())
    items, rewards, history = [], [], []
    for _ in range(5):
        turn = run_now(session.reply(run_now(policy.respond(session.observation)))).turn
        items.append({"scenario": "career-02", "user": turn.user, "reply": turn.reply, "history": list(history)})
        history.append({"user": turn.user, "reply": turn.reply})
        rewards.append(turn.reward)
    assert [r["reward"] for r in embedded.post("/score", {"items": items}).json["results"]] == rewards


def test_order_survives_prompts_that_take_turns(scripted: Client) -> None:
    items = [item("wait 0.1"), item("fail", user="Other."), item("quick"), item("fail")]
    results = scripted.post("/score", {"items": items}).json["results"]
    assert [r["reward"] is None for r in results] == [False, True, False, True]


def test_raw_output_must_hold_the_reply(scripted: Client) -> None:
    assert scripted.post("/score", {"items": [item("Yes.", raw="<think>no</think>Yes.")]}).status == 200
    wrong = scripted.post("/score", {"items": [item("Yes."), item("Yes.", raw="<think>no</think>No.")]})
    assert wrong.status == 422
    assert wrong.json["detail"][0]["loc"] == ["body", "items", 1, "raw"]


# ---- a failure is never a zero -------------------------------------------------------------------------------------


def test_a_failed_judgement_is_null_and_counted(scripted: Client) -> None:
    missing = 'echo_env_failures_total{kind="missing",role="judge"}'
    broken = 'echo_env_failures_total{kind="ValueError",role="judge"}'
    before = scripted.metric(missing), scripted.metric(broken), scripted.metric('echo_env_replies_total{rewarded="no"}')
    answer = scripted.post("/score", {"items": [item("fine"), item("fail"), item("break")]})
    assert answer.status == 200
    fine, failed, broke = answer.json["results"]
    assert fine["reward"] is not None
    assert (failed["reward"], failed["parts"], failed["judgement"]) == (None, {}, None)
    assert failed["failure"] == "judge: no judgement"
    assert broke["reward"] is None
    assert broke["failure"].startswith("judge: ValueError: ")
    after = scripted.metric(missing), scripted.metric(broken), scripted.metric('echo_env_replies_total{rewarded="no"}')
    assert after == (before[0] + 1, before[1] + 1, before[2] + 2)


def rlhf(*replies: str, end: str = "<|im_end|>\n", prompt: str = "<|im_start|>user\nHi<|im_end|>\n") -> dict[str, Any]:
    """What OpenRLHF 0.11.2 posts (`SingleTurnAgentExecutor._fetch_rewards_via_http` in `openrlhf/utils/agent.py`)."""
    label = label_of(ScorablePrompt("I was afraid to sleep in hospital.", HISTORY, "health-04"))
    n = len(replies)
    return {"query": [f"{prompt}{r}{end}" for r in replies], "prompts": [prompt] * n, "labels": [label] * n}


def test_get_reward_has_no_reward_for_a_failed_judgement(scripted: Client) -> None:
    answer = scripted.post("/get_reward", rlhf("fine", "fail"))
    assert answer.status == 503  # OpenRLHF asks again on any error status
    assert answer.headers["retry-after"] == "1"
    assert answer.json == {"detail": [{"loc": ["body", "query", 1], "msg": "no reward: judge: no judgement"}]}


def test_get_reward_scores_as_score_does(embedded: Client) -> None:
    replies = list(REPLIES)
    history = [{"user": e.user, "reply": e.reply} for e in HISTORY]
    scored = embedded.post("/score", {"items": [item(r, history=history) for r in replies]}).json["results"]
    answer = embedded.post("/get_reward", rlhf(*replies)).json
    assert answer["rewards"] == answer["scores"] == [r["reward"] for r in scored]
    assert answer["extra_logs"] == {"shaping": [r["parts"]["shaping"] for r in scored]}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"labels": ["not json"]}, ["body", "labels", 0]),
        ({"labels": ['{"echo_env": 2, "user": "a"}']}, ["body", "labels", 0]),
        ({"labels": ['{"echo_env": 1, "user": "a", "scenario": "/etc/passwd"}']}, ["body", "labels", 0]),
        ({"labels": ['{"echo_env": 1, "user": "a", "scenario": "nobody-01"}']}, ["body", "labels", 0]),
        ({"labels": [None]}, ["body", "labels", 0]),
        ({"labels": []}, ["body", "labels"]),
        ({"prompts": ["another prompt"]}, ["body", "query", 0]),
        ({"query": []}, ["body", "query"]),
    ],
)
def test_get_reward_says_what_does_not_fit(scripted: Client, change: dict[str, Any], where: list[object]) -> None:
    answer = scripted.post("/get_reward", {**rlhf("fine"), **change})
    assert answer.status == 422
    assert answer.json["detail"][0]["loc"] == where


def test_a_part_that_is_logged_must_be_there() -> None:
    with serving(world=SCRIPTED, log_parts=("empathy",)) as client:
        assert client.post("/get_reward", rlhf("fine")).status == 422


def openrlhf_client() -> types.ModuleType:
    """OpenRLHF's own agent module, without the packages that its neighbours import."""
    pytest.importorskip("aiohttp")
    found = importlib.util.find_spec("openrlhf")
    if found is None or not found.submodule_search_locations:
        pytest.skip("OpenRLHF is not installed")
    folder = Path(found.submodule_search_locations[0]) / "utils"
    package = types.ModuleType("openrlhf.utils")
    package.__path__ = [str(folder)]
    kept = sys.modules.get("openrlhf.utils")
    sys.modules["openrlhf.utils"] = package
    try:
        spec = importlib.util.spec_from_file_location("openrlhf_agent", folder / "agent.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.modules.pop("openrlhf.utils")
        if kept is not None:
            sys.modules["openrlhf.utils"] = kept


def test_openrlhf_itself_gets_its_rewards(embedded: Client) -> None:
    executor = openrlhf_client().SingleTurnAgentExecutor(f"{embedded.url}/get_reward")
    data = rlhf("You were afraid to go to sleep there.")
    got = asyncio.run(executor._fetch_rewards_via_http(data["query"], data["prompts"], data["labels"]))
    assert got == [embedded.post("/get_reward", data).json]
    assert got[0]["rewards"][0] != 0


# ---- labels --------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    user=texts.filter(bool),
    history=st.lists(st.builds(Exchange, texts, texts), max_size=3).map(tuple),
    scenario=st.sampled_from([None, "health-04", "train-0007"]),
    reference=st.none() | texts,
    domain=st.sampled_from(["", "chitchat"]),
)
def test_a_label_comes_back_as_it_was(**fields: Any) -> None:
    prompt = ScorablePrompt(**fields)
    label = label_of(prompt)
    assert "\n" not in label
    assert prompt_of(label).scorable() == prompt


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        ("Yes.", "Yes."),
        ("Yes.<|im_end|>", "Yes."),
        ("Yes.<|im_end|>\n<|endoftext|>", "Yes."),
        ("I <|im_end|> said</s>", "I <|im_end|> said"),  # only what stands last ends a turn
        ("<|im_end|>", ""),
        ("", ""),
    ],
)
def test_the_reply_is_what_follows_the_prompt(said: str, reply: str) -> None:
    assert reply_in("user: hi\n" + said, "user: hi\n") == reply


def test_a_query_whose_prompt_was_cut_has_no_reply() -> None:
    with pytest.raises(ConfigError, match="does not begin with its prompt"):
        reply_in("hi\nYes.", "user: hi\n")


# ---- hostile input -------------------------------------------------------------------------------------------------

START = b'{"items":[{"user":"a","reply":'


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe{}", b"\x00",
        START + b'"\\ud800"}]}',
        START + b'"\xed\xa0\x80"}]}',
        START + b"NaN}]}", START + b"Infinity}]}", START + b"1e999}]}", START + b"9" * 5000 + b"}]}",
        START + b"[" * 9000 + b"]" * 9000 + b"}]}",
        b'{"a":' * 3000,
        START + b'"b","extra":1}]}', START + b'null}]}', START + b"true}]}", START + b'"b","user":""}]}',
        START + b'"b","scenario":"../../etc/passwd"}]}', START + b'"b","scenario":"x.yaml"}]}',
        START + b'"b","language":"xx"}]}', START + b'"b","history":[{"user":"a"}]}]}',
        b'{"items":[]}', b'{"items":{}}', b'{"items":' + b"[{}," * 4000 + b"{}" + b"]" * 4000 + b"}",
        b'{"items":[' + b"{}," * 4 + b"{}]}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/score", "/get_reward"])
def test_bad_bodies_are_the_senders_fault(scripted: Client, path: str, body: bytes) -> None:
    answer = scripted.ask("POST", path, body)
    assert 400 <= answer.status < 500
    assert b"Traceback" not in answer.body
    assert len(answer.body) < 5000
    assert answer.json["detail"]


@given(body=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: json.dumps({"items": [{"user": t}]}).encode()))
def test_nothing_that_is_no_request_is_an_error_of_ours(scripted: Client, body: bytes) -> None:
    assert 400 <= scripted.ask("POST", "/score", body).status < 500


def test_the_item_at_fault_is_named(scripted: Client) -> None:
    items = [item("fine"), item("fine", scenario="health-94"), item("x" * 501), {"user": "a", "reply": "b", "zz": 1}]
    wrong = [scripted.post("/score", {"items": [items[0], bad]}) for bad in items[1:]]
    assert [w.status for w in wrong] == [422, 422, 422]
    assert [w.json["detail"][0]["loc"][:3] for w in wrong] == [["body", "items", 1]] * 3
    assert "health-04" in wrong[0].json["detail"][0]["msg"]
    assert wrong[2].json["detail"][0]["loc"] == ["body", "items", 1, "zz"]


def test_a_recipe_that_does_not_go_with_a_prompt_is_the_senders_fault(embedded: Client) -> None:
    chat = {"user": "Nice weather.", "reply": "It is.", "domain": "chitchat"}
    answer = embedded.post("/score", {"items": [item("fine"), chat]})
    assert answer.status == 422
    assert answer.json["detail"][0]["loc"] == ["body", "items", 1]


# ---- limits --------------------------------------------------------------------------------------------------------


def raw(client: Client, *chunks: bytes) -> bytes:
    """Send bytes as they are; return what comes back until the end, or two seconds of silence."""
    with socket.create_connection((client.host, client.port), timeout=2) as s:
        got = b""
        try:
            for chunk in chunks:
                s.sendall(chunk)
            while part := s.recv(65536):
                got += part
        except OSError:
            pass
        return got


def test_a_body_is_counted_while_it_arrives(scripted: Client) -> None:
    head = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    told = raw(scripted, head + b"Content-Length: 999999999\r\n\r\n{")  # nothing more is waited for
    assert told.startswith(b"HTTP/1.1 413")
    chunk = b"2000\r\n" + b" " * 0x2000 + b"\r\n"
    counted = raw(scripted, head + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk, chunk)  # 24 kB, without an end
    assert counted.startswith(b"HTTP/1.1 413")
    assert scripted.post("/score", {"items": [item("x" * 21_000)]}).status == 413


def test_a_batch_holds_so_many(scripted: Client) -> None:
    assert scripted.post("/score", {"items": [item("a")] * 4}).status == 200
    assert scripted.post("/score", {"items": [item("a")] * 5}).status == 413
    assert scripted.post("/get_reward", rlhf(*["a"] * 5)).status == 413


def test_who_finds_the_queue_full_is_told_to_come_back() -> None:
    with serving(world=SCRIPTED, at_once=1, queue=1) as client:
        answers: list[Reply] = []
        asking = [
            threading.Thread(target=lambda: answers.append(client.post("/score", {"items": [item("wait 0.5")]})))
            for _ in range(2)
        ]
        for thread in asking:
            thread.start()
        until(lambda: client.metric("echo_env_in_flight") == 3)  # the two, and the one that looks
        body = json.dumps({"items": [item("fine")]}).encode() + b" " * 1_500_000
        refused = client.ask("POST", "/score", body)  # it can be told so, however much it was about to send
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert client.get("/health").status == 200
        for thread in asking:
            thread.join()
        assert [a.status for a in answers] == [200, 200]
        assert client.post("/score", {"items": [item("fine")]}).status == 200
        assert client.metric('echo_env_requests_total{code="503",route="/score"}') == 1


def test_a_request_that_takes_too_long_is_answered_and_seen_out() -> None:
    with serving(world=SCRIPTED, at_once=1, timeout=0.3) as client:
        finished = Scripted.finished
        begun = time.monotonic()
        answer = client.post("/score", {"items": [item("wait 0.8")]})
        assert answer.status == 504
        assert time.monotonic() - begun < 0.7
        assert Scripted.finished == finished
        until(lambda: Scripted.finished == finished + 1)
        assert client.post("/score", {"items": [item("fine")]}).status == 200  # its place is free again


def test_a_body_that_never_comes_is_not_waited_for() -> None:
    with serving(world=SCRIPTED, timeout=0.3) as client:
        head = (
            b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
        )
        assert raw(client, head).startswith(b"HTTP/1.1 504")


# ---- who may ask ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8040", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_a_page_that_rebinds_a_name_is_sent_away(scripted: Client, host: str) -> None:
    assert scripted.get("/health", Host=host).status == 421
    assert scripted.post("/score", {"items": [item("fine")]}, Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "[::1]:8040"])
def test_this_machines_own_names_are_known(scripted: Client, host: str) -> None:
    assert scripted.get("/health", Host=host).status == 200


def test_a_form_of_a_web_page_is_no_request(scripted: Client) -> None:
    answer = scripted.ask("POST", "/score", json.dumps({"items": [item("a")]}).encode(), Content_Type="text/plain")
    assert answer.status == 422
    preflight = scripted.ask("OPTIONS", "/score", Origin="http://evil.example", Access_Control_Request_Method="POST")
    assert preflight.status == 405
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_a_token_is_asked_for_everywhere(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_ENV_TOKEN", TOKEN)
    with serving(world=SCRIPTED, token=TOKEN) as client:
        for wrong in ("", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer \xff"):
            for path in ("/health", "/metrics", "/score", "/nowhere"):
                answer = client.get(path, Authorization=wrong)
                assert answer.status == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": f"bearer {TOKEN}"}
        assert client.get("/health", **right).status == 200
        broken = client.post("/score", {"items": [item("break")]}, **right)
        assert broken.json["results"][0]["failure"].endswith("with [redacted]")
        seen = broken.body + client.get("/metrics", **right).body + client.get("/health", **right).body
    assert TOKEN.encode() not in seen
    assert TOKEN not in "".join(capfd.readouterr())
    assert TOKEN not in repr(ServiceConfig(token=TOKEN))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "reward.example", ""])
def test_another_address_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="no token"):
        limits_of(ServiceConfig(host=host))
    assert limits_of(ServiceConfig(host=host, token=TOKEN)).token == TOKEN


@pytest.mark.parametrize(
    "token", ["short", "sixteen letters with spaces", "not-in-ascii-é-é-é-é", "line\nbreaks-in-the-token"]
)
def test_a_token_that_cannot_hold_is_refused_unquoted(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        limits_of(ServiceConfig(token=token))
    assert token not in str(caught.value)


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "", "127.0.0.1.example")))


# ---- health, metrics, the process ----------------------------------------------------------------------------------


def test_health_says_what_is_served() -> None:
    with serving(world=WorldConfig(recipe="echo_n1")) as client:
        told = client.get("/health").json
    assert (told["status"], told["recipe"]) == ("ok", "echo_n1-1")
    assert len(told["judges"]) == 2


def test_requests_are_counted_by_known_routes_alone(scripted: Client) -> None:
    for path in ("/a", "/b", "/score/"):
        assert scripted.get(path).status == 404
    page = scripted.get("/metrics").body.decode()
    assert 'route="/a"' not in page
    assert scripted.metric('echo_env_requests_total{code="404",route="other"}') >= 3
    assert scripted.metric('echo_env_request_seconds_count{route="/metrics"}') >= 1


def test_what_models_took_is_shown_by_role(scripted: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from echo_env.agents.llm import client as llm

    client = llm.LlmClient(llm.models_config("hosted_vllm/any@http://127.0.0.1:1"))
    client._tally.spent("judge", Usage(calls=2, prompt_tokens=30, completion_tokens=5, cost=0.25))
    client._tally.failed("judge", "timeout")
    monkeypatch.setattr(llm, "_clients", {"one": client, "two": client})
    assert scripted.metric('echo_env_llm_tokens_total{role="judge",side="prompt"}') == 60
    assert scripted.metric('echo_env_llm_cost_dollars_total{role="judge"}') == 0.5
    assert scripted.metric('echo_env_llm_failures_total{kind="timeout",role="judge"}') == 2


def command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "echo_env.cli", "serve", *arguments],
        env={**{k: v for k, v in os.environ.items() if k != "ECHO_ENV_TOKEN"}, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_stop_ends_what_was_begun_and_takes_no_more() -> None:
    with command("--port", "0", "--judge", f"{HERE}:Scripted", ECHO_ENV_TOKEN=TOKEN) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            client = Client(line.split()[-1])
            right = {"Authorization": f"Bearer {TOKEN}"}
            answers: list[Reply] = []
            body = {"items": [item("wait 1.0")]}
            asking = threading.Thread(target=lambda: answers.append(client.post("/score", body, **right)))
            asking.start()
            until(lambda: client.metric("echo_env_in_flight", **right) == 2)
            process.send_signal(signal.SIGTERM)
            until(lambda: refused(client))
            assert not answers
            asking.join()
            assert answers[0].status == 200
            assert answers[0].json["results"][0]["reward"] is not None
            out, err = process.communicate(timeout=10)
            assert (process.returncode, out, err) == (0, "", "")
            assert line == f"serving epm at {client.url}\n"
        finally:
            process.kill()


def refused(client: Client) -> bool:
    try:
        socket.create_connection((client.host, client.port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--host", "0.0.0.0"), "no token"),
        (("--recipe", "epn"), "did you mean 'epm'"),
        (("--recipe-option", "discont=1"), "does not take these options"),
        (("--max-batch", "0"), "--max-batch"),
    ],
)
def test_a_service_that_cannot_be_does_not_start(
    arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ECHO_ENV_TOKEN", raising=False)
    result = CliRunner().invoke(app, ["serve", "--port", "0", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)
    assert result.output == ""


def test_a_port_that_is_taken_is_said(scripted: Client) -> None:
    with pytest.raises(ConfigError, match=f"port {scripted.port}"):
        server_of(ServiceConfig(port=scripted.port), lambda _: None)
