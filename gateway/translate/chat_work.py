"""A chat request to what the engine is asked for and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from engine.constraints.grammar import depth_of
from engine.constraints.limits import MAX_DEPTH
from engine.request import ConstraintKind, ConstraintSpec, EngineInfo
from engine.text.model import TextModel
from extensions.output import GenerateOptions
from extensions.parsing.answers import AnswerPlan
from extensions.parsing.detection import detect_thinking, format_of, special_marker_id, special_marker_ids
from extensions.parsing.forced import call_grammar, thought_grammar
from extensions.parsing.formats import FORMATS, ToolFormat
from extensions.parsing.held import held_calls
from extensions.parsing.held_python import ToolUnfit
from extensions.parsing.reasoning import MARKERS, Thinking
from gateway.errors import BadRequest
from gateway.generations import Work
from gateway.schemas.chat import ChatRequest
from gateway.schemas.tools import Tool, ToolUse, tool_use
from gateway.settings import Settings
from gateway.translate.behind import PrefixStart, chat_behind
from gateway.translate.chat import ChatForm
from gateway.translate.drafting import drafter_of
from gateway.translate.framing import CALL_MARKERS, framed
from gateway.translate.prompts import chat_fields, encode_text, render_messages, truncate_prompt
from gateway.translate.sampling import to_options

END_TOKENS = 64
"""Tokens at the end of a prompt that tell whether it opens the model's thinking."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatWork:
    """What one chat request comes down to.

    Attributes:
        prompt_ids: The rendered conversation.
        options: How to continue it.
        plan: How to read the answers.
    """

    prompt_ids: list[int]
    options: GenerateOptions
    plan: AnswerPlan

    @property
    def work(self) -> Work:
        """For the engine."""
        return Work(self.prompt_ids, self.options, "messages")

    def form(self, request: ChatRequest, text: TextModel, settings: Settings) -> ChatForm:
        """How the answers are written."""
        hides = self.options.skip_special_tokens
        return ChatForm(
            request=request,
            plan=self.plan,
            prompt_ids=self.prompt_ids,
            tokenizer=text.tokenizer,
            hidden_ids=text.tokenizer.special_ids - self.options.revealed_ids if hides else frozenset(),
            reasoning_fields=settings.reasoning_fields,
        )


async def prepare_chat(
    body: ChatRequest, text: TextModel, info: EngineInfo, settings: Settings, start: PrefixStart | None = None
) -> ChatWork:
    """Renders, tokenises and checks all that can be checked before the engine is asked.

    Args:
        body: The request.
        text: The model's text side.
        info: Of the engine.
        settings: How to serve.
        start: What the conversation goes on from.

    Raises:
        BadRequest: The conversation or the choice of tools is wrong.
        PromptTooLong: The conversation has more tokens than any sequence can have.
        InvalidRequest: Sampling values contradict each other or the vocabulary.
    """
    use = tool_use(body.tool_choice, body.tools)
    fields, variables = chat_fields(body)
    tool_format = tool_format_of(text, settings)
    if start is not None:
        ids = await chat_behind(text, info, start, fields, variables, tool_format)
        prompt = text.tokenizer.decode(ids[-END_TOKENS:], skip_special=False)
    else:
        prompt = render_messages(text, fields, info.limit_tokens, variables, tool_format)
        ids = await encode_text(text, prompt, info.limit_tokens, param="messages", add_special=body.add_special_tokens)
    keep, side = body.truncate_prompt_tokens, body.truncation_side
    ids = truncate_prompt(ids, keep, info.limit_tokens, body.asked_tokens, side)
    options = to_options(
        body,
        info,
        text.tokenizer,
        num_prompt_tokens=len(ids),
        prompt_param="messages",
        max_tokens=body.asked_tokens,
        num_logprobs=body.num_logprobs,
        drafter=await drafter_of(body, text, info, settings),
    )
    thinking = _thinking(text, settings) if body.separate_reasoning else None
    plan = AnswerPlan(
        thinking=None if thinking is None else thinking.at_end_of(prompt),
        tool_format=tool_format,
        names=use.names,
        is_forced=use.is_forced,
        is_held=use.is_strict and not use.is_forced and options.constraint is None,
        is_single=use.names_one or not body.parallel_tool_calls,
    )
    return ChatWork(prompt_ids=ids, options=_with_plan(options, plan, use, text, _schema_params(body.tools)), plan=plan)


def tool_format_of(text: TextModel, settings: Settings) -> ToolFormat:
    """How the model writes calls: as the settings say, else as its chat template tells."""
    if settings.tool_format != "auto":
        return FORMATS[settings.tool_format]
    return format_of(text.chat_template)


def _thinking(text: TextModel, settings: Settings) -> Thinking | None:
    wanted = settings.reasoning_format
    if wanted == "none" or text.chat_template is None:
        return None
    if wanted == "auto":
        return detect_thinking(text.chat_template)
    start, end = MARKERS[wanted]
    return Thinking(start=start, end=end)


def _schema_params(tools: Sequence[Tool]) -> dict[str, str]:
    """What the client calls the schemas of functions, by their names."""
    return {tool.function.name: f"tools[{number}].function.parameters" for number, tool in enumerate(tools)}


def _params_of(use: ToolUse, params: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(params[name] for name in use.names)


def _with_plan(
    options: GenerateOptions, plan: AnswerPlan, use: ToolUse, text: TextModel, params: Mapping[str, str]
) -> GenerateOptions:
    markers = () if plan.thinking is None else (plan.thinking.start, plan.thinking.end)
    special = special_marker_ids(text.tokenizer, markers)
    if plan.is_forced:
        options = replace(options, constraint=_constraint(plan, use, _thought(plan, text), params))
    elif plan.is_held:
        options = replace(options, constraint=_held(plan, use, text, params))
    elif options.constraint is not None:
        options = replace(options, constraint=_framed(options.constraint, plan, use, _thought(plan, text), params))
    if plan.names and not plan.is_forced:
        special |= special_marker_ids(text.tokenizer, plan.tool_format.special_markers)
        if plan.is_single:
            options = replace(options, until=plan.first_call_watch)
    return replace(options, revealed_ids=special, thinking=plan.thinking)


def _thought(plan: AnswerPlan, text: TextModel) -> str:
    """Rules for the thinking before a forced answer; a model that does not think is not given the occasion."""
    thinking, template = plan.thinking, text.chat_template
    if thinking is None or not (thinking.is_open or (template is not None and template.uses(thinking.end))):
        return ""
    start, end = (special_marker_id(text.tokenizer, marker) for marker in (thinking.start, thinking.end))
    special_ids = None if start is None or end is None else (start, end)
    return thought_grammar(thinking.start, thinking.end, is_open=thinking.is_open, special_ids=special_ids)


def _framed(
    constraint: ConstraintSpec, plan: AnswerPlan, use: ToolUse, thought: str, params: Mapping[str, str]
) -> ConstraintSpec:
    """The form that the client asked for, of an answer that may be preceded by thinking or be calls instead."""
    can_call = plan.names and set(CALL_MARKERS) <= {*plan.tool_format.markers, plan.tool_format.closer}
    _check_depth(use, params)
    return framed(
        constraint,
        thought=thought,
        tools=use.tools if can_call else (),
        is_single=plan.is_single,
        schema_params=_params_of(use, params) if can_call else (),
    )


def _held(plan: AnswerPlan, use: ToolUse, text: TextModel, params: Mapping[str, str]) -> ConstraintSpec:
    """Calls that match their schemas, amid text that is free."""
    _check_depth(use, params)
    try:
        return held_calls(
            {tool.function.name: tool.function.parameters for tool in use.tools},
            [tool.function.name for tool in use.tools if tool.function.strict],
            plan.tool_format,
            thinking=plan.thinking,
            special_id=partial(special_marker_id, text.tokenizer),
            schema_params=_params_of(use, params),
        )
    except ToolUnfit as error:
        param = params[error.name]
        raise BadRequest(f"'{param}' cannot be enforced: {error}.", param) from None


def _check_depth(use: ToolUse, params: Mapping[str, str]) -> None:
    for tool in use.tools:
        if depth_of(tool.function.parameters) > MAX_DEPTH:
            param = params[tool.function.name]
            raise BadRequest(f"'{param}' cannot be enforced: it is nested deeper than {MAX_DEPTH} levels.", param)


def _constraint(plan: AnswerPlan, use: ToolUse, thought: str, params: Mapping[str, str]) -> ConstraintSpec:
    _check_depth(use, params)
    return ConstraintSpec(
        kind=ConstraintKind.LARK,
        source=call_grammar(
            {tool.function.name: tool.function.parameters for tool in use.tools},
            is_parallel=not plan.is_single,
            strict=[tool.function.name for tool in use.tools if tool.function.strict],
            thought=thought,
        ),
        strict=any(tool.function.strict for tool in use.tools),
        param="tools",
        schema_params=_params_of(use, params),
    )
