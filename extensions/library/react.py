"""ReAct: think in a line, call a tool, read what it says, and so on until the model would rather answer.

Follows Yao et al., "ReAct: Synergizing Reasoning and Acting in Language Models" (arXiv 2210.03629): thoughts, actions
and observations alternate in one text. Where the paper shows examples and parses what comes, here the model is told
the rules, an action is held to the tools' schemas by a constraint, and whether another action comes is the likelier
of the two words that could stand there.
"""

EXTENSION = {
    "name": "react",
    "version": "1.0.0",
    "capabilities": ["tools"],
    "params": {
        "type": "object",
        "properties": {
            "tools": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "min_steps": {"type": "integer", "minimum": 0, "maximum": 64, "default": 0},
            "max_steps": {"type": "integer", "minimum": 1, "maximum": 64, "default": 8},
            "thought_tokens": {"type": "integer", "minimum": 1, "default": 60},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 200},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}

RULES = """Answer the question step by step. Write "Thought:" and what you need to find out, "Action:" and one call of a
tool, and read what comes after "Observation:". When you know enough, write "Answer:" and the answer.
The tools are:
"""


def instructed(messages, text):
    """The messages, with a text among the instructions."""
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": messages[0]["content"] + "\n\n" + text}] + messages[1:]
    return [{"role": "system", "content": text}] + messages


async def observed(lm, call):
    """What a tool says, or why it says nothing."""
    try:
        found = await lm.tool(call["name"], **call["arguments"])
    except (LookupError, ValueError, PermissionError, TimeoutError, RuntimeError) as error:
        return "error: " + str(error)
    return found if isinstance(found, str) else json.dumps(found)


async def main(request, lm):
    args = request.args
    offered = [tool for tool in await lm.tools() if tool["name"] in args.get("tools", [tool["name"]])]
    if not offered:
        raise ValueError("there is no tool to act with")
    known = "\n".join(f"{tool['name']}: {tool['description']} {json.dumps(tool['parameters'])}" for tool in offered)
    ctx = await lm.context(instructed(request.messages, RULES + known))
    action = await lm.constraint({"tools": [tool["name"] for tool in offered]})
    no_end = dict.fromkeys(lm.model.eos_token_ids, -100.0)
    await ctx.append("Thought:")
    steps = []
    for number in range(args["max_steps"]):
        thought = await ctx.generate(
            max_tokens=args["thought_tokens"],
            temperature=args["temperature"],
            seed=args["seed"] + number,
            stop="\n",
            logit_bias=no_end,
        )
        line = "" if thought.finish_reason == "stop" else "\n"
        if number >= args["min_steps"] and (await ctx.choose([line + "Action:", line + "Answer:"])).best == 1:
            break
        await ctx.append(line + "Action: ")
        asked = await ctx.generate(
            max_tokens=256, temperature=args["temperature"], seed=args["seed"] + number, constrain=action
        )
        if not asked.tool_calls:
            break  # it did not fit
        if asked.tokens[-1] in lm.model.eos_token_ids:
            await ctx.truncate(ctx.length - 1)
        observation = await observed(lm, asked.tool_calls[0])
        call = {"name": asked.tool_calls[0]["name"], "arguments": asked.tool_calls[0]["arguments"]}
        steps.append({"thought": thought.text.strip(), "call": call, "observation": observation})
        await lm.emit_event("step", steps[-1])
        await ctx.append(f"\nObservation: {observation}\nThought:")
    await ctx.append("\nAnswer:")
    await ctx.generate(max_tokens=args["max_tokens"], temperature=args["temperature"], seed=args["seed"], emit=True)
    return {"steps": steps}
