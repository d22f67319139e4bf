"""CodeAct: the model acts by writing Python, which runs in the sandbox; what it prints is what it sees next.

Follows Wang et al., "Executable Code Actions Elicit Better LLM Agents" (arXiv 2402.01030): code is the one action,
tools are functions that it calls (`await lm.tool(...)`), errors come back as observations. Each action is a program
of its own, checked before it runs and held to limits, so names of one action are gone in the next, where the paper
keeps an interpreter.
"""

EXTENSION = {
    "name": "codeact",
    "version": "1.0.0",
    "capabilities": ["children"],
    "params": {
        "type": "object",
        "properties": {
            "max_steps": {"type": "integer", "minimum": 1, "maximum": 64, "default": 6},
            "must_act": {"type": "boolean", "default": False},
            "code_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 60, "default": 10},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 200},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}

RULES = """Solve the task by writing Python. Put code between a line ```python and a line ```; what it prints comes
back to you as the observation. When you know the answer, write it down without code."""
FENCE = "```python\n"


def instructed(messages, text):
    """The messages, with a text among the instructions."""
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": messages[0]["content"] + "\n\n" + text}] + messages[1:]
    return [{"role": "system", "content": text}] + messages


async def executed(lm, code, seconds):
    """What a piece of code prints, or what is wrong with it."""
    lines = [line for line in code.split("\n") if line.strip()] or ["pass"]
    source = "async def main(request, lm):\n" + "\n".join("    " + line for line in lines) + "\n"
    try:
        child = await lm.run_source(source, limits={"wall_s": seconds})
    except (ValueError, RuntimeError, MemoryError) as error:
        return "error: " + str(error)
    return child.logs or "(it printed nothing)"


async def main(request, lm):
    args = request.args
    tools = await lm.tools() if "tools" in lm.model.capabilities else []
    known = [
        f"await lm.tool({tool['name']!r}, ...) takes {json.dumps(tool['parameters'])}: {tool['description']}"
        for tool in tools
    ]
    ctx = await lm.context(instructed(request.messages, "\n".join([RULES] + known)))
    steps = []
    for number in range(args["max_steps"]):
        if args["must_act"] and number == 0:
            await ctx.append(FENCE)
            said, acts = "", True
        else:
            answer = await ctx.generate(
                max_tokens=args["max_tokens"],
                temperature=args["temperature"],
                seed=args["seed"] + 2 * number,
                stop=[FENCE],
            )
            said = answer.text
            acts = FENCE in await lm.decode(answer.tokens)
        if not acts:
            await lm.emit(said)
            return {"steps": steps, "answered": True}
        written = await ctx.generate(
            max_tokens=args["max_tokens"],
            temperature=args["temperature"],
            seed=args["seed"] + 2 * number + 1,
            stop=["```"],
        )
        output = await executed(lm, written.text, args["code_s"])
        steps.append({"said": said, "code": written.text, "output": output})
        await lm.emit_event("action", steps[-1])
        await ctx.append([{"role": "user", "content": "Observation:\n" + output}])
    return {"steps": steps, "answered": False}
