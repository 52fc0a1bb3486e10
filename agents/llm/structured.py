"""Answers of a given form: how the form is asked for, and how an answer is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError

from echo_env.agents.llm.asks import Ask, ChatMessage, Failure, Tool
from echo_env.agents.llm.completion import Completion
from echo_env.session import visible

LONGEST = 32
"""Characters a token at most; an answer longer than its tokens allow is not read."""
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_BLOCK = re.compile(r"</?think\b[^>]*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer holds; `kind` is None where it can be used."""

    text: str = ""
    thinking: str = ""
    tool: str = ""
    parsed: BaseModel | None = None
    kind: Failure | None = None
    fault: str = ""
    raw: str = ""
    """What the model said, to be shown to it again."""


@lru_cache(maxsize=256)
def schema_text(model: type[BaseModel]) -> str:
    """Return a model's JSON schema on one line, strict: no field may be left out, and none added."""
    return json.dumps(_strict(model.model_json_schema()), ensure_ascii=False)


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(n) for n in node]
    if not isinstance(node, dict):
        return node
    kept = {k: _strict(v) for k, v in node.items() if k != "default" or not isinstance(node.get("type"), str | None)}
    if node.get("type") == "object" and isinstance(node.get("properties"), dict):
        kept["required"] = list(node["properties"])
        kept["additionalProperties"] = False
    return kept


def _schema_of(model: type[BaseModel], choices: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return a model's strict JSON schema, the ask's choices put in."""
    schema: dict[str, Any] = json.loads(schema_text(model))
    for part in (schema, *schema.get("$defs", {}).values()):
        for name, values in choices.items():
            found = part.get("properties", {}).get(name)
            if found is not None and values:
                place = found["items"] if found.get("type") == "array" else found
                place.pop("maxLength", None)
                place["enum"] = list(values)
    return schema


def form_of(ask: Ask, structured: str, *, own_server: bool = False) -> dict[str, Any]:
    """Return what asks for an ask's form, in the names of OpenAI's interface; empty where it is asked for in words.

    Args:
        ask: What is asked.
        structured: How, as the models file says.
        own_server: Whether the server holds its model to a schema without showing it. Elsewhere a schema gets no
            choices: they may be words of a policy, which a model must not come to see outside of a data block.
    """
    if structured == "prompt":
        return {}
    if ask.tools:
        return _tools(ask.tools, ask.choices)
    if ask.schema and structured == "tool":
        return _tools((_answering(ask.schema),), {})
    if ask.schema:
        choices = ask.choices if own_server else {}
        schema = {"name": _title(ask.schema), "schema": _schema_of(ask.schema, choices), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {}


def _tools(tools: tuple[Tool, ...], choices: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    choice = {"type": "function", "function": {"name": tools[0].name}} if len(tools) == 1 else "required"
    return {"tools": [_function(t, choices) for t in tools], "tool_choice": choice}


def worded(ask: Ask, structured: str) -> tuple[ChatMessage, ...]:
    """Return the messages, with the form in words where that is how it is asked for."""
    if structured != "prompt" or not (ask.schema or ask.tools):
        return ask.messages
    if ask.schema:
        words = "Answer with one JSON object that fits this JSON schema, and nothing else:\n" + schema_text(ask.schema)
    else:
        listed = "\n".join(f"- {t.name}: {t.description} Arguments:\n{schema_text(t.arguments)}" for t in ask.tools)
        words = (
            'Call exactly one function: answer with {"name": its name, "arguments": an object that fits its JSON '
            f"schema}} and nothing else. The functions:\n{listed}"
        )
    *before, last = ask.messages
    return (*before, ChatMessage(last.role, f"{last.content}\n\n{words}"))


def _title(schema: type[BaseModel]) -> str:
    return re.sub(r"\W", "_", schema.__name__)[:64]


def _answering(schema: type[BaseModel]) -> Tool:
    return Tool(_title(schema), "Give the answer.", schema)


def _function(tool: Tool, choices: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    parameters = _schema_of(tool.arguments, choices)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def read(ask: Ask, got: Completion, max_tokens: int) -> Reading:
    """Read a completion as what was asked for."""
    said = sum(len(name) + len(arguments) for name, arguments in got.calls) + len(got.text) + len(got.thinking)
    if said > LONGEST * max_tokens + 4096:
        return Reading(kind="too_long", fault=f"{said} characters came for {max_tokens} tokens at most")
    text = visible(got.text)
    hidden = _BLOCK.sub("", got.text.replace(text, "", 1)).strip() if text != got.text.strip() else ""
    reading = _form(ask, got, text)
    raw = "\n".join(f"{n}({a})" for n, a in got.calls) or text
    return Reading(
        reading.text, "\n".join(filter(None, (got.thinking.strip(), hidden))), reading.tool, reading.parsed,
        reading.kind, reading.fault, raw,
    )  # fmt: skip


def _form(ask: Ask, got: Completion, text: str) -> Reading:
    if got.finish == "content_filter":
        return Reading(kind="refused", fault="the provider's filter stopped the answer")
    if got.finish == "length" and not (ask.may_be_cut and text and not ask.schema and not ask.tools):
        return Reading(kind="cut", fault="the answer reached the token limit before its end")
    if ask.tools:
        reading = _tool_call(ask.tools, got, text)
    elif ask.schema:
        arguments = [a for n, a in got.calls if n == _title(ask.schema)]
        reading = _object(ask.schema, arguments[0] if arguments else text)
    else:
        reading = Reading(text) if text else Reading(kind="empty", fault="the answer is empty")
    wrong = "" if reading.parsed is None else checked(ask, reading.parsed)
    return Reading(kind="check", fault=wrong) if wrong else reading


def checked(ask: Ask, parsed: BaseModel) -> str:
    """Return what the ask's own check finds wrong with an answer, "" for nothing."""
    try:
        return ask.check(parsed) if ask.check else ""
    except Exception as e:  # an answer that the check cannot even look at
        return f"the check failed on it: {type(e).__name__}: {e}"


def _tool_call(tools: tuple[Tool, ...], got: Completion, text: str) -> Reading:
    by_name = {t.name: t for t in tools}
    calls = got.calls
    if not calls:  # asked for in words, or a model that writes its calls as text
        if not text:
            return Reading(kind="empty", fault="no function was called, and nothing said")
        said = _json(text)
        if not isinstance(said, dict) or not isinstance(said.get("name"), str):
            return Reading(kind="format", fault="no function was called")
        calls = ((said["name"], json.dumps(said.get("arguments", {}))),)
    if len(calls) != 1:
        return Reading(kind="format", fault=f"{len(calls)} functions were called; exactly one is wanted")
    name, arguments = calls[0]
    if name not in by_name:
        return Reading(kind="format", fault=f"there is no such function; there are {', '.join(by_name)}")
    reading = _object(by_name[name].arguments, arguments or "{}")
    return Reading(reading.text, "", name, reading.parsed, reading.kind, reading.fault)


def _object(schema: type[BaseModel], text: str) -> Reading:
    if not text:
        return Reading(kind="empty", fault="the answer is empty")
    value = _json(text)
    if value is None:
        return Reading(kind="format", fault="the answer is not JSON")
    try:
        return Reading(text, parsed=schema.model_validate(value))
    except ValidationError as e:
        faults = [f"{'.'.join(map(str, f['loc'])) or 'answer'}: {f['msg']}" for f in e.errors(include_input=False)]
        return Reading(kind="format", fault=("; ".join(faults[:5]))[:500])
    except Exception as e:  # a validator that did not expect what a model may say
        return Reading(kind="format", fault=f"{type(e).__name__}: {e}"[:500])


def _json(text: str) -> Any:
    """Return the JSON value that a text is or holds, None where it holds none."""
    fenced = _FENCED.search(text)
    braces = text[text.find("{") : text.rfind("}") + 1]
    for candidate in (text, fenced.group(1) if fenced else "", braces):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    return None


def repair(messages: tuple[ChatMessage, ...], reading: Reading, ask: Ask) -> tuple[ChatMessage, ...]:
    """Return the messages of the second and last try, which tell what was wrong with the first answer.

    Where any text will do, the first ones again: a policy is sent the conversation and nothing else.
    """
    if not (ask.schema or ask.tools):
        return messages
    wanted = ""
    if ask.schema:
        wanted = "\nThe answer must be one JSON object that fits this JSON schema:\n" + schema_text(ask.schema)
    return (
        *messages,
        ChatMessage("assistant", reading.raw[:4000] or "(no answer)"),
        ChatMessage("user", f"That answer cannot be used: {reading.fault}. Answer once more, whole.{wanted}"),
    )
