"""An OpenAI-compatible chat server that answers anything sensibly, and badly where it is told to.

    with FaultServer(behave=transient("500", tries=2), answer=judge_says) as server:
        config = models_config(f"hosted_vllm/any@{server.url}")

It runs in a thread of its own on a free port of the loopback, and stops with the block. By itself (`python
tests/faultserver.py --latency 0.2`) it prints its URL and serves until its standard input ends: for benchmarks.

Roles are told apart by what a request holds: `Call.title` (title of the JSON schema, or name of the first tool) and
`Call.system` (first line of the first system message).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

from aiohttp import web

Behaviour = Literal[
    "ok", "delay", "drop", "429", "500", "400", "401", "cut", "half_json", "wrong_schema", "unfound_quote", "empty",
    "huge", "length",
]  # fmt: skip
"""What can be done to a request.

`delay` waits `FaultServer.delay` seconds and answers well; `drop` closes the connection unanswered; `429` names
`FaultServer.retry_after`; `cut` ends the body before its end; `half_json` is a whole response whose content is half an
object; `unfound_quote` fills every quote with words that stand nowhere; `huge` is 10 MB of text (`FaultServer.size`);
`length` stops half way and says so (`finish_reason`).
"""
BEHAVIOURS: tuple[str, ...] = get_args(Behaviour)
UNFOUND = "zyxomma quibbet vorple"
HUGE = 10_000_000
_LISTED = re.compile(r"^- (\w+): .*Arguments:\n(\{.*\})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as the server saw it."""

    number: int
    """0 for the server's first."""
    seen: int
    """How often this very request came before."""
    body: dict[str, Any]
    key: str
    """The bearer token that came with it."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]

    @property
    def system(self) -> str:
        """First line of the first system message."""
        texts = [m["content"] for m in self.messages if m["role"] == "system"]
        return texts[0].split("\n", 1)[0] if texts else ""

    @property
    def last(self) -> str:
        """The last message's text."""
        return str(self.messages[-1]["content"])

    @property
    def material(self) -> str:
        """What is asked about: the last message with a data block, else the first of the user."""
        told = [str(m["content"]) for m in self.messages if m["role"] == "user"] or [self.last]
        return next((t for t in reversed(told) if "<data" in t), told[0])

    @property
    def tools(self) -> dict[str, dict[str, Any]]:
        """Parameters' schema by tool name; of the request, else as a message lists them."""
        if self.body.get("tools"):
            return {t["function"]["name"]: t["function"].get("parameters", {}) for t in self.body["tools"]}
        listed = _LISTED.findall("\n".join(str(m["content"]) for m in self.messages))
        return {name: json.loads(schema) for name, schema in listed}

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer must have: of the response format, else one written out in a message."""
        wanted = (self.body.get("response_format") or {}).get("json_schema", {}).get("schema")
        return wanted or (None if self.tools else _written_schema(self.messages))

    @property
    def title(self) -> str:
        schema = self.schema
        return schema.get("title", "") if schema else next(iter(self.tools), "")


Rule = Callable[[Call], str]
"""Gives the behaviour for a request."""
Said = str | dict[str, Any] | None
Answer = Callable[[Call], Said]
"""Gives a good answer: text, an object for the schema, {"name", "arguments"} for tools; None fills it."""


def always(behaviour: Behaviour) -> Rule:
    """Every request, every time."""
    return lambda call: behaviour


def transient(behaviour: Behaviour, tries: int = 1) -> Rule:
    """The first tries of each request; then it is answered."""
    return lambda call: behaviour if call.seen < tries else "ok"


def first(behaviour: Behaviour, requests: int = 1) -> Rule:
    """The first requests that the server gets at all."""
    return lambda call: behaviour if call.number < requests else "ok"


def mixed(shares: dict[str, float], seed: int = 0, tries: int | None = None) -> Rule:
    """A share of the requests each, drawn by what the request holds; for its first `tries` only, or for ever."""

    def rule(call: Call) -> str:
        if tries is not None and call.seen >= tries:
            return "ok"
        digest = hashlib.sha256(f"{seed}{json.dumps(call.body, sort_keys=True)}".encode()).digest()
        at = int.from_bytes(digest[:8], "big") / 2**64
        for behaviour, share in shares.items():
            at -= share
            if at < 0:
                return behaviour
        return "ok"

    return rule


@dataclass
class FaultServer:
    """The server; a context manager. Counters may be read at any time."""

    behave: Rule = field(default_factory=lambda: always("ok"))
    answer: Answer = lambda call: None
    latency: float = 0.0
    """Seconds before every answer."""
    delay: float = 5.0
    retry_after: float | None = 0.05
    key: str | None = None
    """The bearer token that is wanted; without it a request is a 401."""
    port: int = 0
    size: int = HUGE
    limit: int = 120
    """Seconds that the block may last in a process's main thread, so that no test hangs; 0 for no limit."""
    counts: Counter[str] = field(default_factory=Counter)
    """Requests by behaviour."""
    calls: list[Call] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each arrived, by `time.monotonic`."""
    in_flight: int = 0
    max_in_flight: int = 0

    def __post_init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._ready = threading.Event()
        self._handler: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FaultServer:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10), "the server did not start"
        if self.limit and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGALRM, _too_long)
            signal.alarm(self.limit)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, self._handler)
            self._handler = None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._over.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.text()
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        call = Call(len(self.calls), self._seen[raw], json.loads(raw), sent)
        self._seen[raw] += 1
        self.calls.append(call)
        self.times.append(time.monotonic())
        behaviour = self.behave(call)
        if self.key is not None and sent != self.key:
            behaviour = "401"
        assert behaviour in BEHAVIOURS, behaviour
        self.counts[behaviour] += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.latency + (self.delay if behaviour == "delay" else 0))
            return await self._respond(request, call, behaviour)
        finally:
            self.in_flight -= 1

    async def _respond(self, request: web.Request, call: Call, behaviour: str) -> web.StreamResponse:
        if behaviour == "drop":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if behaviour in ("429", "500", "400", "401"):
            return self._refuse(call, int(behaviour))
        body = json.dumps(self._completion(call, behaviour)).encode()
        if behaviour == "cut":
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.content_length = len(body)
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            assert request.transport is not None
            request.transport.close()
            return response
        return web.Response(body=body, content_type="application/json")

    def _refuse(self, call: Call, status: int) -> web.Response:
        # some providers quote the key that they refuse
        error = {"message": f"told to refuse; you sent {call.key}", "type": "fault", "code": str(status)}
        headers = {"Retry-After": f"{self.retry_after}"} if status == 429 and self.retry_after is not None else {}
        return web.json_response({"error": error}, status=status, headers=headers)

    def _completion(self, call: Call, behaviour: str) -> dict[str, Any]:
        said = None if behaviour == "unfound_quote" else self.answer(call)
        if said is None:
            said = _filled(call, unfound=behaviour == "unfound_quote")
        if behaviour == "wrong_schema":
            said = {"name": next(iter(call.tools)), "arguments": {"no": "such"}} if call.tools else {"no": "such"}
        message: dict[str, Any] = {"role": "assistant", "content": None}
        half = behaviour in ("half_json", "length")
        if call.body.get("tools") and isinstance(said, dict) and behaviour not in ("empty", "huge"):
            arguments = json.dumps(said["arguments"], ensure_ascii=False)
            function = {"name": said["name"], "arguments": arguments[: len(arguments) // 2] if half else arguments}
            message["tool_calls"] = [{"id": f"call_{call.number}", "type": "function", "function": function}]
        else:
            text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
            texts = {"empty": "", "huge": "ten megabytes " * (self.size // 14)}
            message["content"] = texts.get(behaviour, text[: len(text) // 2] if half else text)
        written = len(str(message["content"])) // 4 + 1
        read = sum(len(str(m["content"])) for m in call.messages) // 4 + 1
        reason = "length" if behaviour == "length" else "tool_calls" if "tool_calls" in message else "stop"
        return {
            "id": f"chatcmpl-{call.number}", "object": "chat.completion", "created": 0, "model": call.body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }  # fmt: skip


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError("this took too long: something hangs")


def _filled(call: Call, unfound: bool) -> Said:
    quote = UNFOUND if unfound else _words_of(call.material)
    if call.tools:
        name, parameters = next(iter(call.tools.items()))
        return {"name": name, "arguments": fill(parameters, quote=quote)}
    if call.schema:
        filled: dict[str, Any] = fill(call.schema, quote=quote)
        return filled
    return f"I hear you. {hashlib.sha256(call.last.encode()).hexdigest()[:8]}"


def _words_of(text: str) -> str:
    """Return a few words of the last data block, or of the text: what a quote may be."""
    if "<data" in text:
        text = text.rsplit("<data", 1)[1].split(">", 1)[1].split("</data>", 1)[0]
    return " ".join(text.split()[:4])


def _written_schema(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    for line in "\n".join(str(m["content"]) for m in reversed(messages)).split("\n"):
        if line.startswith("{") and '"properties"' in line:
            try:
                found: dict[str, Any] = json.loads(line)
            except json.JSONDecodeError:
                continue
            return found
    return None


def fill(schema: dict[str, Any], quote: str = "some words", root: dict[str, Any] | None = None, name: str = "") -> Any:
    """Return a value that a JSON schema allows; a string named "quote" or "quotes" is the given words."""
    root = schema if root is None else root
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return fill(target, quote, root, name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return quote if quote == UNFOUND and name in ("quote", "quotes") else schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            options = [o for o in schema[choice] if o.get("type") != "null"] or schema[choice]
            return fill(options[0], quote, root, name)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return _fill_plain(kind[0] if isinstance(kind, list) else kind, schema, quote, root, name)


def _fill_plain(kind: str, schema: dict[str, Any], quote: str, root: dict[str, Any], name: str) -> Any:
    if kind == "object":
        return {k: fill(v, quote, root, k) for k, v in schema.get("properties", {}).items()}
    if kind == "array":
        if "prefixItems" in schema:
            return [fill(item, quote, root, name) for item in schema["prefixItems"]]
        count = min(max(1, schema.get("minItems", 1)), schema.get("maxItems", 10**6))
        return [fill(schema.get("items", {}), quote, root, name) for _ in range(count)]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return min(max(low, 0 if low <= 0 else low), schema.get("maximum", 10**9))
    if kind == "boolean":
        return False
    if kind == "null":
        return None
    text = quote if name in ("quote", "quotes") else name or "word"
    return text.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    with FaultServer(latency=args.latency, port=args.port, limit=0) as server:
        print(server.url, flush=True)  # noqa: T201
        sys.stdin.read()
        print(json.dumps({"requests": len(server.calls), "max_in_flight": server.max_in_flight}))  # noqa: T201


if __name__ == "__main__":
    main()
