"""Kept answers: what makes a key, what is kept, and a cassette that replays or says why not."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faultserver import FaultServer, always, first
from pydantic import BaseModel

from echo_env.agents.llm import client as llm
from echo_env.agents.llm.cache import AnswerFolder, key_of, request_of
from echo_env.agents.llm.client import Answer, Ask, ChatMessage, LlmClient, LlmFailure, Tool
from echo_env.agents.llm.config import CacheConfig, ModelConfig, ModelsConfig

pytest.importorskip("litellm")


class Verdict(BaseModel):
    quote: str
    level: int


class Reveal(BaseModel):
    index: int


ASK = Ask("judge", (ChatMessage("user", "one two three four"),), prompt="judge-1.en#0123abcd", schema=Verdict)
MODEL = ModelConfig(model="hosted_vllm/any", api_base="http://127.0.0.1:9/v1", retries=1)
FORMS = [ASK, replace(ASK, schema=None), replace(ASK, schema=None, tools=(Tool("reveal", "Tell.", Reveal),))]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "FIRST_WAIT", 0.01)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as started:
        yield started


def client(folder: Path, mode: str, server: FaultServer | None = None) -> LlmClient:
    model = MODEL if server is None else MODEL.model_copy(update={"api_base": server.url})
    return LlmClient(ModelsConfig(default=model, cache=CacheConfig.model_validate({"mode": mode, "folder": folder})))


def answered(c: LlmClient, ask: Ask = ASK) -> Answer:
    return asyncio.run(c.ask(ask))


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- keys ----------------------------------------------------------------------------------------------------------


def key(ask: Ask = ASK, model: ModelConfig = MODEL) -> str:
    return key_of(request_of(ask, model))


def test_the_key_is_a_promise() -> None:
    """A change of this value makes every cassette in the world a miss: raise `llmcache.FORMAT` and say so."""
    assert key() == "d86b9cb53588f0ba7317de43448f1c35cba222560d6abd89ddffd9e18e714b85"


CHANGES: list[dict[str, Any]] = [
    {"messages": (ChatMessage("user", "one two three five"),)},
    {"messages": (ChatMessage("system", "one two three four"),)},
    {"prompt": "judge-2.en#0123abcd"}, {"schema": Reveal}, {"schema": None}, {"seed": 1}, {"draw": 1},
    {"temperature": 0.0}, {"max_tokens": 5}, {"may_be_cut": True},
]  # fmt: skip


def test_what_an_answer_depends_on_is_in_the_key() -> None:
    keys = [key(replace(ASK, **change)) for change in CHANGES]
    models = [{"model": "m"}, {"temperature": 0.1}, {"top_p": 0.5}, {"max_tokens": 6}, {"structured": "tool"}]
    models.append({"extra": {"top_k": 5}})
    keys += [key(model=MODEL.model_copy(update=change)) for change in models]
    assert len({key(), *keys}) == 1 + len(keys)


def test_what_it_does_not_depend_on_is_not() -> None:
    same = [replace(ASK, role="other"), replace(ASK, check=lambda verdict: ""), replace(ASK, temperature=0.7)]
    assert {key(a) for a in same} == {key()}
    served = [{"api_base": None}, {"api_key_env": "KEY"}, {"concurrency": 1}, {"retries": 0}, {"timeout": 1.0}]
    assert {key(model=MODEL.model_copy(update=change)) for change in served} == {key()}


# ---- modes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", FORMS)
def test_a_kept_answer_is_the_answer(ask: Ask, server: FaultServer, tmp_path: Path) -> None:
    fresh = answered(client(tmp_path, "auto", server), ask)
    again = client(tmp_path, "auto", server)
    assert answered(again, ask) == fresh
    assert answered(client(tmp_path, "replay"), ask) == fresh
    assert len(server.calls) == 1
    counted = again.usage()["judge"]
    assert (counted.asks, counted.cached, counted.spent.calls) == (1, 1, 0)
    assert fresh.usage.calls == 1


def test_record_asks_and_overwrites(server: FaultServer, tmp_path: Path) -> None:
    answered(client(tmp_path, "auto", server))
    server.answer = lambda call: {"quote": "new", "level": 1}
    assert answered(client(tmp_path, "record", server)).parsed == Verdict(quote="new", level=1)
    assert answered(client(tmp_path, "replay")).parsed == Verdict(quote="new", level=1)


def test_off_keeps_nothing(server: FaultServer, tmp_path: Path) -> None:
    c = client(tmp_path, "off", server)
    answered(c)
    answered(c)
    assert len(server.calls) == 2
    assert not files(tmp_path)


def test_two_recordings_are_the_same_bytes(server: FaultServer, tmp_path: Path) -> None:
    for name in ("one", "other"):
        c = client(tmp_path / name, "record", server)
        for ask in FORMS:
            answered(c, ask)
    assert files(tmp_path / "one") == files(tmp_path / "other")
    assert len(files(tmp_path / "one")) == len(FORMS)


def test_a_file_can_be_read_by_people(server: FaultServer, tmp_path: Path) -> None:
    answered(client(tmp_path, "auto", server))
    ((name, body),) = files(tmp_path).items()
    assert name == f"{key()[:2]}/{key()}.json"
    kept = json.loads(body)
    assert kept["request"]["messages"] == [{"role": "user", "content": "one two three four"}]
    assert kept["response"]["parsed"] == {"quote": "one two three four", "level": 0}


def test_a_miss_in_replay_is_a_failure(tmp_path: Path) -> None:
    c = client(tmp_path, "replay")
    with pytest.raises(LlmFailure, match="no answer to this request of the role 'judge'") as caught:
        answered(c)
    assert caught.value.kind == "replay_miss"
    assert c.usage()["judge"].failures == {"replay_miss": 1}


SPOILED = [
    b"", b"{", b"null", b"[]", b"\xff\xfe\x00", b'{"request": {}}', b'{"response": {"text": "x"}}', b"[" * 100_000,
    b'{"response": {"text": "x", "parsed": {"level": 1}, "tool": "", "thinking": "", "usage": {}}}',
    b'{"response": {"text": "x", "parsed": null, "tool": "", "thinking": "", "usage": {}}}',
    b'{"response": {"text": 1, "parsed": {"quote": "x", "level": 1}, "tool": "", "thinking": "", "usage": {}}}',
    b'{"response": {"text": "x", "parsed": {"quote": "x", "level": 1}, "tool": "", "thinking": "", "usage": {"a": 1}}}',
]  # fmt: skip


@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_spoiled_file_is_a_miss_or_says_so(spoiled: bytes, server: FaultServer, tmp_path: Path) -> None:
    path = AnswerFolder(tmp_path).path(key())
    path.parent.mkdir(parents=True)
    path.write_bytes(spoiled)
    with pytest.raises(LlmFailure, match=rf"no readable answer: {key()}\.json") as caught:
        answered(client(tmp_path, "replay"))
    assert caught.value.kind == "replay_miss"
    fresh = answered(client(tmp_path, "auto", server))
    assert answered(client(tmp_path, "replay")) == fresh


@pytest.mark.parametrize("cut", range(0, 400, 37))
def test_half_a_file_is_no_answer(cut: int, server: FaultServer, tmp_path: Path) -> None:
    answered(client(tmp_path, "auto", server))
    path = AnswerFolder(tmp_path).path(key())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(LlmFailure, match="no readable answer"):
        answered(client(tmp_path, "replay"))


# ---- what is kept --------------------------------------------------------------------------------------------------


def test_failures_are_never_kept(tmp_path: Path) -> None:
    for behaviour in ("500", "empty", "wrong_schema", "401"):
        with FaultServer(behave=always(behaviour)) as server, pytest.raises(LlmFailure):  # type: ignore[arg-type]
            answered(client(tmp_path, "auto", server))
    assert not files(tmp_path)


def test_a_mended_answer_is_kept_under_the_first_request(tmp_path: Path) -> None:
    with FaultServer(behave=first("wrong_schema")) as server:
        mended = answered(client(tmp_path, "auto", server))
    assert mended.usage.calls == 2
    assert list(files(tmp_path)) == [f"{key()[:2]}/{key()}.json"]
    assert answered(client(tmp_path, "replay")) == mended


def test_a_kept_answer_still_has_to_pass_the_check(server: FaultServer, tmp_path: Path) -> None:
    answered(client(tmp_path, "auto", server))
    strict = replace(ASK, check=lambda verdict: "" if verdict.level == 1 else "the level is wrong")  # type: ignore[attr-defined]
    with pytest.raises(LlmFailure, match="the level is wrong"):
        answered(client(tmp_path, "replay"), strict)
    server.answer = lambda call: {"quote": "a", "level": 1}
    assert answered(client(tmp_path, "auto", server), strict).parsed == Verdict(quote="a", level=1)


def test_a_full_disk_costs_no_answer(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Path, *args: object, **kwargs: object) -> None:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    c = client(tmp_path, "auto", server)
    for k in range(3):
        assert answered(c, replace(ASK, draw=k)).parsed is not None
    assert not files(tmp_path)
    assert len(c.warnings) == 1
    assert "No space left" in c.warnings[0]
    assert [r.getMessage() for r in caplog.records if r.name == llm.__name__] == c.warnings


def test_a_folder_that_cannot_be_made_costs_no_answer(server: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    c = client(tmp_path / "file", "auto", server)
    assert answered(c).parsed is not None
    assert len(c.warnings) == 1


def test_strange_letters_survive(server: FaultServer, tmp_path: Path) -> None:
    """Half of a surrogate pair, as a tokenizer may leave it, in and out; and what JSON must escape."""
    server.answer = lambda call: "a \ud800 b \x00 \u2028 \U0001f600"
    ask = replace(ASK, schema=None, messages=(ChatMessage("user", "x \udfff y"),))
    fresh = answered(client(tmp_path, "auto", server), ask)
    assert fresh.text == "a \ufffd b \x00 \u2028 \U0001f600"
    assert answered(client(tmp_path, "replay"), ask) == fresh


def test_the_default_folder_is_the_user_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ECHO_ENV_CACHE", str(tmp_path))
    assert CacheConfig().place() == tmp_path / "verdicts"
    monkeypatch.delenv("ECHO_ENV_CACHE")
    assert CacheConfig().place() == Path.home() / ".cache" / "echo-env" / "verdicts"
