"""Answers on disk: a cache of verdicts and a cassette in one.

One file an answer, readable JSON: what was asked (never a key or a header) and what came back. Its name is the SHA-256
of the request's canonical JSON, so that a folder of these replays a run without a server, to the byte.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from echo_env.agents.llm.asks import Answer, Ask
from echo_env.agents.llm.config import ModelConfig
from echo_env.agents.llm.structured import schema_text
from echo_env.types import Usage

FORMAT = 1
"""Version of the file's format and of what makes a key."""
_count = itertools.count()


class Unreadable(Exception):
    """A file that does not hold an answer to this request: half written, of another format, or spoiled."""


def request_of(ask: Ask, config: ModelConfig) -> dict[str, Any]:
    """Return all that an answer depends on, as JSON: model, prompt, messages, form and sampling.

    Where the model is served, under which limits and for which role is not part of it.
    """
    return {
        "format": FORMAT,
        "model": config.model,
        "prompt": ask.prompt,
        "messages": [{"role": m.role, "content": m.content} for m in ask.messages],
        "schema": json.loads(schema_text(ask.schema)) if ask.schema else None,
        "tools": [
            {"name": t.name, "description": t.description, "arguments": json.loads(schema_text(t.arguments))}
            for t in ask.tools
        ],
        "structured": config.structured if ask.schema or ask.tools else None,
        "temperature": config.temperature if ask.temperature is None else ask.temperature,
        "top_p": config.top_p,
        "max_tokens": ask.max_tokens or config.max_tokens,
        "may_be_cut": ask.may_be_cut,
        "seed": ask.seed,
        "draw": ask.draw,
        "extra": config.extra,
    }


def key_of(request: dict[str, Any]) -> str:
    """Return a request's key, 64 hex digits."""
    canonical = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


class AnswerFolder:
    """A folder of answers.

    Args:
        folder: Where; made when the first answer is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        """Return the file of a key."""
        return self.folder / key[:2] / f"{key}.json"

    def find(self, key: str, ask: Ask) -> Answer | None:
        """Return the answer kept under a key, None where there is none.

        Raises:
            Unreadable: There is a file, and it cannot be used.
        """
        try:
            data = json.loads(self.path(key).read_text(encoding="utf-8"))
            return _answer(data["response"], ask)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
            raise Unreadable(f"{self.path(key).name}: {type(e).__name__}") from None

    def keep(self, key: str, request: dict[str, Any], answer: Answer) -> None:
        """Keep an answer, whole or not at all.

        Raises:
            OSError: It could not be written.
        """
        path = self.path(key)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{key}.{os.getpid()}.{next(_count)}")
        try:
            draft.write_text(_text(request, answer), encoding="utf-8")
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def _text(request: dict[str, Any], answer: Answer) -> str:
    response = {
        "text": answer.text,
        "parsed": None if answer.parsed is None else answer.parsed.model_dump(mode="json"),
        "tool": answer.tool,
        "thinking": answer.thinking,
        "usage": answer.usage.model_dump(mode="json"),
    }
    return f'{{"request": {_lines(request)},\n"response": {_lines(response)}}}\n'


def _lines(fields: dict[str, Any]) -> str:
    """Return an object as JSON, a field a line: as good to read as indented, and written by the fast encoder."""
    return "{" + ",".join(f"\n {json.dumps(k)}: {json.dumps(v, default=str)}" for k, v in fields.items()) + "}"


def _answer(response: dict[str, Any], ask: Ask) -> Answer:
    form = ask.schema or next((t.arguments for t in ask.tools if t.name == response["tool"]), None)
    if (form is None) != (response["parsed"] is None):
        raise ValueError("another form")
    try:
        parsed = None if form is None else form.model_validate(response["parsed"])
        usage = Usage.model_validate(response["usage"])
    except ValidationError:
        raise ValueError("another form") from None
    text, tool, thinking = response["text"], response["tool"], response["thinking"]
    if not all(isinstance(part, str) for part in (text, tool, thinking)):
        raise ValueError("another form")
    return Answer(text, parsed, tool, thinking, usage)
