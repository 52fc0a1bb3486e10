"""The network client against a server that fails on demand: retries, repair, limits, sharing, keys, loops."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faultserver import BEHAVIOURS, UNFOUND, FaultServer, always, first, transient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from echo_env.agents.llm import client as llm
from echo_env.agents.llm import quiet
from echo_env.agents.llm.client import Answer, Ask, ChatMessage, LlmClient, LlmFailure, Tool, client_of, pause
from echo_env.agents.llm.config import CacheConfig, ModelConfig, ModelsConfig
from echo_env.agents.llm.limits import Bucket, Slots
from echo_env.errors import ConfigError, MissingExtra

pytest.importorskip("litellm")
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")
KEY = "sk-test-0123456789abcdef"


class Verdict(BaseModel):
    quote: str
    level: int


class Reveal(BaseModel):
    index: int


class Wait(BaseModel):
    pass


TOOLS = (Tool("reveal", "Tell a line.", Reveal), Tool("wait", "Tell nothing.", Wait))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "FIRST_WAIT", 0.01)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as started:
        yield started


def client(server: FaultServer, **config: Any) -> LlmClient:
    model = ModelConfig(**{"model": "hosted_vllm/any", "api_base": server.url, "retries": 2, "timeout": 5.0, **config})
    return LlmClient(ModelsConfig(default=model, cache=CacheConfig(mode="off")))


def ask(said: str = "one two three four five", **form: Any) -> Ask:
    return Ask("judge", (ChatMessage("system", "You judge."), ChatMessage("user", said)), **form)


def answered(c: LlmClient, a: Ask) -> Answer:
    return asyncio.run(c.ask(a))


def failed(c: LlmClient, a: Ask) -> LlmFailure:
    with pytest.raises(LlmFailure) as caught:
        asyncio.run(c.ask(a))
    return caught.value


# ---- forms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["hosted_vllm/any", "openai/any"])
@pytest.mark.parametrize("structured", ["json_schema", "tool", "prompt"])
def test_every_form_of_answer_comes_back(server: FaultServer, model: str, structured: str) -> None:
    c = client(server, model=model, structured=structured)
    assert answered(c, ask()).text.startswith("I hear you.")
    assert answered(c, ask(schema=Verdict)).parsed == Verdict(quote="one two three four", level=0)
    called = answered(c, ask(tools=TOOLS))
    assert (called.tool, called.parsed) == ("reveal", Reveal(index=0))


def test_what_is_sent_is_what_was_asked(server: FaultServer) -> None:
    answered(client(server, top_p=0.5), ask(schema=Verdict, seed=3, temperature=0.0, max_tokens=9))
    body = server.calls[0].body
    assert (body["seed"], body["temperature"], body["max_tokens"], body["top_p"]) == (3, 0.0, 9, 0.5)
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["quote", "level"]
    assert schema["additionalProperties"] is False


def test_thinking_is_cut_and_kept_apart(server: FaultServer) -> None:
    server.answer = lambda call: "<think>Hm, a hard one.</think>I hear you."
    got = answered(client(server), ask())
    assert (got.text, got.thinking) == ("I hear you.", "Hm, a hard one.")
    server.answer = lambda call: "<think>and so on"
    assert failed(client(server), ask()).kind == "empty"


@pytest.mark.parametrize(
    "said", ['Sure!\n```json\n{"quote": "a", "level": 1}\n```', 'Here: {"quote": "a", "level": 1}.']
)
def test_an_object_is_found_in_what_is_around_it(server: FaultServer, said: str) -> None:
    server.answer = lambda call: said
    assert answered(client(server), ask(schema=Verdict)).parsed == Verdict(quote="a", level=1)


def test_one_function_must_be_called_and_a_known_one(server: FaultServer) -> None:
    server.answer = lambda call: {"name": "leave", "arguments": {}}
    failure = failed(client(server), ask(tools=TOOLS))
    assert failure.kind == "format"
    assert "reveal, wait" in failure.message
    server.answer = lambda call: "I would rather not."
    assert failed(client(server), ask(tools=TOOLS)).kind == "format"


# ---- what goes wrong -----------------------------------------------------------------------------------------------

CURABLE = {"drop": "connection", "429": "rate_limit", "500": "server", "cut": "cut", "delay": "timeout"}


@pytest.mark.parametrize("model", ["hosted_vllm/any", "openai/any"])
@pytest.mark.parametrize(("behaviour", "kind"), CURABLE.items())
def test_what_another_try_may_cure_is_tried_again(behaviour: str, kind: str, model: str) -> None:
    with FaultServer(behave=transient(behaviour, tries=2), delay=0.4) as server:
        c = client(server, model=model, timeout=0.2)
        assert answered(c, ask()).usage.calls == 1
        assert server.counts == {behaviour: 2, "ok": 1}
        assert c.usage()["judge"].retries == {kind: 2}
    with FaultServer(behave=always(behaviour), delay=0.4) as server:
        c = client(server, model=model, timeout=0.2)
        failure = failed(c, ask())
        assert (failure.kind, failure.attempts, server.counts[behaviour]) == (kind, 3, 3)
        assert c.usage()["judge"].failures == {kind: 1}


@pytest.mark.parametrize(("behaviour", "kind"), [("400", "refused"), ("401", "auth"), ("huge", "too_long")])
def test_what_no_try_cures_is_not_tried_again(behaviour: str, kind: str) -> None:
    with FaultServer(behave=always(behaviour)) as server:
        failure = failed(client(server), ask())
        assert (failure.kind, failure.attempts, len(server.calls)) == (kind, 1, 1)


MENDABLE = {"half_json": "format", "wrong_schema": "format", "empty": "empty", "length": "cut"}


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize(("behaviour", "kind"), MENDABLE.items())
def test_an_answer_that_cannot_be_used_is_mended_once(behaviour: str, kind: str, tools: bool) -> None:
    form: dict[str, Any] = {"tools": TOOLS} if tools else {"schema": Verdict}
    with FaultServer(behave=first(behaviour)) as server:
        got = answered(client(server), ask(**form))
        assert got.parsed is not None
        assert got.usage.calls == 2
        assert [m["role"] for m in server.calls[1].messages] == ["system", "user", "assistant", "user"]
    with FaultServer(behave=always(behaviour)) as server:
        c = client(server)
        failure = failed(c, ask(**form))
        assert (failure.kind, failure.attempts, len(server.calls)) == (kind, 2, 2)
        assert c.usage()["judge"].spent.calls == 2


def found(verdict: BaseModel) -> str:
    assert isinstance(verdict, Verdict)
    return "" if verdict.quote in "one two three four five" else f"the quote '{verdict.quote}' stands nowhere"


def test_the_check_has_its_say() -> None:
    with FaultServer(behave=first("unfound_quote")) as server:
        assert answered(client(server), ask(schema=Verdict, check=found)).usage.calls == 2
        assert f"the quote '{UNFOUND}' stands nowhere" in server.calls[1].last
    with FaultServer(behave=always("unfound_quote")) as server:
        assert failed(client(server), ask(schema=Verdict, check=found)).kind == "check"


def test_retries_and_repair_add_up() -> None:
    """A lost connection, an empty answer, another lost connection, then a good one: four calls, two answered."""
    plan = ["drop", "empty", "drop", "ok"]
    with FaultServer(behave=lambda call: plan[call.number]) as server:
        c = client(server)
        assert answered(c, ask()).usage.calls == 2
        assert c.usage()["judge"].retries == {"connection": 2, "empty": 1}
    with FaultServer(behave=lambda call: [*plan[:3], "drop", "drop"][call.number]) as server:
        assert failed(client(server), ask()).attempts == 5


def test_a_text_at_the_token_limit_may_be_an_answer() -> None:
    with FaultServer(behave=always("length")) as server:
        assert answered(client(server), ask(may_be_cut=True)).text
        assert failed(client(server), ask()).kind == "cut"


class Odd(BaseModel):
    quote: str

    @field_validator("quote")
    @classmethod
    def breaks(cls, value: str) -> str:
        raise RuntimeError("did not expect that")


def broken(verdict: BaseModel) -> str:
    raise KeyError("nor that")


def test_the_asker_s_own_faults_are_failures_too(server: FaultServer) -> None:
    assert failed(client(server), ask(schema=Odd)).kind == "format"
    assert failed(client(server), ask(schema=Verdict, check=broken)).kind == "check"


@pytest.mark.parametrize("behaviour", sorted(set(BEHAVIOURS) - {"ok", "unfound_quote"}))
@pytest.mark.parametrize("form", [{"schema": Verdict}, {"tools": TOOLS}])
def test_errors_are_short_and_carry_nothing_along(behaviour: str, form: dict[str, Any]) -> None:
    with FaultServer(behave=always(behaviour), delay=0.2) as server:
        failure = failed(client(server, timeout=0.1 if behaviour == "delay" else 5.0, retries=0), ask(**form))
    assert len(str(failure)) < 500
    assert failure.__cause__ is None
    assert failure.__context__ is None
    copy = pickle.loads(pickle.dumps(failure))
    assert (copy.kind, copy.attempts, str(copy)) == (failure.kind, failure.attempts, str(failure))


@pytest.mark.parametrize(
    "body", [b"<html>hi</html>", b"[]", b"null", b"{}", b'{"choices":[]}', b'{"choices":null}', b"\xff\xfe", b""]
)
@pytest.mark.parametrize("model", ["hosted_vllm/any", "openai/any"])
def test_a_response_that_is_none_is_a_failure(body: bytes, model: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async def run() -> LlmFailure:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as odd:
            url = f"http://127.0.0.1:{odd.sockets[0].getsockname()[1]}/v1"
            config = ModelConfig(model=model, api_base=url, retries=1, timeout=5)
            with pytest.raises(LlmFailure) as caught:
                await LlmClient(ModelsConfig(default=config, cache=CacheConfig(mode="off"))).ask(ask())
            return caught.value

    failure = asyncio.run(run())
    assert failure.kind in ("format", "server", "connection")
    assert "Traceback" not in failure.message


# ---- waits and limits ----------------------------------------------------------------------------------------------


@given(st.integers(0, 40), st.none() | st.floats(0, 1e6), st.floats(0, 1))
def test_the_pause_is_bounded(attempt: int, asked: float | None, chance: float) -> None:
    seconds = pause(attempt, asked, chance)
    assert seconds <= llm.LONGEST_WAIT
    assert seconds >= min(asked or 0.0, llm.LONGEST_WAIT)
    assert seconds >= min(llm.FIRST_WAIT * 2**attempt / 2, llm.LONGEST_WAIT)


@pytest.mark.parametrize("model", ["hosted_vllm/any", "openai/any"])
def test_the_server_s_wish_to_wait_is_heard_by_all(model: str) -> None:
    with FaultServer(behave=first("429"), retry_after=0.4) as server:
        c = client(server, model=model)

        async def later() -> None:
            while not server.times:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)
            await c.ask(ask("something else"))

        async def run() -> None:
            await asyncio.gather(c.ask(ask()), later())

        asyncio.run(run())
        assert len(server.times) == 3
        assert server.times[1] - server.times[0] >= 0.39


def test_no_more_are_in_flight_than_may_be() -> None:
    with FaultServer(latency=0.02) as server:
        c = client(server, concurrency=4)

        async def run(name: str) -> None:
            await asyncio.gather(*(c.ask(ask(f"{name} {k}")) for k in range(20)))

        other = threading.Thread(target=lambda: asyncio.run(run("thread")))
        other.start()
        asyncio.run(run("main"))
        other.join()
        assert server.counts == {"ok": 40}
        assert server.max_in_flight == 4


def test_requests_a_minute_are_kept_to() -> None:
    """120 a minute: a tenth at once, then 109 in the 60 seconds: the 13th comes after 0.55 s."""
    with FaultServer() as server:
        c = client(server, requests_per_minute=120)

        async def run() -> None:
            await asyncio.gather(*(c.ask(ask(str(k))) for k in range(13)))

        asyncio.run(run())
        assert 0.4 <= server.times[-1] - server.times[0] < 3


@given(st.integers(1, 300), st.lists(st.floats(0, 30), min_size=1, max_size=200))
def test_no_minute_sees_more_than_the_limit(limit: int, gaps: list[float]) -> None:
    now = 0.0
    bucket = Bucket(limit, clock=lambda: now)
    starts = []
    for gap in gaps:
        now += gap
        starts.append(now + bucket.take(1))
    starts.sort()
    for k, start in enumerate(starts):
        assert sum(1 for s in starts[k:] if s < start + 60 - 1e-6) <= limit


def test_tokens_that_were_not_used_are_given_back() -> None:
    """600 a minute: 60 at once. 50 taken, 40 given back: 50 more are there at once, the next 50 are not."""
    bucket = Bucket(600, clock=lambda: 0.0)
    assert bucket.take(50) == 0
    bucket.give(40)
    assert bucket.take(50) == 0
    assert bucket.take(50) == pytest.approx(50 / (541 / 60))


def test_a_slot_goes_to_who_came_first_and_is_not_lost() -> None:
    async def run() -> list[int]:
        slots, order = Slots(), []

        async def hold(k: int) -> None:
            await slots.acquire(1)
            try:
                order.append(k)
                await asyncio.sleep(0)
            finally:
                slots.release()

        tasks = [asyncio.create_task(hold(k)) for k in range(6)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(run()) == [0, 1, 3, 4, 5]


# ---- sharing and giving up -----------------------------------------------------------------------------------------


def test_the_same_request_is_asked_once(server: FaultServer) -> None:
    server.latency = 0.05
    c = client(server)

    async def run(*asks: Ask) -> list[Answer]:
        return list(await asyncio.gather(*(c.ask(a) for a in asks)))

    one, *others = asyncio.run(run(*[ask()] * 8))
    assert others == [one] * 7
    assert len(server.calls) == 1
    assert c.usage()["judge"].cached == 7
    asyncio.run(run(*(ask(draw=k) for k in range(3))))
    assert len(server.calls) == 4


def test_who_gives_up_takes_nothing_from_the_others(server: FaultServer) -> None:
    server.latency = 0.2
    c = client(server)

    async def run() -> Answer:
        one, other = asyncio.create_task(c.ask(ask())), asyncio.create_task(c.ask(ask()))
        await asyncio.sleep(0.05)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        return await other

    assert asyncio.run(run()).text
    assert len(server.calls) == 1


def test_giving_up_frees_the_slot(server: FaultServer) -> None:
    server.latency = 0.3
    c = client(server, concurrency=1)

    async def run() -> Answer:
        for k in range(3):  # at the server, waiting for the slot, and both
            held = [asyncio.create_task(c.ask(ask(f"{k} {n}"))) for n in range(2)]
            await asyncio.sleep(0.05)
            for task in held:
                task.cancel()
            assert all(
                isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*held, return_exceptions=True)
            )
        return await asyncio.wait_for(c.ask(ask("last")), 2)

    assert asyncio.run(run()).text
    assert c.usage()["judge"].asks == 1


def test_clients_outlive_their_loops(server: FaultServer) -> None:
    c = client(server)
    answers = [asyncio.run(c.ask(ask(str(k)))) for k in range(3)]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        answers += [asyncio.run_coroutine_threadsafe(c.ask(ask(f"t{k}")), loop).result(5) for k in range(2)]
        answers.append(asyncio.run(c.ask(ask("main again"))))
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert len({a.text for a in answers}) == 6


def test_one_client_a_configuration(server: FaultServer) -> None:
    name = f"hosted_vllm/any@{server.url}"
    assert client_of(name) is client_of(name)
    assert client_of(name) is not client_of(f"hosted_vllm/other@{server.url}")


# ---- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("straight", [True, False])
@pytest.mark.parametrize("model", ["hosted_vllm/any", "openai/any"])
@pytest.mark.parametrize("behaviour", ["ok", "400", "401", "500"])
def test_the_key_goes_to_the_server_and_nowhere_else(
    model: str, behaviour: str, straight: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str], tmp_path: Any,
) -> None:  # fmt: skip
    monkeypatch.setenv("MY_MODEL", KEY)  # a name that does not say that it holds a secret
    if not straight:
        monkeypatch.setattr(quiet, "_straight", lambda model: None)
        monkeypatch.setattr(quiet, "_silent", lambda: None)
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "openai"):
        caplog.set_level(logging.DEBUG, logger=name)
    caplog.set_level(logging.DEBUG)
    with FaultServer(behave=always(behaviour), answer=lambda call: f"you sent {call.key}") as server:  # type: ignore[arg-type]
        config = ModelConfig(model=model, api_base=server.url, api_key_env="MY_MODEL", retries=0)
        c = LlmClient(ModelsConfig(default=config, cache=CacheConfig(mode="record", folder=tmp_path)))
        try:
            said = repr(answered(c, ask()))
        except LlmFailure as e:
            said = f"{e!r} {e} {vars(e)}"
        assert server.calls[0].key == KEY
    files = "".join(p.read_text() for p in tmp_path.rglob("*.json"))
    assert bool(files) == (behaviour == "ok")
    out, err = capfd.readouterr()
    assert KEY not in said + files + out + err + caplog.text + repr(c.usage()) + repr(c.models)
    assert "[redacted]" in said


def test_a_key_meant_for_another_is_not_sent(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HOSTED_VLLM_API_KEY"):
        monkeypatch.setenv(name, KEY)
    for model in ("openai/any", "hosted_vllm/any"):
        answered(client(server, model=model), ask())
    assert {call.key for call in server.calls} == {"none"}


def test_a_key_that_is_not_set_is_asked_for(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        answered(client(server, api_key_env="NO_SUCH_KEY"), ask())
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="needs a key"):
        answered(client(server, model="gpt-5", api_base=None), ask())
    assert not server.calls


# ---- LiteLLM -------------------------------------------------------------------------------------------------------


def test_without_litellm_a_judge_is_refused_before_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    monkeypatch.setattr(llm, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"echo-env\[llm\]"):
        llm.client_of("gpt-5")
    replayed = ModelsConfig(default=ModelConfig(model="gpt-5"), cache=CacheConfig(mode="replay"))
    llm.client_of(replayed)  # whose answers are all there


def test_a_model_without_a_provider_is_told_in_our_words() -> None:
    config = ModelsConfig(default=ModelConfig(model="no-such-model", retries=0), cache=CacheConfig(mode="off"))
    assert "write PROVIDER/MODEL" in failed(LlmClient(config), ask()).message


def test_without_litellm_the_install_line_is_named(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet.litellm.cache_clear()
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(MissingExtra, match=r"echo-env\[llm\]"):
        answered(client(server), ask())
    monkeypatch.undo()
    quiet.litellm.cache_clear()
    monkeypatch.setattr(llm, "FIRST_WAIT", 0.01)


def test_importing_asks_nobody_and_says_nothing(tmp_path: Path) -> None:
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise AssertionError('a network call')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "import echo_env.agents.llm.client, echo_env.agents.llm.prompting\n"
        "assert 'litellm' not in sys.modules and 'aiohttp' not in sys.modules\n"
        "from echo_env.agents.llm.quiet import litellm, completion\n"
        "import os; os.environ.pop('LITELLM_LOCAL_MODEL_COST_MAP', None)\n"
        "litellm()\n"
        "import asyncio\n"
        "from echo_env.agents.llm.client import Ask, ChatMessage, LlmClient, client_of\n"
        "from echo_env.errors import ConfigError\n"
        "try: asyncio.run(client_of('gpt-5').ask(Ask('judge', (ChatMessage('user', 'x'),))))\n"
        "except ConfigError: pass\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_KEY")} | {"ECHO_ENV_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("silent", [True, False])
def test_the_plain_way_through_litellm_says_the_same(server: FaultServer, silent: bool, monkeypatch: Any) -> None:
    """Where another version of LiteLLM takes no books of ours, or has another inside."""
    models = ["hosted_vllm/any", "openai/any"]
    asks = [ask(), ask(schema=Verdict, seed=3), ask(tools=TOOLS)]
    config: dict[str, Any] = {"top_p": 0.5, "extra": {"extra_body": {"top_k": 5}}}
    straight = [answered(client(server, model=model, **config), a) for model in models for a in asks]
    assert all(quiet._straight(model) for model in models), "this version of LiteLLM has not the inside that we know"
    monkeypatch.setattr(quiet, "_straight", lambda model: None)
    if not silent:
        monkeypatch.setattr(quiet, "_silent", lambda: None)
    assert [answered(client(server, model=model, **config), a) for model in models for a in asks] == straight
    sent = [call.body for call in server.calls]
    for one, other in zip(sent[:6], sent[6:], strict=True):
        assert one == other
        assert one["top_k"] == 5
    server.behave = always("500")
    assert failed(client(server), ask(schema=Verdict)).kind == "server"


def test_extra_is_passed_on(server: FaultServer) -> None:
    extra = {"stop": ["."], "extra_body": {"top_k": 5}, "extra_headers": {"X-Made-Up": "1"}}
    answered(client(server, extra=extra), ask())
    assert (server.calls[0].body["stop"], server.calls[0].body["top_k"]) == (["."], 5)


def test_a_known_price_is_counted_and_an_unknown_one_is_none(server: FaultServer) -> None:
    """gpt-4o-mini at $0.15 and $0.60 a million tokens, of LiteLLM's own map: 100 and 10 tokens cost $0.000021."""
    from echo_env.agents.llm.completion import _cost
    from echo_env.agents.llm.quiet import litellm

    module = litellm()
    usage = module.Usage(prompt_tokens=100, completion_tokens=10, total_tokens=110)
    response = module.ModelResponse(model="gpt-4o-mini", usage=usage)
    assert _cost(response, ModelConfig(model="gpt-4o-mini")) == pytest.approx(0.000021)
    assert answered(client(server), ask()).usage.cost is None


def test_the_server_tells_roles_apart(server: FaultServer) -> None:
    server.answer = lambda call: f"{call.system} {call.title or 'in words'}"
    assert answered(client(server), ask()).text == "You judge. in words"
    server.answer = lambda call: {"quote": call.title, "level": 2}
    assert answered(client(server), ask(schema=Verdict)).parsed == Verdict(quote="Verdict", level=2)
